"""Turns a scheduled step into tensors, runs the model over the paged KV cache, returns logits."""

from itertools import accumulate

import torch

from nanoengine import kernels
from nanoengine.engine.scheduler import Chunk, Step
from nanoengine.engine.sequence import Sequence
from nanoengine.models.decoder import Decoder


class ModelRunner:
    """Owns the KV cache: [layers, 2, num_blocks, block_size, kv_heads, head_dim] of the model's dtype."""

    def __init__(self, model: Decoder, num_blocks: int, block_size: int):
        c = model.config
        self.model = model
        self.block_size = block_size
        self.device, dtype = model.embedding.device, model.embedding.dtype
        shape = (c.layers, 2, num_blocks, block_size, c.kv_heads, c.head_dim)
        # Not zeroed: memory that no sequence uses stays untouched, and so costs nothing.
        self.kv_cache = torch.empty(shape, dtype=dtype, device=self.device)
        self._finite_blocks: set[int] = set()

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """Logits [samples, vocab]: one row for each chunk of `step` that samples, in the order of `step.chunks`."""
        chunks = step.chunks
        spans = [range(c.seq.num_computed_tokens, c.seq.num_computed_tokens + c.num_tokens) for c in chunks]
        input_ids = [token for c, span in zip(chunks, spans, strict=True) for token in _pending_tokens(c, span)]
        positions = [position for span in spans for position in span]
        slots = [self._slot(c.seq, position) for c, span in zip(chunks, spans, strict=True) for position in span]
        ends = list(accumulate(c.num_tokens for c in chunks))
        attention = PagedAttention(self, step, self._tensor(slots))
        hidden = self.model.hidden(self._tensor(input_ids), self._tensor(positions), attention)
        last_rows = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.samples]
        return self.model.logits(hidden[self._tensor(last_rows)])

    def fill_history(self, seq: Sequence) -> None:
        """Give the blocks of `seq` finite made-up KV, so that decode can be timed over a history never computed.

        The time of a step does not depend on these values, only on how many there are.
        """
        blocks = [block for block in seq.block_table if block not in self._finite_blocks]
        if blocks:
            pattern = torch.randn(self.kv_cache.shape[3:], generator=torch.Generator().manual_seed(0))
            self.kv_cache[:, :, blocks] = pattern.to(self.kv_cache)
            self._finite_blocks.update(blocks)

    def _slot(self, seq: Sequence, position: int) -> int:
        return seq.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _tensor(self, values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


class PagedAttention:
    """The `attend` of one step: writes the step's K and V to their slots, then lets each row look back.

    The first rows are decodes, one per sequence, and go through the paged decode kernel together. The rest are
    prompt chunks, each attending causally to its own sequence.
    """

    def __init__(self, runner: ModelRunner, step: Step, slot_mapping: torch.Tensor):
        self.runner = runner
        self.slot_mapping = slot_mapping
        self.scale = runner.model.config.head_dim**-0.5
        self.num_decodes = len(step.decodes)
        tables = [c.seq.block_table for c in step.decodes]
        width = max(map(len, tables), default=0)
        self.block_tables = runner._tensor([t + [-1] * (width - len(t)) for t in tables], torch.int32)
        self.context_lens = runner._tensor([len(c.seq) for c in step.decodes], torch.int32)
        self.prefills = [
            (c.seq.num_computed_tokens, c.num_tokens, runner._tensor(c.seq.block_table, torch.int32))
            for c in step.prefills
        ]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k_cache, v_cache = self.runner.kv_cache[layer]
        kernels.store_kv(k, v, k_cache, v_cache, self.slot_mapping)
        outputs = []
        if self.num_decodes:
            decode_q = q[: self.num_decodes]
            outputs.append(
                kernels.paged_decode(decode_q, k_cache, v_cache, self.block_tables, self.context_lens, self.scale)
            )
        row = self.num_decodes
        for start, num_tokens, block_table in self.prefills:
            chunk_q = q[row : row + num_tokens]
            outputs.append(kernels.paged_prefill(chunk_q, k_cache, v_cache, block_table, start, self.scale))
            row += num_tokens
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _pending_tokens(chunk: Chunk, span: range) -> list[int]:
    return chunk.seq.token_ids[span.start : span.stop]
