"""The C++ kernels against torch, SDPA and themselves; and the machine without a compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanoengine import NanoengineError
from nanoengine.kernels import native, native_build, torch_reference

if reason := native.why_not():
    pytest.skip(reason, allow_module_level=True)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SPLIT = native.SPLIT_TOKENS
LENS = [1, 2, 15, 16, 17, SPLIT - 1, SPLIT, SPLIT + 1, 3 * SPLIT + 5]


@pytest.fixture
def history(paged_history):
    """As paged_history, with the contiguous caches that an engine has."""

    def build(*args, **kwargs):
        made = paged_history(*args, **kwargs)
        made.k_cache, made.v_cache = made.k_cache.contiguous(), made.v_cache.contiguous()
        return made

    return build


@pytest.fixture
def threads():
    """Set the number of torch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (9, 3), (7, 1), (10, 2)])
def test_decode_equals_attention(history, block_size, head_dim, heads, kv_heads, dtype):
    made = history(LENS, heads, kv_heads, head_dim, block_size, dtype)
    out = native.paged_decode(*made.arguments())
    assert out.shape == made.q.shape and out.dtype == dtype
    assert (out.float() - made.attention()).abs().nan_to_num(nan=torch.inf).max() < TOLERANCE[dtype]
    reference = torch_reference.paged_decode(*made.arguments())
    assert (out.float() - reference.float()).abs().nan_to_num(nan=torch.inf).max() < TOLERANCE[dtype]


def test_scores_far_from_zero_do_not_overflow(history):
    made = history([100, 300])
    made.q *= 300
    assert (native.paged_decode(*made.arguments()) - made.attention()).abs().max() < 1e-3


def test_a_nan_that_a_token_did_store_is_not_hidden(history):
    made = history([40, 40])
    made.v_cache[made.block_tables[0, 1], 3] = float("nan")
    out = native.paged_decode(*made.arguments())
    assert out[0].isnan().all() and out[1].isfinite().all()


def test_batch_mates_and_threads_do_not_change_a_bit(history, threads):
    made = history(LENS, 9, 3, 64)
    threads(1)
    together = native.paged_decode(*made.arguments())
    for i in range(len(LENS)):
        one = slice(i, i + 1)
        alone = (made.q[one], made.k_cache, made.v_cache, made.block_tables[one], made.context_lens[one], made.scale)
        assert torch.equal(native.paged_decode(*alone)[0], together[i])
    for count in (2, 3):
        threads(count)
        for _ in range(20):  # which thread takes what differs from run to run
            assert torch.equal(native.paged_decode(*made.arguments()), together)


