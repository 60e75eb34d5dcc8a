"""Fit the decode-step model to measurements: a fixed cost, a cost per GiB of KV, and a cost per request.

The CSV needs step_ms and kv_bytes, or kv_gib, or batch and history with --kv-bytes-per-token. It may have batch:
where that varies, three terms are fitted beside the two.

examples:
  nanoengine fit results/sweep.csv
  nanoengine fit mine.csv --kv-bytes-per-token 57344 --weight-bytes 14.1e9 --json
"""

HELP = "fit the decode-step model to a CSV of measurements"


def add_arguments(parser):
    parser.add_argument("file", help="CSV with one row per measured cell or sample")
    parser.add_argument("--kv-bytes-per-token", type=int, metavar="B", help="to compute KV from batch and history")
    parser.add_argument("--weight-bytes", type=float, metavar="B", help="to give the rate of weight reads")
    parser.add_argument("--json", action="store_true")


def run(args):
    import json

    from nanoengine.costmodel.fit import fit_steps

    frame = _read(args.file, args.kv_bytes_per_token)
    fits = {"two terms": fit_steps(frame)}
    if "batch" in frame and frame.batch.nunique() > 1 and len(frame) > 3:
        fits["three terms"] = fit_steps(frame, per_request=True)
    if args.json:
        print(json.dumps({name: _as_dict(fit, args.weight_bytes) for name, fit in fits.items()}))
        return
    for name, fit in fits.items():
        print(f"{name}:\n{fit}")
        print(f"  KV read at 1/slope = {fit.kv_rate_gb_per_s:.1f} GB/s")
        heavy = int(fit.cooks_distance.argmax())
        print(
            f"  most influential: row {heavy + 1}, leverage {fit.leverage[heavy]:.2f}, "
            f"Cook's distance {fit.cooks_distance[heavy]:.2f}"
        )
        if args.weight_bytes:
            print(
                f"  weights over intercept = {fit.weight_rate_gb_per_s(args.weight_bytes):.1f} GB/s, a lower bound: "
                "the intercept holds the overhead too"
            )


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
