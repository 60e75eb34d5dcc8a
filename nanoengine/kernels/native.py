"""The CPU's paged decode: paged_decode.cpp, compiled on first use for this very machine and called through ctypes.

Needs a C++ compiler (GCC or Clang), but neither torch's headers nor a build system. Without one the engine runs on
torch_reference: `why_not()` says what was missing.
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

SPLIT_TOKENS = 128  # a thread's unit of work: enough to pay for its merge, small enough to share a short history out
_SOURCES = [Path(__file__).with_name(name) for name in ("paged_decode.cpp", "lanes.h")]
_TIMEOUT_S = 120
_CODES = {torch.float32: 0, torch.bfloat16: 1}


@dataclass(frozen=True)
class Native:
    """The loaded library: its file, the compiler that built it, whether it uses all threads, lanes of a vector."""

    library: ctypes.CDLL
    path: Path
    compiler: str
    openmp: bool
    lanes: int


def why_not(*caches: torch.Tensor) -> str | None:
    """Why the native kernels cannot run (over `caches`, if given); None when they can. Builds them at need."""
    for cache in caches:
        if cache.device.type != "cpu":
            return f"the native kernels run on a CPU, and these tensors are on {cache.device}"
        if cache.dtype not in _CODES:
            return f"the native kernels take float32 and bfloat16, not {str(cache.dtype).removeprefix('torch.')}"
        if not cache.is_contiguous():
            return "the native kernels take contiguous caches only"
    loaded = load()
    if isinstance(loaded, str):
        return loaded
    for cache in caches:
        if cache.shape[-1] % loaded.lanes:
            return f"the native kernels take head sizes that are multiples of {loaded.lanes}, not {cache.shape[-1]}"
    return None


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """As torch_reference.paged_decode, in float32 inside, on torch.get_num_threads() threads.

    The result depends neither on other sequences of the batch nor on the number of threads, to the bit.
    Raises NanoengineError for tensors that the kernels do not take, for a context length that its row of the table
    cannot hold, and for a block outside the cache.
    """
    library = _library(k_cache, v_cache)
    batch, heads, head_dim = q.shape
    num_blocks, block_size, kv_heads, _ = k_cache.shape
    fits = k_cache.shape == v_cache.shape and k_cache.shape[3] == head_dim and heads % kv_heads == 0
    if not fits or not batch == len(block_tables) == len(context_lens) or not q.dtype == k_cache.dtype == v_cache.dtype:
        raise NanoengineError(
            f"q {list(q.shape)} {q.dtype}, caches {list(k_cache.shape)} {k_cache.dtype} and {list(v_cache.shape)}, "
            f"block_tables {list(block_tables.shape)} and context_lens {list(context_lens.shape)} do not fit together."
        )
    q, block_tables, context_lens = q.contiguous(), block_tables.int().contiguous(), context_lens.int().contiguous()
    out = torch.empty_like(q)
    error = library.nanoengine_paged_decode(
        _CODES[q.dtype], q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(),
        block_tables.data_ptr(), context_lens.data_ptr(), out.data_ptr(),
        batch, heads, kv_heads, head_dim, num_blocks, block_size, block_tables.shape[1], scale,
        SPLIT_TOKENS, torch.get_num_threads(),
    )  # fmt: skip
    if error == 1:
        raise NanoengineError(
            f"A context length lies outside 1 to {block_tables.shape[1] * block_size}, the tokens that a row of the "
            "block table can hold."
        )
    if error == 2:
        raise NanoengineError(f"The block table names a block outside the cache, which has {num_blocks}.")
    return out


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As torch_reference.store_kv.

    Raises NanoengineError for tensors that the kernels do not take, and for a slot outside the cache.
    """
    library = _library(k_cache, v_cache)
    n, kv_heads, head_dim = k.shape
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    fits = k.shape == v.shape and k_cache.shape == v_cache.shape and k.shape[1:] == k_cache.shape[2:]
    if not fits or slot_mapping.shape != (n,) or not k.dtype == v.dtype == k_cache.dtype == v_cache.dtype:
        raise NanoengineError(
            f"k {list(k.shape)} {k.dtype}, v {list(v.shape)} {v.dtype}, caches {list(k_cache.shape)} {k_cache.dtype} "
            f"and {list(v_cache.shape)} and slot_mapping {list(slot_mapping.shape)} do not fit together."
        )
    k, v = _with_whole_rows(k), _with_whole_rows(v)
    slot_mapping = slot_mapping.long().contiguous()
    item = k.element_size()
    error = library.nanoengine_store_kv(
        k.data_ptr(), v.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), slot_mapping.data_ptr(),
        n, num_slots, kv_heads * head_dim * item, k.stride(0) * item, v.stride(0) * item,
    )  # fmt: skip
    if error:
        raise NanoengineError(f"slot_mapping names a slot outside the cache, which has {num_slots}.")


def _library(*caches: torch.Tensor) -> ctypes.CDLL:
    if reason := why_not(*caches):
        raise NanoengineError(f"{reason[0].upper()}{reason[1:]}; use the torch kernels.")
    return load().library


def _with_whole_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


@functools.cache
def load() -> Native | str:
    """The library, from the cache folder or built now; or, in one sentence, why there is none.

    Says on stderr, once, that it was built and where, or why it could not be.
    """
    try:
        return _load()
    except (OSError, subprocess.SubprocessError, NanoengineError) as error:
        print(f"nanoengine: attention runs on torch, several times slower: {error}", file=sys.stderr)
        return str(error)


def _load() -> Native:
    compiler = find_compiler()
    try:
        return _built(compiler, _openmp_flags())
    except (OSError, NanoengineError):
        return _built(compiler, [])  # a compiler without OpenMP still gives one fast thread


def _built(compiler: list[str], openmp: list[str]) -> Native:
    flags = ["-O3", "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native", *openmp]
    path = cache_folder() / f"paged_decode-{_key(compiler, flags)}.so"
    new, begin = not path.exists(), time.perf_counter()
    if new:
        _build(compiler, flags, path)
    library = ctypes.CDLL(str(path))
    _declare(library)
    if new:
        took = f"{time.perf_counter() - begin:.1f} s"
        threads = "" if openmp else ", for one thread: this compiler has no OpenMP"
        print(f"nanoengine: built the CPU attention kernels in {took}{threads}: {path}", file=sys.stderr)
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
            [*compiler, "-std=c++17", "-shared", "-fPIC", str(_SOURCES[0]), *flags, "-o", str(built)],
            capture_output=True, text=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise NanoengineError(f"{compiler[0]} ended with status {done.returncode} {complaint}".strip())
        os.replace(built, path)


def _declare(library: ctypes.CDLL) -> None:
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    library.nanoengine_lanes.argtypes = []
    library.nanoengine_paged_decode.argtypes = [integer, *[pointer] * 6, *[size] * 7, ctypes.c_float, size, integer]
    library.nanoengine_store_kv.argtypes = [*[pointer] * 5, *[size] * 5]