def test_block_size_does_not_change_a_bit(history):
    one, many = history(LENS, block_size=1), history(LENS, block_size=16)
    many.q = one.q
    for i, length in enumerate(LENS):
        for token in range(length):
            at = one.block_tables[i, token], 0
            to = many.block_tables[i, token // 16], token % 16
            many.k_cache[to], many.v_cache[to] = one.k_cache[at], one.v_cache[at]
    assert torch.equal(native.paged_decode(*one.arguments()), native.paged_decode(*many.arguments()))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_indices_may_be_strided_and_of_either_width(history, index_dtype):
    made = history([5, 70])
    expected = made.attention()
    made.block_tables = made.block_tables.to(index_dtype).repeat_interleave(2, dim=1)[:, ::2]
    made.context_lens = made.context_lens.to(index_dtype).repeat_interleave(2)[::2]
    assert (native.paged_decode(*made.arguments()) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("kernels", [native, torch_reference])
@pytest.mark.parametrize("block", [-1, -7, 10**6, 2**31 - 1])
def test_a_block_outside_the_cache_is_an_error(history, kernels, block):
    made = history([40, 40])
    made.block_tables[1, 2] = block
    with pytest.raises(NanoengineError, match=f"outside the cache, which has {len(made.k_cache)}"):
        kernels.paged_decode(*made.arguments())


@pytest.mark.parametrize("kernels", [native, torch_reference])
@pytest.mark.parametrize("length", [0, -3, 65])
def test_a_length_that_the_table_cannot_hold_is_an_error(history, kernels, length):
    made = history([40, 40])
    assert made.block_tables.shape[1] * 16 == 64
    made.context_lens[1] = length
    with pytest.raises(NanoengineError, match="outside 1 to 64"):
        kernels.paged_decode(*made.arguments())


def test_what_would_read_past_an_end_is_refused(history):
    q, k_cache, v_cache, tables, lens, scale = history([40, 40]).arguments()
    for bad in (
        (q[:1], k_cache, v_cache, tables, lens),
        (q[:, :5], k_cache, v_cache, tables, lens),
        (q[..., :48].contiguous(), k_cache, v_cache, tables, lens),
        (q, k_cache, v_cache[:2], tables, lens),
        (q, k_cache, v_cache, tables[:1], lens),
        (q, k_cache, v_cache, tables, lens[:1]),
        (q.bfloat16(), k_cache, v_cache, tables, lens),
    ):
        with pytest.raises(NanoengineError, match="do not fit together"):
            native.paged_decode(*bad, scale)
    k = torch.randn(2, 2, 64)
    for bad in ((k, k[:1], 2), (k[:, :1], k[:, :1], 2), (k, k, 3), (k.bfloat16(), k.bfloat16(), 2)):
        with pytest.raises(NanoengineError, match="do not fit together"):
            native.store_kv(*bad[:2], k_cache, v_cache, torch.arange(bad[2]))


def test_caches_that_the_kernels_do_not_take_are_named(history):
    made = history([5])
    with pytest.raises(NanoengineError, match="contiguous caches only; use the torch kernels"):
        native.paged_decode(made.q, made.k_cache.flip(0)[:, ::2], made.v_cache, *made.arguments()[3:])
    assert "not float16" in native.why_not(torch.zeros(2, 16, 1, 64, dtype=torch.float16))
    assert "not 65" in native.why_not(torch.zeros(2, 16, 1, 65))
    assert "are on meta" in native.why_not(torch.zeros(2, 16, 1, 64, device="meta"))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_store_writes_what_the_reference_writes(dtype):
    qkv = torch.randn(5, 9, 16, dtype=dtype)
    k, v = qkv[:, 3:6], qkv[:, 6:]
    slots = torch.tensor([7, -1, 0, 23, 8])
    for rows_k, rows_v in ((k, v), (k.transpose(1, 2).contiguous().transpose(1, 2), v[:, :, :])):
        ours = torch.zeros(2, 3, 8, 3, 16, dtype=dtype)
        theirs = ours.clone()
        native.store_kv(rows_k, rows_v, *ours, slots)
        torch_reference.store_kv(k, v, *theirs, slots)
        assert torch.equal(ours, theirs) and ours.any()
    with pytest.raises(NanoengineError, match="outside the cache, which has 24"):
        native.store_kv(k, v, *ours, torch.tensor([0, 1, 2, 3, 24]))


# Building, in processes of their own

PROBE = """
import sys
import torch
from nanoengine import kernels
q, cache = torch.ones(1, 2, 64), torch.ones(2, 4, 16, 1, 64)
cache[1] = 3
for _ in range(2):
    out = kernels.paged_decode(q, *cache, torch.tensor([[2, 1]]), torch.tensor([20]), 0.1)
print(out.unique().tolist(), kernels.backends()["native"])
if sys.platform == "linux":
    files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    print(*sorted(name for name in files if "omp." in name))
"""


def probe(tmp_path, **variables):
    environment = {**os.environ, "NANOENGINE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "2", **variables}
    return subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=120, check=True
    )


def script(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_built_once_says_so_once_and_shares_the_openmp_runtime_of_torch(tmp_path):
    first, second = probe(tmp_path), probe(tmp_path)
    assert first.stdout.startswith("[3.0] None") and second.stdout == first.stdout
    (line,) = first.stderr.splitlines()
    assert "built the CPU kernels" in line and str(tmp_path / "cache") in line
    assert second.stderr == ""
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".so"]
    runtimes = first.stdout.splitlines()[1:]
    if sys.platform == "linux":
        assert len(runtimes[0].split()) == 1 and "/torch" in runtimes[0], "two would compete for the cores"


def test_two_processes_may_build_at_once(tmp_path):
    environment = {**os.environ, "NANOENGINE_CACHE": str(tmp_path)}
    runs = [
        subprocess.Popen([sys.executable, "-c", PROBE], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [run.communicate(timeout=120)[0].split("\n")[0] for run in runs] == ["[3.0] None"] * 2
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_compiler_torch_answers_and_one_line_says_why(tmp_path):
    done = probe(tmp_path, PATH="", CXX="")
    assert done.stdout.startswith("[3.0] there is no C++ compiler")
    (line,) = done.stderr.splitlines()
    assert "the CPU kernels are torch's" in line and "install g++ or clang++" in line


def test_a_compiler_without_openmp_still_builds(tmp_path):
    cxx = script(
        tmp_path / "bin" / "cxx", f'case "$*" in *fopenmp*) exit 1;; esac\nexec {native_build.find_compiler()[0]} "$@"'
    )
    done = probe(tmp_path, CXX=cxx)
    assert done.stdout.startswith("[3.0] None")
    (line,) = done.stderr.splitlines()
    assert "for one thread: this compiler has no OpenMP" in line


@pytest.mark.parametrize(
    ("compiler", "says"),
    [("echo 'x.cpp:1: error: bad luck' >&2; exit 1", "bad luck"), ("exit 3", "status 3"), ("exit 0", "no such file")],
)
def test_a_compiler_that_fails_is_quoted_and_torch_answers(tmp_path, compiler, says):
    done = probe(tmp_path, CXX=script(tmp_path / "bin" / "cxx", compiler))
    assert done.stdout.startswith("[3.0] ") and says in done.stdout.lower()
    (line,) = done.stderr.splitlines()
    assert says in line.lower() and "the CPU kernels are torch's" in line


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    done = probe(tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.stdout.startswith("[3.0] ") and str(tmp_path / "cache") in line


def test_a_changed_source_is_built_anew(tmp_path, monkeypatch):
    compiler = native_build.find_compiler()
    before = native_build._key(compiler, ["-O3"])
    assert native_build._key(compiler, ["-O3"]) == before != native_build._key(compiler, ["-O2"])
    changed = tmp_path / "lanes.h"
    changed.write_text("// another")
    monkeypatch.setattr(native_build, "_SOURCES", [*native_build._COMPILED, changed])
    assert native_build._key(compiler, ["-O3"]) != before
