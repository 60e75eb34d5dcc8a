"""Which sequences run in the next step, and with how many tokens. Pure Python: the simulator runs it too."""

from collections import deque
from dataclasses import dataclass, field

from nanoengine.engine.block_manager import BlockManager
from nanoengine.engine.sequence import Sequence, Status
from nanoengine.errors import NanoengineError


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` pending tokens of one sequence."""

    seq: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the sequence's end, so that its last row predicts a new token."""
        return self.num_tokens == self.seq.num_pending_tokens


@dataclass(slots=True)
class Step:
    """One forward pass: first the decodes, one token each, then chunks of prompts.

    `admitted` lists who left the queue in it, `preempted` who lost their blocks to make it possible, and `held_back`
    says why the head of the queue had to wait: "max_num_seqs", "max_num_batched_tokens", "blocks" or "preemption".
    After the step ran, `sampled` maps seq_id to the new token and `finished` lists the sequences that it ended.
    """

    decodes: list[Chunk] = field(default_factory=list)
    prefills: list[Chunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    held_back: str | None = None
    sampled: dict[int, int] = field(default_factory=dict)
    finished: list[Sequence] = field(default_factory=list)

    @property
    def chunks(self) -> list[Chunk]:
        return self.decodes + self.prefills

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.prefills)


class Scheduler:
    """Continuous batching under a token budget and a limited pool of KV blocks.

    Each step serves the running sequences first, so that arriving prompts never starve a decode, and fills what is
    left of the budget with prompts, cut into chunks where they do not fit. A prompt is admitted when the pool holds
    all of it; what the cache has of it is not computed again. When a decode finds no block, the youngest running
    sequence gives up its own and is computed again later; the oldest therefore always advances, and every request
    ends.
    """

    def __init__(self, blocks: BlockManager, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int):
        if max_num_batched_tokens < max_num_seqs:
            raise NanoengineError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "so that every running sequence can decode in every step."
            )
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}  # by seq_id, oldest first
        self.trace = None  # a nanoengine.engine.trace.Trace while somebody records the steps

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; raises NanoengineError for one that could never run to its end."""
        if len(seq) >= self.max_model_len:
            raise NanoengineError(
                f"The prompt has {len(seq)} tokens, but the context holds {self.max_model_len} with at least one "
                "generated token; shorten the prompt or raise max_model_len."
            )
        longest = min(len(seq) + seq.params.max_tokens, self.max_model_len)
        needed = self.blocks.blocks_for(longest)
        if needed > self.blocks.num_blocks:
            raise NanoengineError(
                f"The request may grow to {longest} tokens, {needed} KV blocks of {self.blocks.block_size}, but the "
                f"pool has {self.blocks.num_blocks}; lower max_tokens or raise num_kv_blocks."
            )
        self.waiting.append(seq)

    def admit_computed(self, seq: Sequence, num_computed_tokens: int) -> None:
        """Start a sequence whose first `num_computed_tokens` tokens are taken to be in the cache already.

        For measurements: a history that was never prefilled. Raises NanoengineError when the pool is too full.
        """
        if len(self.running) >= self.max_num_seqs:
            raise NanoengineError(f"All {self.max_num_seqs} places are taken; raise max_num_seqs.")
        if len(seq) > self.max_model_len:
            raise NanoengineError(f"A history of {len(seq)} tokens exceeds the context of {self.max_model_len}.")
        if not self.blocks.can_hold(seq, len(seq)):
            raise NanoengineError(
                f"A history of {len(seq)} tokens needs {self.blocks.blocks_for(len(seq))} KV blocks, but only "
                f"{self.blocks.num_available_blocks} are free; raise num_kv_blocks or measure a smaller cell."
            )
        seq.shareable = False
        self.blocks.reserve(seq, len(seq))
        seq.num_computed_tokens = num_computed_tokens
        self._start(seq)

    def schedule(self) -> Step:
        """Choose the next step and reserve the KV slots that it writes."""
        step = Step()
        running = list(self.running.values())
        for seq in running:
            if seq.num_pending_tokens == 1 and self._make_room(seq, step):
                step.decodes.append(Chunk(seq, 1))
        budget = self.max_num_batched_tokens - len(step.decodes)
        for seq in running:
            if seq.num_pending_tokens > 1 and seq.status is Status.RUNNING and budget > 0:
                budget -= self._prefill(seq, budget, step)
        while self.waiting:
            prefix = self.blocks.cached_prefix(self.waiting[0])
            step.held_back = self._reason_to_wait(prefix, budget, step)
            if step.held_back:
                break
            seq = self.waiting.popleft()
            self.blocks.admit(seq, prefix)
            if not seq.num_preemptions:
                seq.num_cached_tokens = seq.num_computed_tokens
            self._start(seq)
            step.admitted.append(seq)
            budget -= self._prefill(seq, budget, step)
        if self.trace:
            self.trace.scheduled(step)
        return step

    def update(self, step: Step, sampled: dict[int, int]) -> None:
        """Record that `step` ran: `sampled` maps the seq_id of each chunk that samples to its new token."""
        step.sampled = sampled
        for chunk in step.chunks:
            seq, samples = chunk.seq, chunk.samples
            if seq.status is not Status.RUNNING:  # aborted while the step ran
                continue
            num_tokens_before = seq.num_computed_tokens
            seq.num_computed_tokens += chunk.num_tokens
            self.blocks.share(seq, num_tokens_before)
            if samples:
                seq.append(sampled[seq.seq_id], self.max_model_len)
            if seq.finish_reason:
                self._finish(seq)
                step.finished.append(seq)
        if self.trace:
            self.trace.ran(step)

    def finish(self, seq: Sequence, reason: str) -> None:
        """End a sequence wherever it is and take its blocks back; one that has finished stays as it is."""
        if seq.status is Status.FINISHED:
            return
        if seq.status is Status.WAITING:
            self.waiting.remove(seq)
        seq.finish_reason = reason
        self._finish(seq)
        if self.trace:
            self.trace.ended(seq)

    def abort(self, seq: Sequence) -> None:
        """End a sequence that nobody wants any more."""
        self.finish(seq, "abort")

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def _reason_to_wait(self, prefix: list[int], budget: int, step: Step) -> str | None:
        """Why the head of the queue cannot start in this step, or None if it can."""
        if step.preempted:  # no room to give away: the victim would be the first to come back
            return "preemption"
        if len(self.running) >= self.max_num_seqs:
            return "max_num_seqs"
        if budget <= 0:
            return "max_num_batched_tokens"
        return None if self.blocks.can_admit(self.waiting[0], prefix) else "blocks"

    def _prefill(self, seq: Sequence, budget: int, step: Step) -> int:
        chunk = Chunk(seq, min(seq.num_pending_tokens, budget))
        step.prefills.append(chunk)
        return chunk.num_tokens

    def _make_room(self, seq: Sequence, step: Step) -> bool:
        """Reserve the slot of the pending token of `seq`, preempting younger ones if need be."""
        while seq.status is Status.RUNNING and not self.blocks.can_hold(seq, len(seq)):
            self._preempt_youngest(step)
        if seq.status is not Status.RUNNING:
            return False
        self.blocks.reserve(seq, len(seq))
        return True

    def _preempt_youngest(self, step: Step) -> None:
        # Sequences are served oldest first, so the youngest has not been put into this step yet.
        _, victim = self.running.popitem()
        victim.num_lost_tokens = max(victim.num_lost_tokens, victim.num_computed_tokens)
        self.blocks.release(victim)
        victim.status = Status.WAITING
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        step.preempted.append(victim)

    def _start(self, seq: Sequence) -> None:
        seq.status = Status.RUNNING
        self.running[seq.seq_id] = seq

    def _finish(self, seq: Sequence) -> None:
        seq.status = Status.FINISHED
        self.running.pop(seq.seq_id, None)
        self.blocks.release(seq)
