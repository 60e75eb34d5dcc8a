"""Decode steps of several engines over a few cells, interleaved."""

import random
from statistics import mean

import pandas as pd
from rich.table import Table

from nanoengine.costmodel.fit import fit_steps
from nanoengine.sweep.backends import Backend
from nanoengine.sweep.bandwidth import MeasuredBandwidth
from nanoengine.sweep.grid import Cell
from nanoengine.sweep.load import OtherLoad
from nanoengine.sweep.runner import measure_visit
from nanoengine.sweep.summary import summary

CELLS = [Cell(1, 256), Cell(1, 2048), Cell(1, 7936), Cell(4, 1024), Cell(16, 512)]
_SAMPLES = 5


def measure_steps(backends: dict[tuple[str, str], Backend], rounds: int, seed: int = 0) -> pd.DataFrame:
    """Samples of every backend in every cell, `rounds` visits each in shuffled order; columns as summary() needs.

    Rows are in the order of `backends` and CELLS, not of measuring.
    """
    shuffle = random.Random(seed)
    jobs = [(key, cell) for key in backends for cell in CELLS]
    rows = []
    for visit in range(rounds):
        for job in shuffle.sample(range(len(jobs)), len(jobs)):
            key, cell = jobs[job]
            description = backends[key].describe()
            load = OtherLoad()
            timed = measure_visit(backends[key], *cell, samples=_SAMPLES)
            other_cores = load.cores()
            for history, step_ms in timed:
                rows.append(
                    {
                        "backend": description.backend,
                        "model": description.model,
                        "dtype": description.dtype,
                        "threads": description.threads,
                        "machine": description.device,
                        "job": job,
                        "visit": visit,
                        "batch": cell.batch,
                        "target_history": cell.history,
                        "kv_bytes": cell.batch * history * description.kv_bytes_per_token,
                        "weight_bytes": description.weight_bytes,
                        "step_ms": step_ms,
                        "other_cores": other_cores,
                    }
                )
    return pd.DataFrame(rows).sort_values("job", kind="stable", ignore_index=True)


def summaries(samples: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(backend, dtype) -> its cells."""
    return {key: summary(of_engine) for key, of_engine in samples.groupby(["backend", "dtype"], sort=False)}


def step_table(samples: pd.DataFrame) -> Table:
    """Median step of each engine in each cell; with two engines also the first one's time over the second's."""
    cells = summaries(samples)
    table = Table(title="one decode step, ms: median (quartiles)")
    backends = list(samples.backend.unique())
    for column in ("dtype", "batch", "history", *backends, *(["ratio"] if len(backends) > 1 else [])):
        table.add_column(column, justify="right")
    for dtype in samples.dtype.unique():
        columns = [cells[backend, dtype] for backend in backends]
        for rows in zip(*(column.itertuples() for column in columns), strict=True):
            times = [f"{row.step_ms:.1f} ({row.q25_ms:.1f} to {row.q75_ms:.1f})" for row in rows]
            ratio = [f"{rows[0].step_ms / rows[1].step_ms:.2f}"] if len(rows) > 1 else []
            table.add_row(dtype, str(rows[0].batch), str(rows[0].history), *times, *ratio)
    return table


def rate_table(samples: pd.DataFrame, *bandwidths: MeasuredBandwidth) -> Table:
    """What each engine's batch-1 line says of its weight and KV rates, in GB/s and as shares of the bandwidth."""
    ceiling = mean(bandwidth.gb_per_s for bandwidth in bandwidths)
    table = Table(title=f"batch-1 line, and its rates against {ceiling:.1f} GB/s measured")
    for column in ("engine", "dtype", "fixed ms", "ms/GB of KV", "weights GB/s", "share", "KV GB/s", "share"):
        table.add_column(column, justify="right")
    for (backend, dtype), cells in summaries(samples).items():
        fit = fit_steps(cells[cells.batch == 1])
        weights, kv = fit.weight_rate_gb_per_s(int(cells.weight_bytes.iloc[0])), fit.kv_rate_gb_per_s
        table.add_row(
            backend,
            dtype,
            f"{fit.intercept_ms:.1f}",
            f"{fit.slope_ms_per_gb:.1f}",
            f"{weights:.1f}",
            f"{weights / ceiling:.0%}",
            f"{kv:.1f}",
            f"{kv / ceiling:.0%}",
        )
    return table
