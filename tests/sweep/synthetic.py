"""Engines that a sweep can time without a model: their steps cost what the byte model says."""

import time

import numpy as np

from nanoengine.sweep.backends import Description

WEIGHT_BYTES = 2_000_000
KV_BYTES_PER_TOKEN = 1_000


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ClockedBackend:
    """A step advances `clock` by its bytes at 1 GB/s and `overhead_ms`; `seen` logs (batch, history) of each step.

    `interrupt_at`: the step, counted from 0, that raises KeyboardInterrupt instead.
    """

    name = "clocked"

    def __init__(self, clock, overhead_ms=1.0, max_context=8192, kv_capacity_tokens=100_000, interrupt_at=None, **own):
        self.clock, self.overhead_ms, self.interrupt_at = clock, overhead_ms, interrupt_at
        self.description = Description(
            **{
                "backend": self.name,
                "model": "synthetic",
                "dtype": "float32",
                "threads": 1,
                "device": "cpu",
                "weight_bytes": WEIGHT_BYTES,
                "kv_bytes_per_token": KV_BYTES_PER_TOKEN,
                "max_context": max_context,
                "kv_capacity_tokens": kv_capacity_tokens,
                **own,
            }
        )
        self.seen = []

    def describe(self):
        return self.description

    def prepare(self, batch, history):
        self.batch, self.history = batch, history

    def step(self):
        if self.interrupt_at is not None and len(self.seen) == self.interrupt_at:
            raise KeyboardInterrupt
        assert self.history <= self.description.max_context, "the sweep ran past the context"
        self.seen.append((self.batch, self.history))
        read_bytes = WEIGHT_BYTES + self.batch * self.history * KV_BYTES_PER_TOKEN
        self.clock.now += read_bytes / 1e9 + self.overhead_ms / 1e3
        self.history += 1

    def close(self):
        pass


class ReadingBackend(ClockedBackend):
    """A step really reads its bytes from a buffer of 64 MiB, as often as it takes."""

    name = "reading"

    def __init__(self, **own):
        super().__init__(clock=FakeClock(), **own)
        self.buffer = np.ones(2**26, dtype=np.uint8).view(np.int64)

    def step(self):
        left = 20_000_000 + self.batch * self.history * 20_000
        while left > 0:
            self.buffer[: left // 8].max()
            left -= self.buffer.nbytes
        self.history += 1


class SleepingBackend(ClockedBackend):
    """A step takes 5 ms, so that a test can kill the sweep in the middle of it."""

    name = "sleeping"

    def __init__(self):
        super().__init__(clock=FakeClock())

    def step(self):
        time.sleep(0.005)
        self.history += 1
