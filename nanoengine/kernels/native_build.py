"""Builds the native kernels on first use, for this very machine, and loads them through ctypes.

Needs a C++ compiler (GCC or Clang), but neither torch's headers nor a build system. Without one the engine runs on
torch_reference.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nanoengine.errors import NanoengineError

_COMPILED = [Path(__file__).with_name(name) for name in ("paged_decode.cpp", "rows.cpp")]
_SOURCES = [*_COMPILED, Path(__file__).with_name("lanes.h")]
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Native:
    """The loaded library: its file, the compiler that built it, whether it uses all threads, lanes of a vector."""

    library: ctypes.CDLL
    path: Path
    compiler: str
    openmp: bool
    lanes: int


@functools.cache
def load() -> Native | str:
    """The library, from the cache folder or built now; or, in one sentence, why there is none.

    Says on stderr, once, that it was built and where, or why it could not be.
    """
    try:
        return _load()
    except (OSError, subprocess.SubprocessError, NanoengineError) as error:
        print(f"nanoengine: the CPU kernels are torch's, several times slower: {error}", file=sys.stderr)
        return str(error)


def _load() -> Native:
    compiler = find_compiler()
    try:
        return _built(compiler, _openmp_flags())
    except (OSError, NanoengineError):
        return _built(compiler, [])  # a compiler without OpenMP still gives one fast thread


def _built(compiler: list[str], openmp: list[str]) -> Native:
    flags = ["-O3", "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native", *openmp]
    path = cache_folder() / f"kernels-{_key(compiler, flags)}.so"
    new, begin = not path.exists(), time.perf_counter()
    if new:
        _build(compiler, flags, path)
    library = ctypes.CDLL(str(path))
    _declare(library)
    if new:
        took = f"{time.perf_counter() - begin:.1f} s"
        threads = "" if openmp else ", for one thread: this compiler has no OpenMP"
        print(f"nanoengine: built the CPU kernels in {took}{threads}: {path}", file=sys.stderr)
    return Native(library, path, shlex.join(compiler), bool(openmp), library.nanoengine_lanes())


def find_compiler() -> list[str]:
    """$CXX, or the first of g++, c++ and clang++ on the path. Raises NanoengineError when there is none."""
    if sys.platform == "win32":
        raise NanoengineError("the kernels are not built on Windows; WSL runs them")
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("g++", "c++", "clang++"):  # only GCC's OpenMP can be torch's own on Linux
        if found := shutil.which(name):
            return [found]
    raise NanoengineError("there is no C++ compiler; install g++ or clang++, or set CXX")


def cache_folder() -> Path:
    """$NANOENGINE_CACHE, else nanoengine/ in the user's cache folder."""
    if folder := os.environ.get("NANOENGINE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanoengine"


def _openmp_flags() -> list[str]:
    # Two OpenMP runtimes in a process would each keep their threads spinning on the same cores. So this one links the
    # file that torch itself loaded; --as-needed then drops the compiler's own.
    folder = Path(torch.__file__).parent
    runtimes = [*folder.glob("lib/lib*omp*"), *folder.parent.glob("torch.libs/lib*omp*")]
    own = [str(path) for path in runtimes if path.name.startswith(("libgomp", "libomp", "libiomp"))][:1]
    if sys.platform == "darwin":
        return ["-Xclang", "-fopenmp", *own]
    return ["-fopenmp", "-Wl,--as-needed", *own]


def _key(compiler: list[str], flags: list[str]) -> str:
    # Predefined macros name the compiler's version and every instruction set of this processor.
    done = subprocess.run(
        [*compiler, *[f for f in flags if f.startswith("-m")], "-dM", "-E", "-x", "c++", "-"],
        input="", capture_output=True, text=True, timeout=_TIMEOUT_S,
    )  # fmt: skip
    parts = [*(source.read_text() for source in _SOURCES), done.stdout, *compiler, *flags, torch.__version__]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(compiler: list[str], flags: list[str], path: Path) -> None:
    """Compile to `path`. Other processes may do the same meanwhile: the file appears at once, and whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder, path.name)
        done = subprocess.run(
            [*compiler, "-std=c++17", "-shared", "-fPIC", *map(str, _COMPILED), *flags, "-o", str(built)],
            capture_output=True, text=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise NanoengineError(f"{compiler[0]} ended with status {done.returncode} {complaint}".strip())
        os.replace(built, path)


def _declare(library: ctypes.CDLL) -> None:
    pointer, integer, size, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
    library.nanoengine_paged_decode.argtypes = [integer, *[pointer] * 6, *[size] * 7, real, size, integer]
    library.nanoengine_store_kv.argtypes = [*[pointer] * 5, *[size] * 5]
    library.nanoengine_linear.argtypes = [integer, *[pointer] * 4, *[size] * 3, integer]
    library.nanoengine_rms_norm.argtypes = [integer, *[pointer] * 3, size, size, real, integer]
    library.nanoengine_silu_mul.argtypes = [integer, *[pointer] * 2, size, size, integer]
    for function in (library.nanoengine_linear, library.nanoengine_rms_norm, library.nanoengine_silu_mul):
        function.restype = None
