"""A record of what the scheduler did and why, as tables. Pure Python and pandas: the simulator shares it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd

from nanoengine.engine.sequence import Sequence

if TYPE_CHECKING:
    from nanoengine.engine.scheduler import Chunk, Scheduler, Step


class Trace:
    """Watches a scheduler from its creation until `close`, or for a `with` block.

        with llm.trace() as trace:
            llm.generate(prompts)
        trace.steps()   # one row per step
        trace.events()  # one row per thing that happened to a request
        trace.blocks()  # one row per stay of a block in a request's table

    `clock` returns seconds and times the steps; a simulator passes its own.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.perf_counter):
        self._scheduler = scheduler
        self._clock = clock
        self._steps: list[dict] = []
        self._events: list[dict] = []
        self._tables: dict[int, list[int]] = {seq.seq_id: seq.block_table[:] for seq in scheduler.running.values()}
        self._num_evictions = scheduler.blocks.num_evictions
        scheduler.trace = self

    def close(self) -> None:
        """Stop recording; what was recorded stays."""
        if self._scheduler.trace is self:
            self._scheduler.trace = None

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    # What the scheduler calls

    def scheduled(self, step: Step) -> None:
        """Right after `step` was chosen, before it runs."""
        scheduler, blocks = self._scheduler, self._scheduler.blocks
        for victim in step.preempted:
            self._add(victim, "preempt", "no block for the next token of an older request")
        admitted = {seq.seq_id for seq in step.admitted}
        recomputed_tokens = 0
        for chunk in step.chunks:
            seq = chunk.seq
            if seq.seq_id in admitted:
                reason = "computed again after preemption" if seq.num_preemptions else "left the queue"
                self._add(seq, "admit", reason, cached_tokens=seq.num_computed_tokens)
            recomputed_tokens += self._add_chunk(chunk, "decode" if chunk in step.decodes else "prefill")
        self._steps.append(
            {
                "step": len(self._steps),
                "start_s": self._clock(),
                "step_ms": float("nan"),
                "decode_tokens": len(step.decodes),
                "prefill_tokens": step.num_tokens - len(step.decodes),
                "recomputed_tokens": recomputed_tokens,
                "cached_tokens": sum(seq.num_computed_tokens for seq in step.admitted),
                "admitted": len(step.admitted),
                "preempted": len(step.preempted),
                "finished": 0,
                "running": len(scheduler.running),
                "waiting": len(scheduler.waiting),
                "held_back": step.held_back,
                "used_blocks": blocks.num_used_blocks,
                "cached_blocks": blocks.num_cached_blocks,
                "free_blocks": blocks.num_free_blocks,
                "evicted_blocks": blocks.num_evictions - self._num_evictions,
            }
        )
        self._num_evictions = blocks.num_evictions

    def ran(self, step: Step) -> None:
        """Right after the tokens of `step` were recorded."""
        row = self._steps[-1]
        row["step_ms"] = (self._clock() - row["start_s"]) * 1e3
        row["finished"] = len(step.finished)
        for seq in step.finished:
            self._add(seq, "finish", seq.finish_reason, step=row["step"])

    def ended(self, seq: Sequence) -> None:
        """A request ended by other means than a step: aborted, or stopped by its text."""
        self._add(seq, "finish", seq.finish_reason, step=max(0, len(self._steps) - 1))

    # What the reader calls

    def steps(self) -> pd.DataFrame:
        """One row per step: tokens by kind, the queue, the pool at its start, how long it took (`step_ms`).

        `recomputed_tokens` had been computed before and were lost to a preemption; `cached_tokens` were found in the
        cache by requests that this step admitted; `held_back` says why the head of the queue had to wait, see Step.
        """
        table = pd.DataFrame(self._steps)
        if len(table):
            table["start_s"] -= table["start_s"].iloc[0]
        return table

    def events(self) -> pd.DataFrame:
        """One row per event: admit, prefill, decode, preempt or finish, with its reason and the block table after it.

        `tokens` are computed by a prefill or decode, from position `start_token` on. `blocks_gained` and
        `blocks_lost` are what changed in the request's table since its event before.
        """
        return pd.DataFrame(self._events)

    def blocks(self) -> pd.DataFrame:
        """One row per stay of a block in a request's table: `block`, `seq_id`, `first_step` to `last_step` included.

        A block that is shared has overlapping rows. Those still held at the last step end there.
        """
        open_stays: dict[tuple[int, int], int] = {}
        rows = []

        def close(key: tuple[int, int], last_step: int) -> None:
            rows.append((*key, open_stays.pop(key), last_step))

        for event in self._events:
            for block in event["blocks_lost"]:
                # A preempted request lost its blocks before its step ran, a finished one after.
                last_step = event["step"] - (event["event"] == "preempt")
                if (block, event["seq_id"]) in open_stays:
                    close((block, event["seq_id"]), last_step)
            for block in event["blocks_gained"]:
                open_stays[block, event["seq_id"]] = event["step"]
        for key in list(open_stays):
            close(key, len(self._steps) - 1)
        table = pd.DataFrame(rows, columns=["block", "seq_id", "first_step", "last_step"])
        return table.sort_values(["block", "first_step"], ignore_index=True)

    def _add_chunk(self, chunk: Chunk, kind: str) -> int:
        seq, start = chunk.seq, chunk.seq.num_computed_tokens
        end = start + chunk.num_tokens
        recomputed_tokens = max(0, min(end, seq.num_lost_tokens) - start)
        if kind == "decode":
            reason = "its next token"
        elif end < len(seq):
            reason = "as much as the token budget left"
        else:
            reason = "the rest of its tokens"
        self._add(seq, kind, reason, tokens=chunk.num_tokens, start_token=start, recomputed_tokens=recomputed_tokens)
        return recomputed_tokens

    def _add(self, seq: Sequence, event: str, reason: str, step: int | None = None, **numbers) -> None:
        before, after = self._tables.get(seq.seq_id, []), seq.block_table[:]
        self._tables[seq.seq_id] = after
        kept = len(after) if before[: len(after)] == after else len(before) if after[: len(before)] == before else 0
        row = {
            "step": len(self._steps) if step is None else step,
            "seq_id": seq.seq_id,
            "event": event,
            "reason": reason,
            "tokens": 0,
            "start_token": seq.num_computed_tokens,
            "cached_tokens": 0,
            "recomputed_tokens": 0,
            "blocks_gained": tuple(after[kept:]),
            "blocks_lost": tuple(before[kept:]),
            "block_table": tuple(after),
        }
        self._events.append(row | numbers)
