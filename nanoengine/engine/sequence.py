"""A request: its tokens, how it is sampled, and how far its KV cache reaches."""

import math
from dataclasses import dataclass
from enum import Enum

from nanoengine.errors import NanoengineError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends.

    `temperature` 0 takes the most likely token (greedy). `top_k` 0 and `top_p` 1.0 switch those filters off.
    `seed` makes a sampled request repeatable whatever shares its batch. Raises NanoengineError on values that
    have no meaning.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 128
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self):
        checks = [
            (
                math.isfinite(self.temperature) and self.temperature >= 0,
                "temperature",
                "0 (greedy) or a positive number",
            ),
            (self.top_k >= 0, "top_k", "0 (off) or a positive number"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1"),
            (self.max_tokens >= 1, "max_tokens", "at least 1"),
        ]
        for holds, name, meaning in checks:
            if not holds:
                raise NanoengineError(f"{name} is {getattr(self, name)}, but must be {meaning}.")


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One request on its way through the engine.

    The KV cache holds the first `num_computed_tokens` tokens; the rest of `token_ids` is pending. A prompt arrives
    with everything pending (prefill). Afterwards exactly one token is pending, the newest one: that is decode.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "eos_token_ids",
        "finish_reason",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_lost_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "params",
        "seq_id",
        "shareable",
        "status",
        "token_ids",
    )

    def __init__(self, seq_id: int, prompt_token_ids: list[int], params: SamplingParams, eos_token_ids=frozenset()):
        if not prompt_token_ids:
            raise NanoengineError("The prompt is empty; give it at least one token.")
        self.seq_id = seq_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # of its first full blocks, kept by the block manager
        self.shareable = True  # false where the KV is made up and must not serve anybody else
        self.status = Status.WAITING
        self.finish_reason: str | None = None
        self.num_preemptions = 0
        self.num_cached_tokens = 0  # of its prompt, found in the cache when it first was admitted
        self.num_lost_tokens = 0  # how many had been computed when it was preempted: computing them again is waste

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Sequence({self.seq_id}, {self.status.value}, {self.num_computed_tokens}/{len(self)} tokens computed)"

    @property
    def num_pending_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def append(self, token_id: int, max_model_len: int) -> None:
        """Take the token that a step sampled; sets `finish_reason` when it was the last one."""
        self.token_ids.append(token_id)
        if token_id in self.eos_token_ids or token_id in self.params.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self) - self.num_prompt_tokens >= self.params.max_tokens or len(self) >= max_model_len:
            self.finish_reason = "length"
