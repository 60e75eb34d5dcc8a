"""Paged attention in Triton: store K and V, decode over a split history, merge the splits.

The same code is compiled on a CUDA GPU and interpreted on a CPU (see triton_runtime). Shapes as in torch_reference:
B sequences, N tokens, H query heads, K KV heads, D head size. A cache is [num_blocks, block_size, K, D], any strides.
"""

import math

import torch

from nanoengine.errors import NanoengineError
from nanoengine.kernels.decode_plan import DecodePlan, plan_decode
from nanoengine.kernels.triton_runtime import INTERPRETED, tl, triton

# Every load of a number to compute with is cast to float32 at once. The interpreter keeps bfloat16 as 16-bit integers
# and computes with those, without a word; after the cast it is exact. On a GPU the cast is where precision is wanted.


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write k, v [N, K, D] to the slots named by slot_mapping [N] int; rows with slot -1 are skipped.

    k and v have the dtype of the caches; any strides. Raises NanoengineError when shapes do not fit, or when the
    tensors are out of Triton's reach.
    """
    _check_device(k)
    num_tokens, kv_heads, head_dim = k.shape
    _check_shapes(
        k.shape == v.shape and k_cache.shape == v_cache.shape and slot_mapping.shape == (num_tokens,)
        and k.shape[1:] == k_cache.shape[2:],
        k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping,
    )  # fmt: skip
    _store_kernel[(num_tokens,)](
        k, k.stride(), v, v.stride(), k_cache, k_cache.stride(), v_cache, v_cache.stride(),
        slot_mapping.contiguous(),
        BLOCK_SIZE=k_cache.shape[1], KV_HEADS=kv_heads, HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(kv_heads * head_dim),
    )  # fmt: skip


@triton.jit
def _store_kernel(
    k, k_strides, v, v_strides, k_cache, k_cache_strides, v_cache, v_cache_strides, slot_mapping,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per token: its K and V, all heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    i = tl.arange(0, WIDTH)
    head, dim, mask = i // HEAD_DIM, i % HEAD_DIM, i < KV_HEADS * HEAD_DIM
    # Bits are moved, not computed with: no cast.
    row = tl.load(k + token * k_strides[0] + head * k_strides[1] + dim * k_strides[2], mask)
    to = block * k_cache_strides[0] + offset * k_cache_strides[1] + head * k_cache_strides[2] + dim * k_cache_strides[3]
    tl.store(k_cache + to, row, mask)
    row = tl.load(v + token * v_strides[0] + head * v_strides[1] + dim * v_strides[2], mask)
    to = block * v_cache_strides[0] + offset * v_cache_strides[1] + head * v_cache_strides[2] + dim * v_cache_strides[3]
    tl.store(v_cache + to, row, mask)


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_splits: int | None = None,
) -> torch.Tensor:
    """One query per sequence: q [B, H, D] looks back on context_lens [B] tokens; returns [B, H, D].

    block_tables [B, blocks] int, padded with -1. A length of 0 (a padding row of a captured graph) returns zeros.
    The host never waits for the device: the longest possible history stands for the longest one.
    Raises NanoengineError when num_splits is out of range, when shapes do not fit, or when the tensors are out of
    Triton's reach.
    """
    _check_device(q)
    _check_shapes(
        k_cache.shape == v_cache.shape and q.shape[2] == k_cache.shape[3]
        and len(q) == len(block_tables) == len(context_lens),
        q=q, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables, context_lens=context_lens,
    )  # fmt: skip
    plan = launch_plan(q, k_cache, block_tables, num_splits)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    split = plan.num_splits > 1
    acc, highest, total = out, None, None  # a lone split has the result itself
    if split:
        partial = (plan.batch, plan.heads, plan.num_splits)
        acc = q.new_empty(*partial, plan.head_dim, dtype=torch.float32)
        highest, total = q.new_empty(2, *partial, dtype=torch.float32)
    _decode_kernel[plan.grid](
        q, q.stride(), k_cache, k_cache.stride(), v_cache, v_cache.stride(),
        block_tables, *block_tables.stride(), context_lens.contiguous(),
        acc, highest, total, scale * math.log2(math.e),
        BLOCK_SIZE=k_cache.shape[1], GROUP=plan.group, ROWS=plan.rows, HEAD_DIM=plan.head_dim, DIM=plan.padded_dim,
        TILE=plan.tile, SPLIT=split, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=2,
    )  # fmt: skip
    if split:
        _merge_kernel[(plan.heads, plan.batch)](
            acc, highest, total, context_lens.contiguous(), out, plan.num_splits,
            HEAD_DIM=plan.head_dim, DIM=plan.padded_dim,
            TILE=plan.tile, SPLITS=triton.next_power_of_2(plan.num_splits),
        )  # fmt: skip
    return out


# Triton compiles anew for each constexpr, and for integers that are 1 or a multiple of 16. The table's width and the
# number of splits change from step to step, so they are kept out of that.
@triton.jit(do_not_specialize=["row_stride"])
def _decode_kernel(
    q, q_strides, k_cache, k_strides, v_cache, v_strides, block_tables, row_stride, column_stride, context_lens,
    acc_out, highest_out, total_out, scale_log2e,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per (KV head, split, sequence): all query heads of the KV head over one stretch of the history."""
    kv_head, split, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(context_lens + sequence)
    tiles = tl.cdiv(length, TILE)
    tiles_per_split = tl.cdiv(tiles, tl.num_programs(1))
    first = split * tiles_per_split
    if SPLIT and first >= tiles:
        return

    # Query heads that share the KV head are the rows of one matrix, so that K and V are read once for all of them.
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    head = kv_head * GROUP + row
    head_mask = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    q_at = sequence * q_strides[0] + head[:, None] * q_strides[1] + dim[None, :] * q_strides[2]
    query = tl.load(q + q_at, head_mask, other=0.0).to(tl.float32)  # [ROWS, DIM]

    highest = tl.full([ROWS], float("-inf"), tl.float32)  # largest score so far: m in the papers
    total = tl.zeros([ROWS], tl.float32)  # sum of 2 ** (score - highest): l
    acc = tl.zeros([ROWS, DIM], tl.float32)  # the same sum, each term times its V
    for tile in range(first, tl.minimum(first + tiles_per_split, tiles)):
        token = tile * TILE + tl.arange(0, TILE)
        seen = token < length
        # Each token finds its own block: a tile may lie within a block, or span many.
        block = tl.load(block_tables + sequence * row_stride + token // BLOCK_SIZE * column_stride, seen)
        block, offset = block.to(tl.int64)[:, None], (token % BLOCK_SIZE)[:, None]
        # Slots that no token has filled may hold anything, NaN too: they are not read.
        mask = seen[:, None] & (dim < HEAD_DIM)[None, :]
        k_at = block * k_strides[0] + offset * k_strides[1] + kv_head * k_strides[2] + dim[None, :] * k_strides[3]
        v_at = block * v_strides[0] + offset * v_strides[1] + kv_head * v_strides[2] + dim[None, :] * v_strides[3]
        keys = tl.load(k_cache + k_at, mask, other=0.0).to(tl.float32)  # [TILE, DIM]
        values = tl.load(v_cache + v_at, mask, other=0.0).to(tl.float32)

        # Base 2 is what the hardware computes: log2(e) is in the scale. 16-bit q, K and V are exact in TF32.
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * scale_log2e  # [ROWS, TILE]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - new_highest)  # what was summed against a lower maximum counts for less
        weights = tl.exp2(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights, values, input_precision=PRECISION)
        highest = new_highest

    output_row = sequence * (tl.num_programs(0) * GROUP) + head  # of [B, H]
    if SPLIT:
        partial = output_row * tl.num_programs(1) + split  # of [B, H, splits]
        tl.store(highest_out + partial, highest, row < GROUP)
        tl.store(total_out + partial, total, row < GROUP)
        tl.store(acc_out + partial[:, None] * HEAD_DIM + dim[None, :], acc, head_mask)
    else:
        # The highest score adds 1 to the total, so a total below 1 means that there was no token.
        acc = acc / tl.maximum(total, 1.0)[:, None]
        tl.store(acc_out + output_row[:, None] * HEAD_DIM + dim[None, :], acc, head_mask)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    acc_in, highest_in, total_in, context_lens, out, num_splits,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One program per (query head, sequence): partial softmaxes add up once they are set against one maximum."""
    output_row = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)  # of [B, H]
    split, dim = tl.arange(0, SPLITS), tl.arange(0, DIM)
    tiles = tl.cdiv(tl.load(context_lens + tl.program_id(1)), TILE)
    live = (split < num_splits) & (split * tl.cdiv(tiles, num_splits) < tiles)
    partial = output_row * num_splits + split
    highest = tl.load(highest_in + partial, live, other=-1e30).to(tl.float32)  # finite, as a difference is taken
    total = tl.load(total_in + partial, live, other=0.0).to(tl.float32)
    mask = live[:, None] & (dim < HEAD_DIM)[None, :]
    acc = tl.load(acc_in + partial[:, None] * HEAD_DIM + dim[None, :], mask, other=0.0).to(tl.float32)

    shrink = tl.exp2(highest - tl.max(highest, 0))
    merged = tl.sum(acc * shrink[:, None], 0) / tl.maximum(tl.sum(total * shrink, 0), 1.0)
    tl.store(out + output_row * HEAD_DIM + dim, merged, dim < HEAD_DIM)


def launch_plan(
    q: torch.Tensor, k_cache: torch.Tensor, block_tables: torch.Tensor, num_splits: int | None = None
) -> DecodePlan:
    """The plan that paged_decode follows for these tensors on their device."""
    num_sms = 0 if INTERPRETED else torch.cuda.get_device_properties(q.device).multi_processor_count
    max_context = block_tables.shape[1] * k_cache.shape[1]
    return plan_decode(*q.shape[:2], k_cache.shape[2], q.shape[2], max_context, num_sms, num_splits)


def _check_device(x: torch.Tensor) -> None:
    if not INTERPRETED and x.device.type != "cuda":
        raise NanoengineError(
            f"Triton compiles for the GPU here, and these tensors are on {x.device}: move them to the GPU, "
            "or set TRITON_INTERPRET=1 before Python starts"
        )


def _check_shapes(fit: bool, **tensors: torch.Tensor) -> None:
    if not fit:  # a kernel would read past the end of something
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise NanoengineError(f"these shapes do not fit together: {shapes}")
