"""A model as its matrices: parameters, the bytes that a decode step reads, the KV bytes of a token."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from nanoengine.costmodel.architecture import Block, Experts, LatentAttention
from nanoengine.costmodel.dtypes import canonical_dtype, dtype_bytes, weight_dtypes
from nanoengine.costmodel.families import read_config, read_dtypes
from nanoengine.costmodel.weights import PARTS, matrices_of
from nanoengine.datasets import data_dir
from nanoengine.errors import NanoengineError


@dataclass(frozen=True)
class ModelSpec:
    """A decoder of one of the families in costmodel.families. Chapter 01 derives its numbers.

    weight_dtype and kv_dtype name how the linear layers and the KV cache are stored (costmodel.dtypes);
    part_dtypes says which parts of the weights are stored otherwise. head_dim is read from the config: in Qwen3-0.6B
    it is 128, not hidden / heads. windows has the sliding window of each layer in tokens, None where a layer sees
    everything, and is empty where all do. experts and latent are None for a dense model and for ordinary attention.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    weight_dtype: str
    kv_dtype: str
    part_dtypes: tuple[tuple[str, str], ...] = ()
    block: Block = field(default_factory=Block)
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None
    latent: LatentAttention | None = None

    @classmethod
    def from_config(
        cls,
        source: str | Path | dict,
        weight_dtype: str | dict[str, str] | None = None,
        kv_dtype: str | None = None,
    ) -> "ModelSpec":
        """Read a Hugging Face config.json: as a dict, a file, a folder that holds one, or a name in data/models/.

        weight_dtype: one dtype for all matrices, or one for each part, as "int4:128,head=bf16" or the same as a dict,
        {"default": "int4:128", "head": "bf16"}; parts are embedding, attention, mlp, experts, router, norms, head.
        Norms, biases and router stay in 16 bit under a narrower dtype unless they are named. Without weight_dtype the
        config's own dtype and quantization_config hold.
        kv_dtype defaults to weight_dtype where that has 16 or 32 bits, else to the config's own dtype.
        Raises NanoengineError for an unknown architecture, a missing key, or keys that contradict each other.
        """
        name, config = _read(source)
        shape = read_config(name, config)
        config = {**config, **config.get("text_config", {})}
        if weight_dtype is not None:
            config.pop("quantization_config", None)
        base, parts = read_dtypes(name, config)
        if weight_dtype is not None:
            parts = weight_dtypes(weight_dtype)
            weight_dtype = parts.pop("default", base)
            if unknown := set(parts) - set(PARTS):
                raise NanoengineError(f"{name}: there is no part {min(unknown)!r}; the parts are {', '.join(PARTS)}.")
        main = canonical_dtype(weight_dtype or parts.get("mlp" if "mlp" in parts else "experts", base), name)
        if weight_dtype is None and main != base:
            parts = {part: base for part in ("embedding", "attention", "mlp", "head")} | parts
        if kv_dtype is None:
            kv_dtype = main if dtype_bytes(main) >= 2 else base
        return cls(
            name=name,
            weight_dtype=main,
            kv_dtype=canonical_dtype(kv_dtype, name),
            part_dtypes=_part_dtypes(main, parts, name),
            **shape,
        )

    def with_dtypes(self, weight_dtype: str, kv_dtype: str | None = None) -> "ModelSpec":
        """The same model with all matrices stored otherwise; kv_dtype defaults as in `from_config`."""
        main = canonical_dtype(weight_dtype, self.name)
        if kv_dtype is None:
            kv_dtype = main if dtype_bytes(main) >= 2 else "bfloat16"
        return replace(
            self,
            weight_dtype=main,
            kv_dtype=canonical_dtype(kv_dtype, self.name),
            part_dtypes=_part_dtypes(main, {}, self.name),
        )

    def matrices(self) -> pd.DataFrame:
        """Every weight of the model: matrix, count, rows, cols, params (of all copies), bytes, read_in_decode.

        read_in_decode is False for the input embedding of an untied model: a step looks up one row per request. A
        tied one is read in full, once, as the output head. Of a mixture of experts a step reads only the experts that
        its tokens choose; `weight_bytes_at` says how many bytes that is.
        """
        return self._layout[["matrix", "count", "rows", "cols", "params", "bytes", "read_in_decode"]].copy()

    @cached_property
    def _layout(self) -> pd.DataFrame:
        table = pd.DataFrame(
            matrices_of(self), columns=["matrix", "part", "count", "rows", "cols", "read_in_decode", "expert"]
        )
        table["params"] = table["count"] * table["rows"] * table["cols"]
        dtypes = dict(self.part_dtypes)
        table["dtype"] = [dtypes.get(part, self.weight_dtype) for part in table.part]
        table["bytes"] = (table["params"] * table.dtype.map(dtype_bytes)).astype("int64")
        return table

    @cached_property
    def params_total(self) -> int:
        """Parameters, a tied embedding counted once and every expert counted."""
        return int(self._layout.params.sum())

    @cached_property
    def params_active(self) -> int:
        """Parameters that one token runs through: of the experts only its own; the input embedding counts in full."""
        expert = self._layout.expert
        active = self._layout.params[~expert].sum()
        return int(active + self._chosen_share * self._layout.params[expert].sum())

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of all weights, a tied embedding counted once."""
        return int(self._layout.bytes.sum())

    @cached_property
    def weight_bytes(self) -> int:
        """W: bytes of weights that one decode step reads at batch 1; for a dense model, at any batch.

        The rows of the input embedding that a step looks up, one per request, are not in it.
        """
        return self._always_read_bytes + round(self._chosen_share * self._expert_bytes)

    def weight_bytes_at(self, batch: ArrayLike) -> ArrayLike:
        """W at `batch` tokens a step: that of a mixture of experts grows with the experts they touch (chapter 14).

        Expected value under uniform, independent routing, as `Experts.distinct` says.
        """
        if self.experts is None:
            return self.weight_bytes + 0 * np.asarray(batch, dtype=float)
        share = self.experts.distinct(batch) / self.experts.count
        return self._always_read_bytes + share * self._expert_bytes

    @cached_property
    def _always_read_bytes(self) -> int:
        return int(self._layout.bytes[self._layout.read_in_decode & ~self._layout.expert].sum())

    @cached_property
    def _expert_bytes(self) -> int:
        return int(self._layout.bytes[self._layout.expert].sum())

    @property
    def _chosen_share(self) -> float:
        return self.experts.per_token / self.experts.count if self.experts else 0.0

    @cached_property
    def linear_params(self) -> int:
        """Parameters of the matrices that multiply each token: two floating-point operations each."""
        table = self._layout[self._layout.read_in_decode & (self._layout["rows"] > 2)]
        expert = table.params[table.expert].sum()
        return int(table.params[~table.expert].sum() + self._chosen_share * expert)

    @property
    def head_params(self) -> int:
        """Of `linear_params`, the output head's: a prompt multiplies by it only for its last token."""
        return self.vocab * self.hidden

    def weight_bytes_as(self, counting: str) -> int:
        """W under a named way to count, since published rates use different ones.

        "read": what a step reads, as weight_bytes. "input_counted": the input embedding of an untied model counted
        as read; it is only looked up. "tied_counted_twice": a tied matrix counted as input and as head.
        """
        embedding_bytes = int(self._layout.bytes.iloc[0])
        ways = {
            "read": self.weight_bytes,
            "input_counted": self.weight_bytes + (0 if self.tied else embedding_bytes),
            "tied_counted_twice": self.weight_bytes + (embedding_bytes if self.tied else 0),
        }
        if counting not in ways:
            raise NanoengineError(f"There is no counting {counting!r}; use one of {', '.join(ways)}.")
        return ways[counting]

    @property
    def kv_bytes_per_token(self) -> int:
        """k: bytes that one more token adds to the KV cache over all layers, whatever their windows.

        layers x 2 x kv_heads x head_dim x bytes per value; layers x (kv_rank + rope_dim) x bytes for a latent cache.
        """
        return int(self.layers * self._kv_layer_bytes)

    @property
    def _kv_layer_bytes(self) -> float:
        values = self.latent.values_per_token if self.latent else 2 * self.kv_heads * self.head_dim
        return values * dtype_bytes(self.kv_dtype)

    def layer_tokens(self, history: ArrayLike) -> ArrayLike:
        """Tokens that one step attends to, summed over the layers: min(history, window) in each (chapter 04)."""
        history = np.asarray(history, dtype=float)
        if not self.windows:
            return self.layers * history
        counted = Counter(self.windows).items()
        return sum(count * (history if window is None else np.minimum(history, window)) for window, count in counted)

    def kv_bytes_read(self, history: ArrayLike) -> ArrayLike:
        """Bytes of KV that a step reads for one request of `history` tokens: k x history where no layer has a window.

        An engine that drops what has left a window holds as much; one that keeps it holds k x history.
        """
        return self.layer_tokens(history) * self._kv_layer_bytes

    @property
    def attention_flop_per_layer_token(self) -> int:
        """Multiplies and adds of one query token for each token it attends to in one layer: q.k and p.v, all heads.

        Decode with a latent cache multiplies in the latent space: kv_rank + rope_dim for q.k, kv_rank for p.v.
        """
        if self.latent:
            return 2 * self.heads * (self.latent.values_per_token + self.latent.kv_rank)
        return 4 * self.heads * self.head_dim


def _part_dtypes(main: str, parts: dict[str, str], name: str) -> tuple[tuple[str, str], ...]:
    small = ("norms", "router") if dtype_bytes(main) < 2 else ()
    dtypes = dict.fromkeys(small, "bfloat16") | {part: canonical_dtype(dtype, name) for part, dtype in parts.items()}
    return tuple(sorted((part, dtype) for part, dtype in dtypes.items() if dtype != main))


def model_names() -> list[str]:
    """Names of the configs in data/models/."""
    return sorted(path.stem for path in (data_dir() / "models").glob("*.json"))


def _read(source: str | Path | dict) -> tuple[str, dict]:
    if isinstance(source, dict):
        return str(source.get("_name_or_path") or "model"), source
    path = Path(source).expanduser()
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists():
        path = data_dir() / "models" / f"{source}.json"
    if not path.is_file():
        raise NanoengineError(
            f"There is no model {str(source)!r}; give a config.json, its folder, or one of {', '.join(model_names())}."
        )
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise NanoengineError(f"{path} is not valid JSON (line {error.lineno}: {error.msg}).") from None
    name = path.parent.name if path.name == "config.json" else path.stem
    return str(config.get("_name_or_path") or name), config
