"""The CPU's kernels: C++ behind torch's tensors. See native_build for how they come to be, torch_reference for shapes.

All compute in float32 inside, on torch.get_num_threads() threads.
"""

import ctypes
import functools

import torch

from nanoengine.errors import NanoengineError
from nanoengine.kernels.native_build import load

SPLIT_TOKENS = 128  # a thread's unit of work: enough to pay for its merge, small enough to share a short history out
_CODES = {torch.float32: 0, torch.bfloat16: 1}


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


def takes_rows(x: torch.Tensor, parts: int = 1) -> bool:
    """Whether rms_norm (parts=1), silu_mul (2) and linear take x [.., parts * width]: its device, dtype and width."""
    if not x.is_cpu or x.dtype not in _CODES or isinstance(load(), str):
        return False
    return x.shape[-1] % (parts * load().lanes) == 0


def takes_weight(weight: torch.Tensor) -> bool:
    """Whether linear takes weight [out, in]: it must also be contiguous, and both sizes multiples of `lanes`."""
    return takes_rows(weight) and weight.is_contiguous() and weight.shape[0] % load().lanes == 0


class RowLinear:
    """x W^T + b for few rows x [n, in]; W [out, in] is read where it lies, once for each four rows or so.

    A row's result does not depend on the others, to the bit. What can be checked once is checked here, because a step
    calls one for each matrix. Raises NanoengineError for a weight that takes_weight refuses or a bias of another size.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        if not takes_weight(weight):
            raise NanoengineError(f"There is no native product with a weight of {_named(weight)}; use F.linear.")
        if bias is not None and (bias.dtype != weight.dtype or bias.shape != weight.shape[:1]):
            raise NanoengineError(f"A bias of {_named(bias)} does not fit a weight of {_named(weight)}.")
        self.weight, self.bias = weight, None if bias is None else bias.contiguous()
        self.out_width, self.in_width = weight.shape
        addresses = weight.data_ptr(), None if bias is None else self.bias.data_ptr()
        self._run = functools.partial(load().library.nanoengine_linear, _CODES[weight.dtype], *addresses)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        n, width = x.shape
        if width != self.in_width or x.dtype != self.weight.dtype or not x.is_cpu:
            raise NanoengineError(f"Rows of {_named(x)} do not fit a weight of {_named(self.weight)}.")
        x, out = x.contiguous(), x.new_empty(n, self.out_width)
        self._run(x.data_ptr(), out.data_ptr(), n, width, self.out_width, torch.get_num_threads())
        return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As torch_reference.rms_norm. Raises NanoengineError for what takes_rows refuses."""
    width = x.shape[-1]
    if not takes_rows(x) or weight.dtype != x.dtype or weight.shape != (width,):
        raise NanoengineError(f"There is no native norm of {_named(x)} by {_named(weight)}; use the torch kernels.")
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    load().library.nanoengine_rms_norm(
        _CODES[x.dtype], x.data_ptr(), weight.data_ptr(), out.data_ptr(),
        x.numel() // width, width, eps, torch.get_num_threads(),
    )  # fmt: skip
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As torch_reference.silu_mul. Raises NanoengineError for what takes_rows refuses."""
    if not takes_rows(gate_up, parts=2):
        raise NanoengineError(f"There is no native gate for {_named(gate_up)}; use the torch kernels.")
    gate_up = gate_up.contiguous()
    n, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(n, width)
    load().library.nanoengine_silu_mul(
        _CODES[gate_up.dtype], gate_up.data_ptr(), out.data_ptr(), n, width, torch.get_num_threads()
    )
    return out


def _named(x: torch.Tensor) -> str:
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}"
