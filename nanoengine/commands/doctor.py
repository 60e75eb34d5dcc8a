"""Say what this machine has, what it lacks, and what to do about it.

Measures read bandwidth too, which takes about two seconds. Exit status 1 when something needed is missing.

examples:
  nanoengine doctor
  nanoengine doctor --json
"""

import importlib.util
import sys
from dataclasses import asdict, dataclass

HELP = "what this machine has and lacks"
_LEAST_PYTHON = (3, 11)
_ENGINE_PACKAGES = ("gguf", "jinja2", "psutil", "safetensors", "tokenizers", "tqdm")
_BOOK_PACKAGES = ("altair", "ipywidgets", "jupyterlab", "matplotlib")
_INSTALL_ENGINE = "run: pip install 'nanoengine[engine]'"
_INSTALL_BOOK = "for charts and live pages, run: pip install 'nanoengine[viz,live]'"


@dataclass(frozen=True)
class Check:
    """One line of the screen. state: "ok", "missing" (something needs it) or "optional"; fix: what to do."""

    name: str
    state: str
    found: str
    fix: str = ""


def add_arguments(parser):
    parser.add_argument("--model", default="smollm2", help="the model to look for (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads that measure bandwidth")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args) -> int:
    from nanoengine.sweep.machine import this_machine

    machine = this_machine()
    bandwidth, bandwidth_check = _bandwidth(machine, args.threads)
    checks = [
        _python(),
        _torch(),
        _packages("engine packages", _ENGINE_PACKAGES, "missing", _INSTALL_ENGINE),
        *_cpu_kernels(),
        _triton(machine),
        *_device(machine),
        _memory(machine),
        bandwidth_check,
        _model(args.model),
        _packages("book packages", _BOOK_PACKAGES, "optional", _INSTALL_BOOK),
    ]
    missing = [check.name for check in checks if check.state == "missing"]
    if args.json:
        import json

        report = {
            "ok": not missing,
            "checks": [asdict(check) for check in checks],
            "machine": asdict(machine),
            "bandwidth": asdict(bandwidth) if bandwidth else None,
        }
        print(json.dumps(report, indent=2))
    else:
        _print_screen(checks, missing)
    return 1 if missing else 0


def _print_screen(checks: list[Check], missing: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": ("ok", "green"), "missing": ("missing", "bold red"), "optional": ("optional", "yellow")}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = marks[check.state]
        table.add_row(Text(mark, style), check.name, Text("\n".join(filter(None, [check.found, check.fix]))))
    console = Console()
    console.print(table)
    console.print(
        f"\nMissing: {', '.join(missing)}. What to do stands beside it." if missing else "\nEverything needed is here."
    )


def _python() -> Check:
    found, least = (".".join(map(str, version)) for version in (sys.version_info[:3], _LEAST_PYTHON))
    if sys.version_info < _LEAST_PYTHON:
        return Check("Python", "missing", found, f"install Python {least} or newer")
    return Check("Python", "ok", f"{found} ({sys.executable})")


def _torch() -> Check:
    from nanoengine.sweep.machine import this_machine, torch_error

    if error := torch_error():
        return Check("torch", "missing", error, f"{_INSTALL_ENGINE} (prices and fits work without it)")
    import torch

    return Check("torch", "ok", f"{this_machine().torch}, {torch.get_num_threads()} CPU threads")


def _packages(name: str, packages: tuple[str, ...], state: str, fix: str) -> Check:
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        return Check(name, state, f"not installed: {', '.join(absent)}", fix)
    return Check(name, "ok", ", ".join(packages))


def _cpu_kernels() -> list[Check]:
    from nanoengine.sweep.machine import torch_error

    if torch_error():
        return []
    from nanoengine.kernels import native

    loaded = native.load()
    if isinstance(loaded, str):
        fix = "attention on the CPU is several times slower without them"
        return [Check("CPU kernels", "optional", f"torch only: {loaded}", fix)]
    threads = "" if loaded.openmp else ", one thread only (no OpenMP)"
    return [Check("CPU kernels", "ok", f"native, {loaded.lanes} floats at a time, by {loaded.compiler}{threads}")]


def _triton(machine) -> Check:
    if machine.triton_mode == "compiled":
        return Check("Triton", "ok", f"{machine.triton}, compiled for {machine.gpu}")
    if machine.triton_mode == "interpreted":
        return Check(
            "Triton", "ok", f"{machine.triton}, interpreted: there is no CUDA GPU, so kernels run right but slowly"
        )
    if sys.platform == "linux":
        return Check("Triton", "optional", "absent", f"for the kernel chapter, {_INSTALL_ENGINE}")
    return Check("Triton", "optional", "absent", "it has no wheels for this system; the CPU kernels do without it")


def _device(machine) -> list[Check]:
    cpu = Check("processor", "ok", machine.label())
    if machine.gpu:
        return [cpu, Check("GPU", "ok", f"{machine.gpu}, {machine.gpu_memory_bytes / 2**30:.1f} GiB")]
    return [cpu, Check("GPU", "optional", "no CUDA device", "the engine runs on the CPU")]


def _memory(machine) -> Check:
    total = "size unknown" if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.1f} GiB"
    if machine.available_bytes is None:
        return Check("memory", "ok", total)
    free = f"{machine.available_bytes / 2**30:.1f} GiB free"
    if machine.available_bytes < 2 * 2**30:
        fix = "SmolLM2 in float32 with a short history takes about 1.5 GiB; close other programs"
        return Check("memory", "optional", f"{total}, {free}", fix)
    return Check("memory", "ok", f"{total}, {free}")


def _bandwidth(machine, threads: int | None):
    from nanoengine.errors import NanoengineError
    from nanoengine.sweep.bandwidth import measure_bandwidth

    try:
        bandwidth = measure_bandwidth("cuda" if machine.gpu else "cpu", threads)
    except NanoengineError as error:
        return None, Check("read bandwidth", "optional", "not measured", str(error))
    return bandwidth, Check("read bandwidth", "ok", str(bandwidth))


def _model(name: str) -> Check:
    from nanoengine.errors import NanoengineError
    from nanoengine.models.find import find_model

    try:
        path = find_model(name)
    except NanoengineError as error:
        return Check("model", "missing", "not found", str(error))
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return Check("model", "ok", f"{name}: {path} ({sum(file.stat().st_size for file in files) / 1e6:.1f} MB)")
