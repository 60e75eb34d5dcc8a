"""Every kernel in plain torch: what the others are checked against, and the CPU's last resort.

Shapes: B sequences, N tokens, H query heads, K KV heads, D head size. A cache is [num_blocks, block_size, K, D]; the
slot of a token is block * block_size + offset. Query heads h * H/K ... (h + 1) * H/K - 1 share KV head h.
"""

import torch
import torch.nn.functional as F

from nanoengine.errors import NanoengineError

PREFILL_TILE = 256  # queries handled together: bounds the mask, and skips the keys that none of them may see


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write k, v [N, K, D] to the slots named by slot_mapping [N] int64; rows with slot -1 are skipped."""
    keep = slot_mapping >= 0
    if not keep.all():
        k, v, slot_mapping = k[keep], v[keep], slot_mapping[keep]
    k_cache.flatten(0, 1).index_copy_(0, slot_mapping, k)
    v_cache.flatten(0, 1).index_copy_(0, slot_mapping, v)


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One query per sequence: q [B, H, D] looks back on context_lens [B] tokens; returns [B, H, D].

    A KV head's query heads are laid as rows of one matrix, so each K and V is gathered and read once for all of them.
    Raises NanoengineError for a length that its row of the table cannot hold, or a block outside the cache.
    """
    kv_heads, head_dim = k_cache.shape[2:]
    out = torch.empty_like(q)
    for i, length in enumerate(context_lens.tolist()):
        k, v = gather_history(k_cache, v_cache, block_tables[i], length)  # [K, T, D]
        rows = q[i].view(1, kv_heads, -1, head_dim)  # [1, K, H/K, D]
        out[i] = F.scaled_dot_product_attention(rows, k[None], v[None], scale=scale).reshape(-1, head_dim)
    return out


def paged_prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    start: int,
    scale: float,
) -> torch.Tensor:
    """Queries q [n, H, D] at positions start .. start + n - 1 of one sequence; returns [n, H, D].

    The query at position p sees positions 0 .. p, whose K and V are in the cache already.
    """
    n, heads, _ = q.shape
    kv_heads = k_cache.shape[2]
    k, v = gather_history(k_cache, v_cache, block_table, start + n)  # [K, T, D]
    # K and V are shown to each query head of their group by a stride of 0: no copy, and SDPA's fast path still runs.
    group = (kv_heads, heads // kv_heads)
    k, v = (x[:, None].expand(*group, -1, -1) for x in (k, v))
    queries = q.transpose(0, 1).unflatten(0, group)  # [K, H/K, n, D]
    out = torch.empty_like(q)
    for first in range(0, n, PREFILL_TILE):
        rows = slice(first, min(first + PREFILL_TILE, n))
        seen = start + rows.stop  # what lies behind this tile's last query is not even looked at
        mask = torch.ones(rows.stop - first, seen, dtype=torch.bool, device=q.device).tril(start + first)
        tile = F.scaled_dot_product_attention(
            queries[:, :, rows], k[:, :, :seen], v[:, :, :seen], attn_mask=mask, scale=scale
        )
        out[rows] = tile.flatten(0, 1).transpose(0, 1)
    return out


def gather_history(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of a sequence's first `length` tokens, each [K, length, D], copied out of its blocks."""
    num_blocks, block_size = k_cache.shape[:2]
    if not 1 <= length <= len(block_table) * block_size:
        raise NanoengineError(
            f"A context length of {length} lies outside 1 to {len(block_table) * block_size}, the tokens that its row "
            "of the block table can hold."
        )
    blocks = block_table[: -(-length // block_size)]
    if blocks.device.type == "cpu" and not 0 <= int(blocks.min()) <= int(blocks.max()) < num_blocks:
        raise NanoengineError(f"The block table names a block outside the cache, which has {num_blocks}.")
    return tuple(cache.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1) for cache in (k_cache, v_cache))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [.., D], weight [D]."""
    return F.rms_norm(x, weight.shape, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [n, width] of gate and up side by side, [n, 2 * width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
