"""Times a grid of decode steps on one engine, in an order that drift cannot bend, and keeps every sample."""

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from nanoengine.errors import NanoengineError
from nanoengine.extras import need
from nanoengine.sweep.backends import Backend, Description
from nanoengine.sweep.bandwidth import MeasuredBandwidth, measure_bandwidth
from nanoengine.sweep.card import CostCard
from nanoengine.sweep.grid import Visit, as_cells, scale_down, visit_order
from nanoengine.sweep.load import OtherLoad
from nanoengine.sweep.machine import this_machine
from nanoengine.sweep.store import COLUMNS, SampleStore
from nanoengine.sweep.summary import drift, mark_outliers, summary

__all__ = ["drift", "measure_visit", "run_sweep", "summary"]

Clock = Callable[[], float]


def run_sweep(
    backend: Backend,
    grid: str | Iterable[tuple[int, int]] = "quick",
    out: str | Path | None = None,
    *,
    samples_per_visit: int = 5,
    visits: int = 3,
    warmup: int = 2,
    seed: int = 0,
    progress: bool = True,
    budget_s: float | None = None,
    bandwidth: MeasuredBandwidth | None = None,
    clock: Clock = time.perf_counter,
) -> pd.DataFrame:
    """Time every cell of `grid` in `visits` visits of `samples_per_visit` steps each, after `warmup` steps.

    backend: an engine with its model, or an LLM. grid: see `grid.as_cells`.
    out: a CSV file that gets each visit's samples as they come. When it exists with samples of the same engine,
      model and machine, visits that it holds are not run again, so a killed sweep goes on where it stopped.
    progress: print a cost card, then show a bar. budget_s: after this many seconds only the first cell is measured
      once more. bandwidth: for the card; measured when absent. clock: seconds.

    Returns the samples, also those of earlier runs into `out`: columns of store.COLUMNS, and those of mark_outliers.
    `history` is what a sample really attended to, since it grows by one token a step. Raises NanoengineError for bad
    input.
    """
    if samples_per_visit < 1 or warmup < 0:
        raise NanoengineError("A visit needs at least 1 sample and cannot have fewer than 0 warm-up steps.")
    if hasattr(backend, "start_decode"):
        from nanoengine.sweep.backends.nanoengine import NanoengineBackend

        backend = NanoengineBackend(llm=backend)
    description = backend.describe()
    cells, note = scale_down(
        as_cells(grid),
        samples_per_visit,
        description.max_context,
        description.kv_capacity_tokens,
        description.kv_block_tokens,
    )
    identity = _identity(description)
    with closing(SampleStore(out, identity) if out is not None else _Unkept()) as store:
        if progress:
            need("tqdm", "engine")
            bandwidth = bandwidth or measure_bandwidth(description.device, description.threads or None)
            print(CostCard(description, cells, bandwidth, note), flush=True)
        recorder = _Recorder(backend, description, identity, store, samples_per_visit, warmup, clock)
        whole_plan = list(visit_order(cells, visits, seed))
        plan = [visit for visit in whole_plan if recorder.missing(visit)]
        done = len(whole_plan) - len(plan)
        if progress and done:
            print(f"{out} already holds {done} of {len(whole_plan)} visits, which are not run again.", flush=True)
        _run(plan, recorder, progress, budget_s, clock)
        return mark_outliers(recorder.frame())


def measure_visit(
    backend: Backend, batch: int, history: int, samples: int, warmup: int = 2, clock: Clock = time.perf_counter
) -> list[tuple[int, float]]:
    """Time `samples` steps of one cell: (history, step_ms) of each, the first at `history` where warm-up allows."""
    timed = []
    _time_steps(backend, batch, history, samples, warmup, clock, timed)
    return timed


def _time_steps(
    backend: Backend, batch: int, history: int, samples: int, warmup: int, clock: Clock, timed: list
) -> None:
    start = max(1, history - warmup)
    backend.prepare(batch, start)
    for _ in range(warmup):
        backend.step()
    enabled = gc.isenabled()
    gc.disable()  # a collection inside a step would be counted as the step's
    try:
        for i in range(samples):
            begin = clock()
            backend.step()
            timed.append((start + warmup + i, (clock() - begin) * 1e3))
    finally:
        if enabled:
            gc.enable()


