"""Which machine this is: processor, memory, versions, and how Triton runs on it. Works without torch."""

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nanoengine import __version__

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Machine:
    """What a measurement must name to be comparable. Sizes in bytes, None where this system does not tell.

    cores: logical cores that this process may use. cache_bytes: last-level cache that one core sees.
    gpu: name of the first CUDA device. triton_mode: "compiled", "interpreted" or "absent".
    """

    cpu: str
    cores: int
    memory_bytes: int | None
    available_bytes: int | None
    cache_bytes: int | None
    gpu: str | None
    gpu_memory_bytes: int | None
    python: str
    torch: str | None
    triton: str | None
    triton_mode: str

    def label(self, device: str = "cpu") -> str:
        """The name that rows of measurements carry: the part that computes, never the host's name."""
        if device.startswith("cuda") and self.gpu:
            return self.gpu
        return f"{self.cpu} ({self.cores} cores)"

    @property
    def versions(self) -> str:
        """Versions that a timing depends on, as "nanoengine=... python=... torch=... triton=..."."""
        found = {"nanoengine": __version__, "python": self.python, "torch": self.torch, "triton": self.triton}
        return " ".join(f"{name}={version}" for name, version in found.items() if version)


def this_machine() -> Machine:
    """Look at the machine now; `available_bytes` changes from call to call."""
    gpu, gpu_memory_bytes = _gpu()
    triton = _version("triton")
    triton_mode = "compiled" if gpu else "interpreted"
    if triton is None or _version("torch") is None:
        triton_mode = "absent"
    return Machine(
        cpu=_cpu_name(),
        cores=usable_cores(),
        memory_bytes=_total_memory_bytes(),
        available_bytes=available_memory_bytes(),
        cache_bytes=last_level_cache_bytes(),
        gpu=gpu,
        gpu_memory_bytes=gpu_memory_bytes,
        python=platform.python_version(),
        torch=_version("torch"),
        triton=triton,
        triton_mode=triton_mode,
    )


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory_bytes() -> int | None:
    """Memory that can be taken without swapping, within the container's limit; None where nothing tells."""
    if importlib.util.find_spec("psutil") is None:
        return None
    import psutil

    available = psutil.virtual_memory().available
    limit, used = (_cgroup_bytes(name) for name in ("memory.max", "memory.current"))
    return available if limit is None or used is None else min(available, max(0, limit - used))


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that core 0 sees; None off Linux."""
    sizes = [_read(index / "size") for index in _CACHES.glob("index*")]
    return max((int(size[:-1]) * 1024 for size in sizes if size and size.endswith("K")), default=None)


def _total_memory_bytes() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup_bytes(name: str) -> int | None:
    text = _read(Path("/sys/fs/cgroup") / name)
    return int(text) if text and text.isdigit() else None


def _cpu_name() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    else:
        lines = (_read(Path("/proc/cpuinfo")) or "").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()


def torch_error() -> str:
    """Why torch cannot be used: "not installed" or what its import said; "" when it can."""
    if importlib.util.find_spec("torch") is None:
        return "not installed"
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # a wheel for another processor or a missing shared library
        return f"installed, but its import fails: {error}"
    return ""


def _gpu() -> tuple[str | None, int | None]:
    if torch_error():
        return None, None
    import torch

    if not torch.cuda.is_available():
        return None, None
    properties = torch.cuda.get_device_properties(0)
    return properties.name, properties.total_memory


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
