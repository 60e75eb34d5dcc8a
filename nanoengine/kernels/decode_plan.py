"""How a paged decode is cut into programs, and the bytes that this cut asks for. No torch, no Triton."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoengine.errors import NanoengineError

TILE = 64  # tokens per step of the inner loop, whatever the block size: 16 KiB of K at a head size of 128 in 16 bits
# TILE, PROGRAMS_PER_SM and MAX_SPLITS were chosen on paper: no GPU has timed them yet.
MIN_DOT = 16  # the smallest side of a matrix product that tl.dot accepts on a GPU (the interpreter accepts any)
PROGRAMS_PER_SM = 2  # so that one program's loads are under way while the other computes
MAX_SPLITS = 64  # bounds what the merge holds in registers
INTERPRETED_SPLITS = 2  # the interpreter gains nothing from a split; two, so that the merge runs there too
FP32_BYTES = 4


@dataclass(frozen=True)
class DecodePlan:
    """The launch parameters of one paged decode.

    Program (kv_head, split, sequence) reads its split of that sequence's history, `tile` tokens at a time, for all
    `group` query heads of the KV head. A sequence of T tokens has ceil(T / tile) tiles, shared evenly by `num_splits`
    splits in order; a short sequence leaves its last splits without work.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    num_splits: int
    tile: int = TILE

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of the query matrix: the group, padded to what a matrix product takes."""
        return max(MIN_DOT, _power_of_two(self.group))

    @property
    def padded_dim(self) -> int:
        """Head size, padded to what a matrix product takes."""
        return max(MIN_DOT, _power_of_two(self.head_dim))

    @property
    def grid(self) -> tuple[int, int, int]:
        """KV heads first: programs that start together then read neighbouring addresses."""
        return self.kv_heads, self.num_splits, self.batch

    def live_splits(self, length: int) -> int:
        """Splits that find tokens in a history of `length` tokens."""
        tiles = _ceil(length, self.tile)
        return _ceil(tiles, max(_ceil(tiles, self.num_splits), 1))


@dataclass(frozen=True)
class DecodeBytes:
    """Bytes that the loads and stores of one paged decode name, by purpose; masked lanes name none.

    Lanes that ask for the same address are counted each: the hardware serves them together, or from a cache.
    """

    kv: int
    q: int
    block_table: int
    context_lens: int
    partials: int
    out: int
    must_read: int

    @property
    def asked(self) -> int:
        """All bytes asked for, read or written."""
        return self.kv + self.q + self.block_table + self.context_lens + self.partials + self.out


def plan_decode(
    batch: int, heads: int, kv_heads: int, head_dim: int, max_context: int, num_sms: int, num_splits: int | None = None
) -> DecodePlan:
    """Plan for `batch` sequences of up to `max_context` tokens on a GPU of `num_sms` multiprocessors (0: interpreted).

    Splits are as many as it takes to give every multiprocessor PROGRAMS_PER_SM programs, but none shorter than a tile.
    Raises NanoengineError when the heads do not divide evenly, or when num_splits is not in 1 to MAX_SPLITS.
    """
    if heads % kv_heads:
        raise NanoengineError(f"{heads} query heads cannot share {kv_heads} KV heads evenly; give a multiple")
    if num_splits is None:
        wanted = _ceil(PROGRAMS_PER_SM * num_sms, max(batch * kv_heads, 1)) if num_sms else INTERPRETED_SPLITS
        num_splits = max(1, min(wanted, MAX_SPLITS, _ceil(max_context, TILE)))
    if not 1 <= num_splits <= MAX_SPLITS:
        raise NanoengineError(f"num_splits is {num_splits}; give 1 to {MAX_SPLITS}, or None to let the plan choose")
    return DecodePlan(batch, heads, kv_heads, head_dim, num_splits)


def bytes_asked(
    plan: DecodePlan, context_lens: Sequence[int], kv_itemsize: int, index_itemsize: int = 4
) -> DecodeBytes:
    """What the kernels of `plan` ask for when sequence i has context_lens[i] tokens, beside what they must read.

    `kv_itemsize` is the bytes of an element of the cache, of q and of the result; `index_itemsize` those of a block
    number and of a length. What must be read is K and V of every token once: sum(T) * 2 * K * D * kv_itemsize.
    """
    tokens = sum(context_lens)
    live = plan.kv_heads * sum(plan.live_splits(length) for length in context_lens)
    programs = plan.kv_heads * plan.num_splits * plan.batch
    head_rows = plan.batch * plan.heads * plan.head_dim * kv_itemsize
    kv_bytes = tokens * 2 * plan.kv_heads * plan.head_dim * kv_itemsize
    split = plan.num_splits > 1
    if not split:
        live = programs  # a lone split runs even on an empty history: it alone writes the result
    partial_bytes = live * plan.group * (plan.head_dim + 2) * FP32_BYTES  # acc, m and l of each head of the group
    return DecodeBytes(
        kv=kv_bytes,
        q=live * plan.group * plan.head_dim * kv_itemsize,
        block_table=tokens * plan.kv_heads * index_itemsize,
        context_lens=(programs + split * plan.batch * plan.heads) * index_itemsize,
        partials=split * 2 * partial_bytes,  # written by the splits, read by the merge
        out=head_rows,
        must_read=kv_bytes,
    )


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
