"""A paged history to decode over, laid out as awkwardly as the interface allows."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F


@dataclass
class PagedHistory:
    """Sequences of context_lens [B] tokens in shuffled blocks. Every slot that no token fills holds NaN."""

    q: torch.Tensor  # [B, H, D]
    keys: list[torch.Tensor]  # per sequence [T, K, D]
    values: list[torch.Tensor]
    k_cache: torch.Tensor  # [num_blocks, block_size, K, D], strided
    v_cache: torch.Tensor  # the same shape, other strides
    block_tables: torch.Tensor  # [B, blocks] int32, padded with -1
    context_lens: torch.Tensor  # [B] int32

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def arguments(self) -> tuple:
        """What paged_decode takes, but for the number of splits."""
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.context_lens, self.scale

    def attention(self) -> torch.Tensor:
        """The answer [B, H, D] in float32, from contiguous K and V repeated per query head, by torch's SDPA."""
        group = self.q.shape[1] // self.k_cache.shape[2]
        rows = []
        for q, k, v in zip(self.q.float(), self.keys, self.values, strict=True):
            k, v = (x.float().transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))  # [H, T, D]
            rows.append(F.scaled_dot_product_attention(q[:, None], k, v, scale=self.scale)[:, 0])
        return torch.stack(rows)


@pytest.fixture
def paged_history():
    """Build a PagedHistory; `pad` adds columns of -1 to the block tables."""

    def build(lens, heads=6, kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32, pad=1, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator).to(dtype)

        counts = [-(-length // block_size) for length in lens]
        free = (torch.randperm(sum(counts) + 2, generator=generator)).tolist()  # two blocks stay unused
        pool = torch.full((len(free), 2, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)
        k_cache, v_cache = pool[:, 0], pool[:, 1].transpose(1, 2).contiguous().transpose(1, 2)
        tables = torch.full((len(lens), max(counts) + pad), -1, dtype=torch.int32)
        keys = [normal(length, kv_heads, head_dim) for length in lens]
        values = [normal(length, kv_heads, head_dim) for length in lens]
        for i, length in enumerate(lens):
            table = [free.pop() for _ in range(counts[i])]
            tables[i, : counts[i]] = torch.tensor(table)
            for token in range(length):
                at = table[token // block_size], token % block_size
                k_cache[at], v_cache[at] = keys[i][token], values[i][token]
        q = (normal(len(lens), 2 * heads, head_dim) * 2)[:, ::2]  # strided, and large enough that scores differ
        return PagedHistory(q, keys, values, k_cache, v_cache, tables, torch.tensor(lens, dtype=torch.int32))

    return build


@pytest.fixture
def uninitialized_is_nan():
    """Make torch.empty return NaN, so that a result which rests on unwritten memory shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
