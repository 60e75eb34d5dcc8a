"""What a finished sweep says, in words and a table."""

from statistics import mean

import pandas as pd

from nanoengine.errors import NanoengineError
from nanoengine.sweep.bandwidth import MeasuredBandwidth
from nanoengine.sweep.summary import QUIET_CORES, drift, mark_outliers


def cell_table(cells: pd.DataFrame):
    """A rich table of `summary(samples)`: median and spread of each cell's step."""
    from rich.table import Table

    table = Table(title="one decode step: median, quartiles, and the rate at which it read its bytes")
    for column in ("batch", "history", "n", "KV MB", "step ms", "quartiles", "GB/s", "outliers"):
        table.add_column(column, justify="right")
    for cell in cells.itertuples():
        table.add_row(
            str(cell.batch),
            str(cell.history),
            str(cell.n),
            f"{cell.kv_bytes / 1e6:.1f}",
            f"{cell.step_ms:.2f}",
            f"{cell.q25_ms:.2f} to {cell.q75_ms:.2f}",
            f"{cell.read_gb_per_s:.1f}",
            str(cell.outliers),
        )
    return table


def remarks(samples: pd.DataFrame) -> list[str]:
    """Sentences on what may have bent the sweep: drift, other processes, outliers."""
    lines = []
    found = drift(samples)
    if found:
        lines.append(str(found))
    marked = mark_outliers(samples)
    visits = marked.groupby(["order", "batch", "target_history"]).disturbed.first()
    if visits.any():
        lines.append(
            f"During {visits.sum()} of {len(visits)} visits other processes kept more than {QUIET_CORES:g} cores busy, "
            f"at most {samples.other_cores.max():.2f}; medians leave these visits out where a cell has quiet ones."
        )
    never_quiet = visits.groupby(["batch", "target_history"]).all()
    if never_quiet.any():
        names = ", ".join(f"{batch} x {history}" for batch, history in never_quiet.index[never_quiet])
        lines.append(f"No visit was quiet in {names}; close other programs and measure again with more visits.")
    outliers = int(marked.outlier.sum())
    if outliers:
        lines.append(f"{outliers} of {len(samples)} samples lie far from the rest of their cell; they are kept.")
    return lines


def fit_lines(cells: pd.DataFrame, *bandwidths: MeasuredBandwidth) -> list[str]:
    """Both fits of `summary(samples)`, each with its intervals, and their rates against the mean of `bandwidths`."""
    ceiling_gb_per_s = mean(bandwidth.gb_per_s for bandwidth in bandwidths)
    lines = _one_fit("Two terms, a fixed cost and KV:", cells, False, ceiling_gb_per_s)
    if cells.batch.nunique() > 1:
        lines += ["", *_one_fit("Three terms, with a cost per request:", cells, True, ceiling_gb_per_s)]
    return [
        *lines,
        "",
        "A weight rate from an intercept is a lower bound: the intercept also holds the overhead of a step, which one "
        "model in one dtype cannot tell from its weights.",
    ]


def _one_fit(title: str, cells: pd.DataFrame, per_request: bool, ceiling_gb_per_s: float) -> list[str]:
    from nanoengine.costmodel.fit import fit_steps

    try:
        fit = fit_steps(cells, per_request)
    except NanoengineError as error:  # too small a grid is no reason to lose the table above
        return [f"{title} no fit. {error}"]
    return [
        title,
        str(fit),
        _against("KV, 1/slope:", fit.kv_rate_gb_per_s, ceiling_gb_per_s),
        _against("weights, bytes/intercept:", fit.weight_rate_gb_per_s(cells.weight_bytes.iloc[0]), ceiling_gb_per_s),
    ]


def bandwidth_line(before: MeasuredBandwidth, after: MeasuredBandwidth) -> str:
    """The ceiling before and after the sweep; memory itself drifts on many machines."""
    return (
        f"Read bandwidth was {before.gb_per_s:.1f} GB/s before the sweep and {after.gb_per_s:.1f} GB/s after it: "
        f"{after.gb_per_s / before.gb_per_s - 1:+.0%}."
    )


def _against(what: str, rate_gb_per_s: float, ceiling_gb_per_s: float) -> str:
    if rate_gb_per_s <= 0:
        return f"  {what} no rate, since the fitted cost is not above zero"
    share = rate_gb_per_s / ceiling_gb_per_s
    return f"  {what} {rate_gb_per_s:.1f} GB/s, {share:.0%} of the {ceiling_gb_per_s:.1f} GB/s measured here"
