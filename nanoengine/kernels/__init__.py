"""Attention over a paged KV cache, and a layer's small operations: one interface, three backends.

triton runs on a CUDA GPU (and, interpreted, on a CPU for tests), native is C++ for the CPU, torch runs anywhere: the
others are checked against it. By default CUDA tensors go to triton; CPU tensors go to native where a compiler can build
it and it takes their shape, else to torch. The argument `backend`, or the environment variable NANOENGINE_KERNELS,
names one of the three instead. The small operations know native and torch only.
"""

import os

import torch

from nanoengine.errors import NanoengineError
from nanoengine.kernels import native, torch_reference
from nanoengine.kernels.torch_reference import paged_prefill

NAMES = ("native", "torch", "triton")


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    backend: str | None = None,
) -> torch.Tensor:
    """One query per sequence over its paged history; see torch_reference.paged_decode for shapes.

    Raises NanoengineError when the named backend cannot run here or does not take these tensors.
    """
    kernels = _kernels(k_cache, v_cache, backend)
    return kernels.paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    backend: str | None = None,
) -> None:
    """Write k, v to their slots; see torch_reference.store_kv for shapes. Raises as paged_decode does."""
    _kernels(k_cache, v_cache, backend).store_kv(k, v, k_cache, v_cache, slot_mapping)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [.., D], weight [D]."""
    return _row_kernels(native.takes_rows(x)).rms_norm(x, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [n, width] of gate and up side by side, [n, 2 * width]: what lies within an MLP."""
    return _row_kernels(native.takes_rows(gate_up, parts=2)).silu_mul(gate_up)


def reads_in_place(weight: torch.Tensor) -> bool:
    """Whether `native.RowLinear` may serve weight [out, in]: it takes it, and NANOENGINE_KERNELS does not forbid it."""
    return _row_kernels(native.takes_weight(weight)) is native


def backends() -> dict[str, str | None]:
    """Each backend's name, with None when it runs here, else one sentence that says why not. May build native."""
    return {"native": native.why_not(), "torch": None, "triton": _without_triton()}


def _kernels(k_cache: torch.Tensor, v_cache: torch.Tensor, backend: str | None):
    """The module that serves these caches."""
    name = backend or os.environ.get("NANOENGINE_KERNELS")
    if not name:
        if k_cache.is_cuda:
            return _triton()
        return torch_reference if native.why_not(k_cache, v_cache) else native
    if name == "torch":
        return torch_reference
    if name == "triton":
        return _triton()
    if name == "native":
        return native
    raise NanoengineError(f"There are no kernels called {name!r}; use one of {', '.join(NAMES)}.")


def _row_kernels(native_takes_it: bool):
    wanted = os.environ.get("NANOENGINE_KERNELS") or "native"
    return native if native_takes_it and wanted == "native" else torch_reference


def _triton():
    from nanoengine.kernels import triton_kernels

    return triton_kernels


def _without_triton() -> str | None:
    try:
        _triton()
    except NanoengineError as error:
        return str(error)
    return None


__all__ = ["NAMES", "backends", "paged_decode", "paged_prefill", "reads_in_place", "rms_norm", "silu_mul", "store_kv"]
