"""What a finished sweep says, in words and a table."""

from statistics import mean

import pandas as pd

from nanoengine.sweep.bandwidth import MeasuredBandwidth
from nanoengine.sweep.summary import drift, mark_outliers

_BUSY_CORES = 0.1


def cell_table(cells: pd.DataFrame):
    """A rich table of `summary(samples)`: median and spread of each cell's step."""
    from rich.table import Table

    table = Table(title="one decode step: median, quartiles, and the rate at which it read its bytes")
    for column in ("batch", "history", "n", "KV MB", "step ms", "25 %", "75 %", "read GB/s", "outliers"):
        table.add_column(column, justify="right")
    for cell in cells.itertuples():
        table.add_row(
            str(cell.batch),
            str(cell.history),
            str(cell.n),
            f"{cell.kv_bytes / 1e6:.1f}",
            f"{cell.step_ms:.2f}",
            f"{cell.q25_ms:.2f}",
            f"{cell.q75_ms:.2f}",
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
    loads = samples.groupby("order").other_cores.first()
    busy = loads[loads > _BUSY_CORES]
    if len(busy):
        lines.append(
            f"During {len(busy)} of {len(loads)} visits other processes kept more than {_BUSY_CORES:g} cores busy, "
            f"at most {busy.max():.2f}; close them and measure again."
        )
    outliers = int(mark_outliers(samples).outlier.sum())
    if outliers:
        lines.append(f"{outliers} of {len(samples)} samples lie far from the rest of their cell; they are kept.")
    return lines


def fit_lines(cells: pd.DataFrame, *bandwidths: MeasuredBandwidth) -> list[str]:
    """Both fits of `summary(samples)`, each with its intervals, and their slopes against the mean of `bandwidths`."""
    from nanoengine.costmodel.fit import fit_steps

    if cells.kv_bytes.nunique() < 3:
        return [f"A fit needs at least 3 cells that differ in KV, and this sweep has {cells.kv_bytes.nunique()}."]
    ceiling_gb_per_s = mean(bandwidth.gb_per_s for bandwidth in bandwidths)
    fits = {"Two terms, a fixed cost and KV:": fit_steps(cells)}
    if cells.batch.nunique() > 1 and len(cells) > 4:
        fits["Three terms, with a cost per request:"] = fit_steps(cells, per_request=True)
    lines = []
    for title, fit in fits.items():
        lines += [title, str(fit), _against(fit.kv_rate_gb_per_s, "KV was read at 1/slope =", ceiling_gb_per_s), ""]
    weight_rate = fits["Two terms, a fixed cost and KV:"].weight_rate_gb_per_s(int(cells.weight_bytes.iloc[0]))
    return [
        *lines,
        _against(weight_rate, "Weights over the intercept give", ceiling_gb_per_s),
        "That is a lower bound on the rate of weight reads: the intercept also holds the overhead of a step, which one "
        "model in one dtype cannot tell from its weights.",
    ]


def bandwidth_line(before: MeasuredBandwidth, after: MeasuredBandwidth) -> str:
    """The ceiling before and after the sweep; memory itself drifts on many machines."""
    return (
        f"Read bandwidth was {before.gb_per_s:.1f} GB/s before the sweep and {after.gb_per_s:.1f} GB/s after it: "
        f"{after.gb_per_s / before.gb_per_s - 1:+.0%}."
    )


def _against(rate_gb_per_s: float, words: str, ceiling_gb_per_s: float) -> str:
    share = rate_gb_per_s / ceiling_gb_per_s
    return f"{words} {rate_gb_per_s:.1f} GB/s, {share:.0%} of the {ceiling_gb_per_s:.1f} GB/s measured here."
