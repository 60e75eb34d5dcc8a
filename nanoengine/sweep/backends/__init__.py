"""Engines that a sweep can time. One file each; an engine that is not installed costs nothing."""

import importlib
from dataclasses import dataclass
from typing import Protocol

from nanoengine.errors import NanoengineError

NAMES = {
    "nanoengine": "nanoengine.sweep.backends.nanoengine:NanoengineBackend",
    "transformers": "nanoengine.sweep.backends.transformers:TransformersBackend",
}


@dataclass(frozen=True)
class Description:
    """What a backend runs. Every row of a sweep carries the first seven; the rest says which cells fit.

    weight_bytes: read by one decode step, as loaded. kv_bytes_per_token: as stored. threads: 0 on a GPU.
    kv_capacity_tokens: KV that memory holds, over all requests, handed out in pieces of kv_block_tokens.
    """

    backend: str
    model: str
    dtype: str
    threads: int
    device: str
    weight_bytes: int
    kv_bytes_per_token: int
    max_context: int
    kv_capacity_tokens: int
    kv_block_tokens: int = 1


class Backend(Protocol):
    """An engine with a model loaded. `close` frees it."""

    name: str

    def describe(self) -> Description: ...

    def prepare(self, batch: int, history: int) -> None:
        """Have `batch` requests ready whose next step attends to exactly `history` tokens each; drops earlier ones.

        Not timed. The KV may hold made-up finite values: the time of a step does not depend on them.
        """

    def step(self) -> None:
        """One decode step for all of them: read weights and KV, pick a token each. Returns when the tokens are known.

        The next step attends to one token more.
        """

    def close(self) -> None: ...


def load_backend(name: str, **settings) -> Backend:
    """The backend `name` with its model loaded; settings: model, dtype, threads, device and what the backend adds."""
    if name not in NAMES:
        raise NanoengineError(f"There is no backend {name!r}; choose one of {', '.join(NAMES)}.")
    module, _, factory = NAMES[name].partition(":")
    return getattr(importlib.import_module(module), factory)(**settings)
