"""How fast this machine reads memory: the ceiling that every decode step is held against."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nanoengine.errors import NanoengineError
from nanoengine.extras import need
from nanoengine.sweep.machine import (
    available_memory_bytes,
    last_level_cache_bytes,
    this_machine,
    torch_error,
    usable_cores,
)

_CACHES_OVER = 8  # a buffer must be this many times the last-level cache, so that hardly a read is served by it
_LEAST_BYTES = 2**28
_WANTED_BYTES = {"cpu": 2**30, "cuda": 2**32}


@dataclass(frozen=True)
class MeasuredBandwidth:
    """Read bandwidth of this machine in GB/s (1e9 bytes a second): median, quartiles and number of reads.

    method: what read the buffer. threads: CPU threads that did, 0 on a GPU. buffer_bytes: size of one read.
    """

    gb_per_s: float
    q25_gb_per_s: float
    q75_gb_per_s: float
    repeats: int
    threads: int
    buffer_bytes: int
    method: str
    device: str
    machine: str
    memory_bytes: int | None

    @property
    def iqr_gb_per_s(self) -> float:
        return self.q75_gb_per_s - self.q25_gb_per_s

    def device_spec(self):
        """This machine as a costmodel.DeviceSpec, to be priced like a card from a data sheet."""
        from nanoengine.costmodel.device import DeviceSpec

        return DeviceSpec(
            name=self.machine,
            bandwidth_gb_per_s=self.gb_per_s,
            memory_gb=None if self.memory_bytes is None else self.memory_bytes / 1e9,
            source=f"measured here: {self}",
        )

    def __str__(self) -> str:
        threads = "" if not self.threads else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return (
            f"{self.gb_per_s:.1f} GB/s (quartiles {self.q25_gb_per_s:.1f} to {self.q75_gb_per_s:.1f}, "
            f"{self.repeats} reads of {self.buffer_bytes / 2**20:.0f} MiB by {self.method}{threads})"
        )


def measure_bandwidth(
    device: str = "cpu", threads: int | None = None, repeats: int = 20, buffer_bytes: int | None = None
) -> MeasuredBandwidth:
    """Sum a buffer far larger than the last-level cache `repeats` times; about a second on a laptop.

    device: "cpu" or "cuda". threads: CPU threads, by default as many as torch would use (without torch, all cores).
    buffer_bytes: by default 1 GiB (4 GiB on a GPU), less where memory is short. Without torch numpy reads instead.
    Raises NanoengineError when memory is too short for a buffer that the caches cannot hold.
    """
    for name, value in {"repeats": repeats, "threads": threads}.items():
        if value is not None and value < 1:
            raise NanoengineError(f"{name} must be at least 1, not {value}.")
    machine = this_machine()
    if device.startswith("cuda"):
        need("torch", "engine")
        threads, method = 0, "torch.sum"
        seconds, buffer_bytes = _time_cuda(device, repeats, buffer_bytes)
    else:
        buffer_bytes = _cpu_buffer_bytes(buffer_bytes)
        if torch_error():
            method, threads = "numpy.max", threads or usable_cores()
            seconds = _time_numpy(threads, repeats, buffer_bytes)
        else:
            method = "torch.sum"
            seconds, threads = _time_torch(threads, repeats, buffer_bytes)
    rates = buffer_bytes / 1e9 / np.asarray(seconds)
    q25, median, q75 = np.quantile(rates, [0.25, 0.5, 0.75])
    return MeasuredBandwidth(
        gb_per_s=float(median),
        q25_gb_per_s=float(q25),
        q75_gb_per_s=float(q75),
        repeats=repeats,
        threads=threads,
        buffer_bytes=buffer_bytes,
        method=method,
        device=device,
        machine=machine.label(device),
        memory_bytes=machine.gpu_memory_bytes if device.startswith("cuda") else machine.memory_bytes,
    )


def _cpu_buffer_bytes(asked: int | None) -> int:
    least = max(_LEAST_BYTES, _CACHES_OVER * (last_level_cache_bytes() or 0))
    available = available_memory_bytes()
    wanted = asked or max(_WANTED_BYTES["cpu"], least)
    if asked is not None and asked < least:
        raise NanoengineError(
            f"A buffer of {asked / 2**20:.0f} MiB would be read from the caches; use at least {least / 2**20:.0f} MiB."
        )
    if available is None:
        return asked or least
    if asked is None:
        wanted = max(least, min(wanted, available // 4))
    if wanted > available // 2:
        raise NanoengineError(
            f"Measuring bandwidth needs a buffer of {wanted / 2**20:.0f} MiB, more than half of the "
            f"{available / 2**20:.0f} MiB of memory that is free; close other programs and try again."
        )
    return wanted // 16 * 16


def _time(read: Callable[[], object], repeats: int) -> list[float]:
    for _ in range(2):  # the first read also pays for page faults and for waking the threads
        read()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        read()
        seconds.append(time.perf_counter() - start)
    return seconds


def _time_torch(threads: int | None, repeats: int, buffer_bytes: int) -> tuple[list[float], int]:
    import torch

    before = torch.get_num_threads()
    try:
        if threads:
            torch.set_num_threads(threads)
        buffer = torch.ones(buffer_bytes // 4, dtype=torch.float32)
        return _time(buffer.sum, repeats), torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _time_numpy(threads: int, repeats: int, buffer_bytes: int) -> list[float]:
    from concurrent.futures import ThreadPoolExecutor

    # The maximum of integers keeps up with memory; numpy's float sum is bound by its additions.
    parts = np.array_split(np.ones(buffer_bytes // 8, dtype=np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return _time(lambda: list(pool.map(np.max, parts)), repeats)


def _time_cuda(device: str, repeats: int, asked: int | None) -> tuple[list[float], int]:
    import torch

    if not torch.cuda.is_available():
        raise NanoengineError("There is no CUDA device here; measure with device='cpu'.")
    free, _ = torch.cuda.mem_get_info(device)
    buffer_bytes = (asked or min(_WANTED_BYTES["cuda"], free // 4)) // 16 * 16
    if not _LEAST_BYTES <= buffer_bytes <= free * 9 // 10:
        raise NanoengineError(
            f"Measuring bandwidth needs a buffer between 256 MiB and nine tenths of the {free / 2**20:.0f} MiB that "
            f"the GPU has free, not {buffer_bytes / 2**20:.0f} MiB; free GPU memory or pass another size."
        )
    buffer = torch.ones(buffer_bytes // 4, dtype=torch.float32, device=device)

    def read() -> None:
        buffer.sum()
        torch.cuda.synchronize(device)

    return _time(read, repeats), buffer_bytes
