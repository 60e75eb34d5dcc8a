"""Fit the decode-step model to measurements: a fixed cost, a cost per GiB of KV, and a cost per request.

The CSV needs step_ms and kv_bytes, or kv_gib, or batch and history with --kv-bytes-per-token. It may have batch:
where that varies, three terms are fitted beside the two, and the slope within each batch size is shown. It may have
order, the place of a row in time: then drift is fitted too. With --device, rows that the device's memory cannot
produce are named, and --drop-impossible leaves them out. What the data do not settle is said at the end.

examples:
  nanoengine fit results/sweep.csv
  nanoengine fit mine.csv --kv-bytes-per-token 57344 --weight-bytes 14.1e9 --device gb10 --json
"""

HELP = "fit the decode-step model to a CSV of measurements"


def add_arguments(parser):
    parser.add_argument("file", help="CSV with one row per measured cell or sample")
    parser.add_argument("--kv-bytes-per-token", type=int, metavar="B", help="to compute KV from batch and history")
    parser.add_argument("--weight-bytes", type=float, metavar="B", help="to give the rate of weight reads")
    parser.add_argument("--device", help="name in data/devices.csv, to find rows above its data sheet")
    parser.add_argument("--drop-impossible", action="store_true", help="fit without the rows above the data sheet")
    parser.add_argument("--csv", action="store_true", help="every point with what it does to the last fit")
    parser.add_argument("--json", action="store_true")


def run(args):
    import json

    from nanoengine.costmodel.fit_checks import not_identified
    from nanoengine.costmodel.fit_views import all_fits

    frame = _read(args.file, args.kv_bytes_per_token)
    frame, impossible = _impossible(frame, args)
    fits = all_fits(frame)
    last = list(fits.values())[-1]
    if args.csv:
        print(last.points().to_csv(index=False), end="")
        return
    if args.json:
        record = {name: _as_dict(fit, args.weight_bytes) for name, fit in fits.items()}
        print(json.dumps({**record, "not_identified": not_identified(last), "impossible_lines": impossible}))
        return
    _print_impossible(impossible, args)
    for name, fit in fits.items():
        print(f"{name}:\n{fit}")
        _print_details(fit, args.weight_bytes)
    _print_within_batch(frame)
    print("what these data do not settle:")
    for sentence in not_identified(last):
        print(f"  {sentence}")


def _impossible(frame, args):
    """The frame to fit, and the file's lines that the device's memory cannot produce."""
    from nanoengine.costmodel.device import DeviceSpec
    from nanoengine.costmodel.fit_checks import implied_rates
    from nanoengine.errors import NanoengineError

    if args.device is None:
        if args.drop_impossible:
            raise NanoengineError("--drop-impossible needs --device, whose data sheet says what is possible.")
        return frame, []
    bandwidth = DeviceSpec.named(args.device).bandwidth_gb_per_s
    bad = implied_rates(frame, bandwidth, args.weight_bytes or 0.0).verdict != "possible"
    lines = [int(row) + 2 for row in frame.index[bad]]
    return (frame[~bad].reset_index(drop=True) if args.drop_impossible else frame), lines


def _print_impossible(lines: list[int], args):
    if lines:
        what = "left out" if args.drop_impossible else "kept; --drop-impossible leaves them out"
        named = ", ".join(map(str, lines[:10])) + (" and more" if len(lines) > 10 else "")
        print(f"above the data sheet of {args.device}: {len(lines)} rows ({what}), lines {named}")


def _print_details(fit, weight_bytes: float | None):
    print(f"  KV read at 1/slope = {fit.kv_rate_gb_per_s:.1f} GB/s")
    heavy = int(fit.cooks_distance.argmax())
    print(
        f"  most influential: row {heavy + 1}, leverage {fit.leverage[heavy]:.2f}, "
        f"Cook's distance {fit.cooks_distance[heavy]:.2f}"
    )
    if fit.n > len(fit.table()) + 1:
        slopes = fit.leave_one_out().slope_ms_per_gib
        print(f"  without one point each: slope {slopes.min():.4g} to {slopes.max():.4g} ms per GiB")
    if weight_bytes:
        print(
            f"  weights over intercept = {fit.weight_rate_gb_per_s(weight_bytes):.1f} GB/s, a lower bound: "
            "the intercept holds the overhead too"
        )


def _print_within_batch(frame):
    from nanoengine.costmodel.fit_views import within_batch

    if "batch" not in frame or frame.batch.nunique() < 2 or frame.groupby("batch").kv_bytes.nunique().max() < 2:
        return
    print("slope within each batch size:")
    for row in within_batch(frame).itertuples():
        name = "pooled" if row.batch != row.batch else f"batch {row.batch:g}"
        interval = "" if row.low != row.low else f" (95 % interval {row.low:.4g} to {row.high:.4g})"
        print(f"  {name}: {row.slope_ms_per_gib:.4g} ms per GiB{interval} over {row.n} points")


def _read(path: str, kv_bytes_per_token: int | None):
    import pandas as pd

    from nanoengine.errors import NanoengineError

    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise NanoengineError(f"There is no file {path}.") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise NanoengineError(f"{path} is not a readable CSV ({str(error).strip()}).") from None
    needed = {"batch", "history"}
    for column in frame.columns.intersection(["step_ms", "kv_bytes", "kv_gib", *needed]):
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if numbers.isna().any():
            row = int(numbers.isna().to_numpy().argmax())
            raise NanoengineError(f"{path}, line {row + 2}: {column} is {frame[column][row]!r}, not a number.")
        frame[column] = numbers
    if "step_ms" not in frame:
        raise NanoengineError(f"{path} has no column step_ms (milliseconds per decode step).")
    if "kv_bytes" in frame and "kv_gib" in frame:
        raise NanoengineError(f"{path} has both kv_bytes and kv_gib; keep one, so that no unit is guessed.")
    if "kv_gib" in frame:
        frame["kv_bytes"] = frame.kv_gib * 2**30
    elif "kv_bytes" not in frame:
        if not (needed <= set(frame.columns) and kv_bytes_per_token):
            raise NanoengineError(
                f"{path} has neither kv_bytes nor kv_gib; add one, or batch and history with --kv-bytes-per-token."
            )
        frame["kv_bytes"] = frame.batch * frame.history * kv_bytes_per_token
    return frame


def _as_dict(fit, weight_bytes: float | None) -> dict:
    record = {row.term: {"unit": row.unit, "value": row.value, "low": row.low, "high": row.high}
              for row in fit.table().itertuples()}  # fmt: skip
    record |= {"r_squared": fit.r_squared, "n": fit.n, "kv_rate_gb_per_s": fit.kv_rate_gb_per_s}
    if weight_bytes:
        record["weight_rate_gb_per_s_lower_bound"] = fit.weight_rate_gb_per_s(weight_bytes)
    return record
