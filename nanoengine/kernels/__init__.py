"""Attention over a paged KV cache: one small interface, several backends."""

from nanoengine.kernels.torch_reference import paged_decode as _torch_decode
from nanoengine.kernels.torch_reference import paged_prefill, store_kv


def paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale, backend=None):
    """One query per sequence over its paged history; see torch_reference.paged_decode for shapes."""
    return _torch_decode(q, k_cache, v_cache, block_tables, context_lens, scale)


__all__ = ["paged_decode", "paged_prefill", "store_kv"]
