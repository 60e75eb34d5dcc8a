"""What the interpreter cannot show: that the kernels compile for GPUs, and how Triton is brought in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

GROWING = [5, 60, 64, 99, 112]  # blocks of 16 tokens: 2, 15, 16, 17 and 17 splits
CASES = {  # capability, dtype, heads, KV heads, head size, block size, block table widths
    "A100": (80, "bfloat16", 32, 8, 128, 16, GROWING),
    "A100, a group of 7, head size 80, block size 1": (80, "float16", 7, 1, 80, 1, [100]),
    "A100 in float32": (80, "float32", 9, 3, 64, 256, [4]),
    "H100": (90, "bfloat16", 28, 4, 128, 16, [100]),
    "RTX 50": (120, "bfloat16", 32, 8, 128, 64, [100]),
}


def run_python(*arguments, **environment):
    """Python in a process that has no GPU and no TRITON_INTERPRET unless `environment` says so."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = inherited | {"CUDA_VISIBLE_DEVICES": ""} | environment
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    script = Path(__file__).with_name("compile_for_gpus.py")
    cache = tmp_path_factory.mktemp("triton")
    result = run_python(str(script), json.dumps([*CASES.values()]), TRITON_CACHE_DIR=str(cache))
    assert result.returncode == 0, result.stderr
    return dict(zip(CASES, json.loads(result.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_and_fit(compiled, name):
    kernels = compiled[name]
    assert {kernel["name"] for kernel in kernels} == {"_store_kernel", "_decode_kernel", "_merge_kernel"}
    for kernel in kernels:
        assert kernel["stack_bytes"] == 0, f"{kernel['name']} spills registers"
        assert kernel["shared_bytes"] <= 99 * 1024, f"{kernel['name']} does not fit a consumer card"
    for kernel in kernels:
        if kernel["name"] == "_decode_kernel":
            assert kernel["wide_copies"] > 0, "K and V are not fetched 16 bytes at a time"
            tensor_cores = "float32" not in CASES[name]  # 32 bits would lose digits there
            assert (kernel["mma"] > 0) == tensor_cores


def test_a_growing_history_compiles_nothing_new(compiled):
    """One decode kernel serves every number of splits, and one the lone split."""
    names = [kernel["name"] for kernel in compiled["A100"]]
    assert names.count("_decode_kernel") == 2
    assert names.count("_merge_kernel") == 3, "the merge is compiled for up to 2, 16 and 32 splits"


def test_triton_is_interpreted_where_there_is_no_gpu():
    code = "from nanoengine.kernels import triton_kernels as t; print(t.INTERPRETED)"
    for setting in ({}, {"TRITON_INTERPRET": "0"}):
        result = run_python("-c", code, **setting)
        assert result.stdout.split() == ["True"], result.stderr


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("import triton", "import nanoengine.kernels.triton_kernels earlier, or set TRITON_INTERPRET=1"),
        ("import sys; sys.modules['triton'] = None", "Triton is not installed (it is published for Linux only)"),
    ],
)
def test_triton_that_cannot_run_is_refused_in_a_sentence(before, says):
    result = run_python("-c", f"{before}; import nanoengine.kernels.triton_kernels")
    last_line = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1 and last_line.startswith("nanoengine.errors.NanoengineError: ")
    assert says in last_line
