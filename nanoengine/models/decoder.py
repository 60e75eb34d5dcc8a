"""The model: Llama, Mistral, Qwen2 and Qwen3 decoders, in reading order.

Shapes: N rows, one per token of the step; H heads, K KV heads, D head size. The model knows nothing of batches, blocks
or caches: `attend` takes a layer's q, k, v and returns what those rows saw.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from nanoengine import kernels
from nanoengine.models.config import DecoderConfig
from nanoengine.models.linear import Linear


class Attend(Protocol):
    """Stores k, v [N, K, D] of `layer` and returns each row's attention output [N, H, D] for q [N, H, D]."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor: ...


class Decoder:
    """Embedding, `layers` blocks, final norm, output head. Consumes `weights` (Hugging Face names)."""

    def __init__(self, config: DecoderConfig, weights: dict[str, torch.Tensor], max_context: int):
        self.config = config
        self.embedding = weights["model.embed_tokens.weight"]  # [vocab, hidden]
        self.layers = [_Layer(config, i, weights) for i in range(config.layers)]
        self.norm = weights["model.norm.weight"]
        self.head = Linear(self.embedding if config.tied else weights["lm_head.weight"])
        angles = torch.outer(torch.arange(max_context, dtype=torch.float32), rope_frequencies(config))
        self.cos = torch.cat((angles.cos(), angles.cos()), dim=1).to(self.embedding)  # [max_context, D]
        self.sin = torch.cat((-angles.sin(), angles.sin()), dim=1).to(self.embedding)

    def hidden(self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Last hidden state [N, hidden] of rows with `input_ids` [N] at `positions` [N], both int64."""
        x = F.embedding(input_ids, self.embedding)  # [N, hidden]
        cos, sin = self.cos[positions, None], self.sin[positions, None]  # [N, 1, D]
        for i, layer in enumerate(self.layers):
            x = x + layer.attention(x, cos, sin, lambda q, k, v, i=i: attend(i, q, k, v))
            x = x + layer.mlp(x)
        return kernels.rms_norm(x, self.norm, self.config.rms_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocab] of hidden states [N, hidden]."""
        return self.head(hidden)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads: all but the input embedding, of which it takes N rows."""
        return sum(layer.num_bytes for layer in self.layers) + self.norm.nbytes + self.head.num_bytes


class _Layer:
    """One block. q, k and v share one matrix, and so do gate and up: fewer, larger reads."""

    def __init__(self, config: DecoderConfig, index: int, weights: dict[str, torch.Tensor]):
        def take(*names: str, kind: str = "weight") -> torch.Tensor | None:
            parts = [weights.pop(f"model.layers.{index}.{name}.{kind}", None) for name in names]
            return None if parts[0] is None else torch.cat(parts)

        self.config = config
        qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
        self.attention_norm = take("input_layernorm")
        self.qkv = Linear(take(*qkv), take(*qkv, kind="bias"))
        self.out = Linear(take("self_attn.o_proj"))
        self.mlp_norm = take("post_attention_layernorm")
        self.gate_up = Linear(take("mlp.gate_proj", "mlp.up_proj"))
        self.down = Linear(take("mlp.down_proj"))
        self.q_norm, self.k_norm = take("self_attn.q_norm"), take("self_attn.k_norm")

    def attention(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Callable) -> torch.Tensor:
        c = self.config
        qkv = self.qkv(kernels.rms_norm(x, self.attention_norm, c.rms_eps))
        qk, v = qkv.view(len(x), -1, c.head_dim).split([c.heads + c.kv_heads, c.kv_heads], dim=1)  # [N, H + K | K, D]
        if c.qk_norm:
            q, k = qk.split([c.heads, c.kv_heads], dim=1)
            norms = kernels.rms_norm(q, self.q_norm, c.rms_eps), kernels.rms_norm(k, self.k_norm, c.rms_eps)
            qk = torch.cat(norms, dim=1)
        q, k = rotate(qk, cos, sin).split([c.heads, c.kv_heads], dim=1)
        return self.out(attend(q, k, v).flatten(1))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        c = self.config
        return self.down(kernels.silu_mul(self.gate_up(kernels.rms_norm(x, self.mlp_norm, c.rms_eps))))

    @property
    def num_bytes(self) -> int:
        norms = [n for n in (self.attention_norm, self.mlp_norm, self.q_norm, self.k_norm) if n is not None]
        linears = (self.qkv, self.out, self.gate_up, self.down)
        return sum(n.nbytes for n in norms) + sum(linear.num_bytes for linear in linears)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [N, heads, D]: dimensions i and i + D/2 turn together by the row's angle i.

    (a, b) becomes (a cos - b sin, b cos + a sin). Rolled by half of D, each lies where its partner was; the minus is
    in the first half of sin [N, 1, D].
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def rope_frequencies(config: DecoderConfig) -> torch.Tensor:
    """Radians per position of each of the D/2 rotary pairs, float32 [D/2].

    `llama3` scaling as Meta published it with Llama 3.1: wavelengths beyond the original context are stretched by
    `factor`, short ones kept, those between blended.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**half
    scaling = config.rope_scaling
    if scaling["rope_type"] == "linear":
        return frequencies / scaling["factor"]
    if scaling["rope_type"] == "llama3":
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return keep * frequencies + (1 - keep) * frequencies / scaling["factor"]
    return frequencies
