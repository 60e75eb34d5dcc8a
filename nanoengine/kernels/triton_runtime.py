"""Imports Triton the one way that works here: compiled where there is a CUDA GPU, interpreted elsewhere.

Triton chooses once, when it is imported: its own helpers (tl.max, tl.sum) are decorated then. A kernel that was made
later with another choice cannot call them. So every kernel module takes `triton` and `tl` from here.
"""

import os

import torch

from nanoengine.errors import NanoengineError

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise NanoengineError(
        "Triton is not installed (it is published for Linux only): use the native or the torch kernels, "
        "or on Linux run: pip install 'nanoengine[engine]'"
    ) from error

INTERPRETED = not isinstance(tl.sum, triton.runtime.JITFunction)

if not INTERPRETED and not torch.cuda.is_available():
    raise NanoengineError(
        "Triton was imported before nanoengine could switch its interpreter on, and there is no CUDA GPU to compile "
        "for: import nanoengine.kernels.triton_kernels earlier, or set TRITON_INTERPRET=1 before Python starts"
    )

__all__ = ["INTERPRETED", "tl", "triton"]