class _Unkept:
    """Where samples go when no file is asked for."""

    samples = pd.DataFrame({column: pd.Series(dtype=kind) for column, (kind, _) in COLUMNS.items()})

    def append(self, rows: list[dict]) -> None: ...

    def close(self) -> None: ...


class _Recorder:
    """Runs visits, turns their steps into rows, hands them to the store."""

    def __init__(
        self,
        backend: Backend,
        description: Description,
        identity: dict,
        store: SampleStore | _Unkept,
        samples_per_visit: int,
        warmup: int,
        clock: Clock,
    ):
        self.backend, self.description, self.store = backend, description, store
        self.samples_per_visit, self.warmup, self.clock = samples_per_visit, warmup, clock
        self.rows: list[dict] = []
        earlier = store.samples
        self._next_order = int(earlier.order.max()) + 1 if len(earlier) else 0
        self._identity = identity
        self._sweep_id = earlier.sweep_id.iloc[0] if len(earlier) else datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._kept = earlier.groupby(["batch", "target_history", "visit"]).size().to_dict()

    def missing(self, visit: Visit) -> int:
        """How many samples of the visit are still to be taken."""
        return max(0, self.samples_per_visit - self._kept.get((*visit.cell, visit.visit), 0))

    def run(self, visit: Visit) -> list[float]:
        """Take the missing samples; returns their step_ms. What was timed is kept even when a step fails."""
        cell, missing = visit.cell, self.missing(visit)
        first_sample = self.samples_per_visit - missing
        # A history at the model's context begins earlier, so that all its steps fit.
        first_history = min(cell.history, self.description.max_context - self.samples_per_visit)
        timed: list[tuple[int, float]] = []
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        load = OtherLoad()
        try:
            _time_steps(self.backend, cell.batch, first_history + first_sample, missing, self.warmup, self.clock, timed)
        finally:
            self._keep(visit, first_sample, timed, started_at, load.cores())
        return [step_ms for _, step_ms in timed]

    def frame(self) -> pd.DataFrame:
        new = pd.DataFrame(self.rows, columns=list(COLUMNS)).astype({c: kind for c, (kind, _) in COLUMNS.items()})
        return pd.concat([self.store.samples, new], ignore_index=True) if len(self.store.samples) else new

    def _keep(
        self, visit: Visit, first_sample: int, timed: list[tuple[int, float]], started_at: str, other_cores: float
    ) -> None:
        if not timed:
            return
        cell, d = visit.cell, self.description
        rows = [
            self._identity
            | {
                "sweep_id": self._sweep_id,
                "order": self._next_order,
                "visit": visit.visit,
                "sample": first_sample + i,
                "batch": cell.batch,
                "target_history": cell.history,
                "history": history,
                "kv_bytes": cell.batch * history * d.kv_bytes_per_token,
                "step_ms": step_ms,
                "other_cores": other_cores,
                "started_at": started_at,
            }
            for i, (history, step_ms) in enumerate(timed)
        ]
        self._next_order += 1
        self.rows += rows
        self.store.append(rows)


def _run(plan: list[Visit], recorder: _Recorder, progress: bool, budget_s: float | None, clock: Clock) -> None:
    begin = clock()
    bar = None
    if progress:
        from tqdm.auto import tqdm

        bar = tqdm(total=len(plan), desc="visits", unit="visit")
    try:
        for number, visit in enumerate(plan):
            is_last = number == len(plan) - 1
            if budget_s is not None and clock() - begin > budget_s and not is_last:
                if bar is not None:
                    bar.set_postfix_str(f"budget of {budget_s:g} s spent", refresh=False)
                continue
            step_ms = sorted(recorder.run(visit))
            if bar is not None:
                bar.set_postfix_str(f"{visit.cell}: {step_ms[len(step_ms) // 2]:.1f} ms", refresh=False)
                bar.update()
    finally:
        if bar is not None:
            bar.close()


def _identity(description: Description) -> dict:
    machine = this_machine()
    return {
        "backend": description.backend,
        "model": description.model,
        "dtype": description.dtype,
        "threads": description.threads,
        "device": description.device,
        "weight_bytes": description.weight_bytes,
        "kv_bytes_per_token": description.kv_bytes_per_token,
        "machine": machine.label(description.device),
        "versions": machine.versions,
    }
