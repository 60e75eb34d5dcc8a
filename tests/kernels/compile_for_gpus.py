"""Compiles what the wrappers launch for GPUs that need not be there, and prints what came out as JSON.

Run by test_triton_compiles.py in a process of its own, as Triton compiles or interprets for the life of a process.
Everything is real down to the machine code (ptxas is in Triton's wheel); only the launch is left out.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=132)

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from nanoengine.kernels import triton_kernels  # noqa: E402

triton_kernels._check_device = lambda _: None
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class AbsentGPU:
    """The part of a Triton driver that compiling asks."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability  # so that each target has a cache of its own

    def get_current_stream(self, _):
        return 0


def stack_bytes(cubin):
    """Bytes of stack per thread: registers that did not fit."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", usage.stdout)[1])


def main():
    compiled = {}
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        compiled[id(kernel)] = kernel
        return kernel

    JITFunction.run = compile_only
    report = []
    for capability, dtype, heads, kv_heads, head_dim, block_size, widths in json.loads(sys.argv[1]):
        triton.runtime.driver.set_active(AbsentGPU(capability))
        compiled.clear()
        dtype = getattr(torch, dtype)
        pool = torch.zeros(2, 2, block_size, kv_heads, head_dim, dtype=dtype)
        k = torch.zeros(2, kv_heads, head_dim, dtype=dtype)
        q = torch.zeros(2, heads, head_dim, dtype=dtype)
        lens = torch.ones(2, dtype=torch.int32)
        triton_kernels.store_kv(k, k, pool[0], pool[1], torch.tensor([0, 1]))
        for width in widths:
            tables = torch.zeros(2, width, dtype=torch.int32)
            triton_kernels.paged_decode(q, pool[0], pool[1], tables, lens, 0.1)
        triton_kernels.paged_decode(q, pool[0], pool[1], tables, lens, 0.1, 1)
        report.append(
            [
                {
                    "name": kernel.name,
                    "shared_bytes": kernel.metadata.shared,
                    "stack_bytes": stack_bytes(kernel.asm["cubin"]),
                    "mma": len(re.findall(r"\bmma\.sync", kernel.asm["ptx"])),
                    "wide_copies": len(re.findall(r"cp\.async\.cg\.shared\.global .*0x10", kernel.asm["ptx"])),
                }
                for kernel in compiled.values()
            ]
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
