"""From samples to cells: medians, spread, outliers, disturbance, drift."""

from dataclasses import dataclass

import pandas as pd

from nanoengine.errors import NanoengineError
from nanoengine.sweep.grid import Cell

# More than this many cores at work for others, and a step no longer has the machine to itself: threads that wait for
# one another then take tens of times as long. Below it lie the ticks in which the kernel counts.
QUIET_CORES = 0.25
_CELL = ["batch", "target_history"]


def mark_outliers(samples: pd.DataFrame) -> pd.DataFrame:
    """A copy with two columns more, and every sample kept.

    disturbed: other processes kept more than QUIET_CORES busy during the visit. outlier: undisturbed, yet beyond
    three interquartile ranges from the quartiles of its cell's undisturbed samples, which Tukey calls far out
    (Exploratory Data Analysis, 1977).
    """
    disturbed = samples.other_cores > QUIET_CORES
    steps = samples.step_ms.where(~disturbed).groupby([samples[column] for column in _CELL])
    q25, q75 = steps.transform("quantile", 0.25), steps.transform("quantile", 0.75)
    beyond = pd.concat([q25 - samples.step_ms, samples.step_ms - q75], axis=1).max(axis=1)
    return samples.assign(disturbed=disturbed, outlier=~disturbed & (beyond > 3 * (q75 - q25)))


def summary(samples: pd.DataFrame) -> pd.DataFrame:
    """One row per cell of one sweep, ready for costmodel.fit_steps.

    A cell's figures come from its undisturbed samples, outliers among them; from all where every visit was disturbed.
    Columns: batch, history (of the cell), n samples used, visits, disturbed samples, outliers; kv_bytes (median over
    the samples, whose histories grow) and weight_bytes in B; step_ms (median), q25_ms, q75_ms, iqr_ms; read_gb_per_s,
    all bytes of a step over its median time. Raises NanoengineError for samples of more than one engine, model or
    dtype.
    """
    if samples.empty:
        raise NanoengineError("There are no samples to summarize; run a sweep first.")
    for column in ("backend", "model", "dtype", "threads", "machine"):
        if samples[column].nunique() > 1:
            raise NanoengineError(
                f"The samples mix {column} {', '.join(map(str, samples[column].unique()))}; summarize each on its own."
            )
    marked = mark_outliers(samples)
    never_quiet = marked.groupby(_CELL).disturbed.transform("all")
    cells = marked[~marked.disturbed | never_quiet].groupby(_CELL)
    table = cells.agg(
        n=("step_ms", "size"),
        outliers=("outlier", "sum"),
        kv_bytes=("kv_bytes", "median"),
        weight_bytes=("weight_bytes", "first"),
        step_ms=("step_ms", "median"),
    )
    every = marked.groupby(_CELL)
    table.insert(1, "visits", every.visit.nunique())
    table.insert(2, "disturbed", every.disturbed.sum())
    table["q25_ms"], table["q75_ms"] = cells.step_ms.quantile(0.25), cells.step_ms.quantile(0.75)
    table["iqr_ms"] = table.q75_ms - table.q25_ms
    table["read_gb_per_s"] = (table.kv_bytes + table.weight_bytes) / table.step_ms / 1e6
    return table.reset_index().rename(columns={"target_history": "history"})


@dataclass(frozen=True)
class Drift:
    """The first cell's median step_ms when the sweep began and when it ended. ratio: last over first."""

    cell: Cell
    first_ms: float
    last_ms: float

    @property
    def ratio(self) -> float:
        return self.last_ms / self.first_ms

    def __str__(self) -> str:
        return (
            f"The first cell, {self.cell}, took {self.first_ms:.2f} ms at the start and {self.last_ms:.2f} ms at the "
            f"end: {self.ratio - 1:+.1%}."
        )


def drift(samples: pd.DataFrame) -> Drift | None:
    """How much the machine changed under the sweep: the first cell's first visit against its last one.

    None when that cell was visited only once.
    """
    first = samples.loc[samples.order.idxmin()]
    cell = Cell(int(first.batch), int(first.target_history))
    of_cell = samples[(samples.batch == cell.batch) & (samples.target_history == cell.history)]
    medians = of_cell.groupby("order").step_ms.median()
    return Drift(cell, float(medians.iloc[0]), float(medians.iloc[-1])) if len(medians) > 1 else None
