"""The engine's own scheduler under a clock that the price model turns: what a workload costs, without running it."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.costmodel.simulation import STEP_COLUMNS, Simulation
from nanoengine.costmodel.step_clock import StepClock, StepTime
from nanoengine.costmodel.workload import checked_workload
from nanoengine.engine.block_manager import BlockManager
from nanoengine.engine.scheduler import Scheduler, Step
from nanoengine.engine.sequence import SamplingParams, Sequence
from nanoengine.errors import NanoengineError


@dataclass(frozen=True)
class EngineSettings:
    """How the simulated engine is set up; the defaults are those of `LLM` where it has them.

    kv_pool_gb: room for KV (1e9 B); None takes what the weights leave of the memory but for `reserve`, a share of it.
    max_model_len: None takes the model's context.
    """

    kv_pool_gb: float | None = None
    reserve: float = 0.1
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None

    def num_blocks(self, model: ModelSpec, device: DeviceSpec) -> int:
        """Blocks of the pool; raises NanoengineError where not one fits, or the memory size is not known."""
        pool_bytes = None if self.kv_pool_gb is None else self.kv_pool_gb * 1e9
        if pool_bytes is None:
            if device.memory_gb is None:
                raise NanoengineError(f"The memory size of {device.name} is not known; give kv_pool_gb.")
            pool_bytes = device.memory_gb * 1e9 * (1 - self.reserve) - model.stored_bytes
        blocks = int(pool_bytes // (self.block_size * model.kv_bytes_per_token))
        if blocks < 1:
            raise NanoengineError(
                f"{model.name} in {model.weight_dtype} ({model.stored_bytes / 1e9:.1f} GB) leaves no room for KV on "
                f"{device.name}; take a narrower dtype, more cards, or a larger pool."
            )
        return blocks


def simulate(
    workload: pd.DataFrame,
    model: ModelSpec,
    device: DeviceSpec,
    settings: EngineSettings | None = None,
    efficiency: float = 1.0,
    compute_efficiency: float = 1.0,
    overhead_ms: float = 0.0,
    leap: bool = True,
) -> Simulation:
    """Serve `workload` (arrival_s, prompt_tokens, output_tokens; see costmodel.workload) with nanoengine's scheduler.

    Each step that the scheduler chooses takes the time that `StepClock` prices it at. With the defaults no parameter
    is fitted: full bandwidth, full rate, no overhead, so the result is a floor for this schedule. efficiency and
    compute_efficiency scale bandwidth and rate, overhead_ms is added to each step. `leap` passes over runs of steps
    that differ only in the length of their histories at once; the result is the same, sooner. Chapter 12.
    """
    settings = settings or EngineSettings()
    workload = checked_workload(workload)
    blocks = BlockManager(settings.num_blocks(model, device), settings.block_size)
    scheduler = Scheduler(
        blocks,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        min(settings.max_model_len or model.max_context, model.max_context),
    )
    clock = StepClock(model, device, efficiency, compute_efficiency, overhead_ms)
    return _Run(workload, scheduler, clock, leap).to_the_end()


class _Run:
    """One simulation on its way. Times in ms since the start."""

    def __init__(self, workload: pd.DataFrame, scheduler: Scheduler, clock: StepClock, leap: bool):
        self.workload, self.scheduler, self.clock, self.leap = workload, scheduler, clock, leap
        self.arrivals = deque(
            zip(workload.index, workload.arrival_s * 1e3, workload.prompt_tokens, workload.output_tokens, strict=True)
        )
        self.now = 0.0
        self.rows: list[np.ndarray] = []
        self.gaps: list[tuple[float, int]] = []  # milliseconds between a request's tokens, and how many such
        n = len(workload)
        self.admitted, self.first, self.end = (np.full(n, np.nan) for _ in range(3))
        self.preemptions = np.zeros(n, dtype=int)
        self.reached = {}  # tokens computed before a preemption took them
        self.prompting: set[int] = set()  # requests whose prompt, or what preemption took, is not computed yet
        self.stalled = {}  # when a preempted request got its last token

    def to_the_end(self) -> Simulation:
        while self.arrivals or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, self.arrivals[0][1])
            while self.arrivals and self.arrivals[0][1] <= self.now:
                self._admit(*self.arrivals.popleft())
            self._step()
            if self.leap:
                self._leap()
        return Simulation(self._requests(), self._steps(), self._gap_table(), self.scheduler.blocks.num_blocks)

    def _admit(self, seq_id: int, _arrival_ms: float, prompt_tokens: int, output_tokens: int) -> None:
        params = SamplingParams(max_tokens=int(output_tokens), ignore_eos=True)
        self.scheduler.add(Sequence(seq_id, [0] * int(prompt_tokens), params))

    def _step(self) -> None:
        step = self.scheduler.schedule()
        for victim in step.preempted:
            self._note_preemption(victim)
        time, recomputed, prompt_tokens = self._price(step)
        start, self.now = self.now, self.now + float(time.total_ms)
        recompute_ms = time.prefill_ms * recomputed / prompt_tokens if prompt_tokens else 0.0
        for chunk in step.prefills:
            seq_id = chunk.seq.seq_id
            if np.isnan(self.admitted[seq_id]):
                self.admitted[seq_id] = start
            end = chunk.seq.num_computed_tokens + chunk.num_tokens
            self.reached[seq_id] = max(self.reached.get(seq_id, 0), end)
            self.prompting.add(seq_id)
        # A prompt's last token alone is scheduled like a decode, but what it yields is the first token.
        ended = {chunk.seq.seq_id for chunk in step.chunks if chunk.samples} & self.prompting
        for seq_id in ended:
            if np.isnan(self.first[seq_id]):
                self.first[seq_id] = self.now
            else:
                self.gaps.append((self.now - self.stalled.pop(seq_id), 1))
        steady = len(step.decodes) - sum(chunk.seq.seq_id in ended for chunk in step.decodes if ended)
        if steady:
            self.gaps.append((self.now - start, steady))
        self.prompting -= ended
        used = self.scheduler.blocks.num_blocks - self.scheduler.blocks.num_free_blocks
        self.scheduler.update(step, {chunk.seq.seq_id: 0 for chunk in step.chunks if chunk.samples})
        for seq in step.finished:
            self.end[seq.seq_id] = self.now
        self._record(start, time, recompute_ms, len(step.decodes), prompt_tokens, recomputed, used)

    def _price(self, step: Step) -> tuple[StepTime, int, int]:
        lengths = [len(chunk.seq) for chunk in step.decodes]
        spans = [(c.seq.num_computed_tokens, c.seq.num_computed_tokens + c.num_tokens) for c in step.prefills]
        sampling = sum(chunk.samples for chunk in step.prefills)
        recomputed = sum(
            max(0, min(end, self.reached.get(chunk.seq.seq_id, 0)) - start)
            for chunk, (start, end) in zip(step.prefills, spans, strict=True)
        )
        time = self.clock.price(len(lengths), self._layer_tokens(lengths), spans, sampling)
        return time, recomputed, sum(end - start for start, end in spans)

    def _layer_tokens(self, lengths: list[int], ahead: np.ndarray | int = 0) -> float | np.ndarray:
        """Attended tokens over layers and requests, each request `ahead` tokens longer than now."""
        model = self.clock.model
        if not model.windows:
            return model.layers * (sum(lengths) + len(lengths) * ahead)
        return model.layer_tokens(np.add.outer(np.asarray(lengths, dtype=float), ahead)).sum(axis=0)

    def _note_preemption(self, victim: Sequence) -> None:
        self.preemptions[victim.seq_id] += 1
        self.prompting.add(victim.seq_id)
        if len(victim) > victim.num_prompt_tokens:
            self.reached[victim.seq_id] = len(victim) - 1
            self.stalled.setdefault(victim.seq_id, self.now)

    def _leap(self) -> None:
        """Pass over the steps in which nobody comes, goes or lacks a block: all decode, and only lengths change."""
        running = list(self.scheduler.running.values())
        queue_moves = self.scheduler.waiting and len(running) < self.scheduler.max_num_seqs
        if not running or queue_moves or self.prompting or any(seq.num_pending_tokens != 1 for seq in running):
            return
        lengths = [len(seq) for seq in running]
        room = self.scheduler.max_model_len
        left = min(
            min(seq.params.max_tokens - (length - seq.num_prompt_tokens), room - length)
            for seq, length in zip(running, lengths, strict=True)
        )
        steps = self._within_pool(running, lengths, left - 1)  # the step that ends a request is scheduled as usual
        if steps < 2:
            return
        time = self.clock.price(len(running), self._layer_tokens(lengths, np.arange(steps)))
        total = np.broadcast_to(time.total_ms, steps)
        ends = self.now + np.cumsum(total)
        starts = ends - total
        if self.arrivals:
            steps = int(np.searchsorted(starts, self.arrivals[0][1]))
        if steps < 1:
            return
        for seq, length in zip(running, lengths, strict=True):
            seq.token_ids.extend([0] * steps)
            seq.num_computed_tokens += steps
            self.scheduler.blocks.reserve(seq, length + steps - 1)
        used = self._blocks_over_time(lengths, steps)
        time = StepTime(*(np.broadcast_to(part, total.shape)[:steps] for part in time))
        self.gaps += [(gap, len(running)) for gap in total[:steps].tolist()]
        self._record(starts[:steps], time, 0.0, len(running), 0, 0, used)
        self.now = float(ends[steps - 1])

    def _within_pool(self, running: list[Sequence], lengths: list[int], steps: int) -> int:
        blocks = self.scheduler.blocks
        owned = sum(len(seq.block_table) for seq in running)

        def fits(n: int) -> bool:
            return sum(blocks.blocks_for(length + n - 1) for length in lengths) - owned <= blocks.num_free_blocks

        while steps > 1 and not fits(steps):
            steps //= 2
        return steps

    def _blocks_over_time(self, lengths: list[int], steps: int) -> np.ndarray:
        size = self.scheduler.blocks.block_size
        return (-(-np.add.outer(lengths, np.arange(steps)) // size)).sum(axis=0)

    def _record(self, start, time: StepTime, recompute_ms, decodes, prompt_tokens, recomputed, used) -> None:
        columns = (
            start,
            time.weight_ms,
            time.kv_ms,
            time.arithmetic_ms,
            time.prefill_ms - recompute_ms,
            recompute_ms,
            time.overhead_ms,
            decodes,
            prompt_tokens,
            recomputed,
            used,
            len(self.scheduler.waiting),
        )
        self.rows.append(np.stack(np.broadcast_arrays(*np.atleast_1d(*columns)), axis=-1))

    def _requests(self) -> pd.DataFrame:
        arrival = self.workload.arrival_s
        table = self.workload.assign(
            queue_ms=self.admitted - arrival * 1e3,
            ttft_ms=self.first - arrival * 1e3,
            itl_ms=(self.end - self.first) / (self.workload.output_tokens - 1).replace(0, np.nan),
            e2e_s=self.end / 1e3 - arrival,
            end_s=self.end / 1e3,
            preemptions=self.preemptions,
        )
        table.index.name = "request"
        return table

    def _steps(self) -> pd.DataFrame:
        table = pd.DataFrame(np.concatenate(self.rows), columns=STEP_COLUMNS)
        counts = ["decodes", "prompt_tokens", "recomputed_tokens", "used_blocks", "waiting"]
        return table.astype(dict.fromkeys(counts, int))

    def _gap_table(self) -> pd.DataFrame:
        return pd.DataFrame(self.gaps, columns=["itl_ms", "tokens"])
