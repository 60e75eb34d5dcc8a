"""What distinguishes one decoder from the next, as data: the block, the experts, the latent attention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Block:
    """What a layer has besides its matrices. The defaults are Llama's."""

    norms: int = 2  # Gemma norms the output of attention and MLP too: 4. Phi-2 runs both off one norm: 1.
    norm_bias: bool = False  # LayerNorm has a bias, RMSNorm has none
    output_bias: bool = False
    gated: bool = True  # up and gate projection; without a gate, only up
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False  # one learned logit per head (gpt-oss)
    router_bias: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP: `per_token` of `count` run for a token, and `shared` always.

    intermediate: width of one expert. dense_layers: how many of the first layers keep an ordinary MLP.
    """

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0

    def distinct(self, batch: ArrayLike) -> ArrayLike:
        """Expected number of different experts that a step of `batch` tokens touches in a layer: E (1 - (1 - k/E)^B).

        Assumes that every token chooses uniformly and independently of the others. Real routers prefer some experts,
        and the tokens of one text resemble each other: both touch fewer, so this reads too much rather than too
        little. At batch 1 it is k exactly.
        """
        return self.count * (1 - (1 - self.per_token / self.count) ** np.asarray(batch, dtype=float))


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent vector per layer.

    A token stores kv_rank + rope_dim values in a layer, whatever the number of heads; decode multiplies queries into
    the latent space instead of expanding the cache. q_rank is None where queries are not compressed.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None = None

    @property
    def values_per_token(self) -> int:
        """Cached values of one token in one layer."""
        return self.kv_rank + self.rope_dim
