"""A model as its matrices: parameters, the bytes that a decode step reads, the KV bytes of a token."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from nanoengine.datasets import data_dir
from nanoengine.errors import NanoengineError

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0}

# What each family adds to a Llama block: a bias on q, k and v; a norm on each head of q and k.
_FAMILIES = {
    "llama": {"qkv_bias": False, "qk_norm": False},
    "mistral": {"qkv_bias": False, "qk_norm": False},
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
}


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder with grouped-query attention (Llama, Mistral, Qwen2, Qwen3). Chapter 01 derives its numbers.

    weight_dtype and kv_dtype name how weights and KV cache are stored: float32, bfloat16, float16, float8, int8.
    head_dim is read from the config: in Qwen3-0.6B it is 128, not hidden / heads.
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

    @classmethod
    def from_config(
        cls, source: str | Path | dict, weight_dtype: str | None = None, kv_dtype: str | None = None
    ) -> "ModelSpec":
        """Read a Hugging Face config.json: as a dict, a file, a folder that holds one, or a name in data/models/.

        weight_dtype defaults to the config's own, kv_dtype to weight_dtype. Raises NanoengineError for an unknown
        architecture, a missing key, or keys that contradict each other.
        """
        name, config = _read(source)
        family = config.get("model_type")
        if family not in _FAMILIES:
            raise NanoengineError(
                f"{name}: the model type {family!r} is not one that can be priced yet; known are "
                f"{', '.join(sorted(_FAMILIES))}."
            )

        def key(key_name: str) -> int:
            value = config.get(key_name)
            if not isinstance(value, int) or value < 1:
                raise NanoengineError(
                    f"{name}: config.json needs a positive whole number for {key_name!r}, not {value!r}."
                )
            return value

        heads = key("num_attention_heads")
        kv_heads = key("num_key_value_heads") if "num_key_value_heads" in config else heads
        if heads % kv_heads:
            raise NanoengineError(f"{name}: {kv_heads} KV heads do not divide {heads} attention heads.")
        hidden = key("hidden_size")
        if not config.get("head_dim") and hidden % heads:
            raise NanoengineError(f"{name}: {heads} heads do not divide hidden_size {hidden}, and head_dim is missing.")
        weight_dtype = weight_dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
        for dtype in (weight_dtype, kv_dtype or weight_dtype):
            if dtype not in DTYPE_BYTES:
                raise NanoengineError(f"{name}: the dtype {dtype!r} is not one of {', '.join(DTYPE_BYTES)}.")
        return cls(
            name=name,
            family=family,
            layers=key("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate=key("intermediate_size"),
            vocab=key("vocab_size"),
            max_context=key("max_position_embeddings"),
            tied=bool(config.get("tie_word_embeddings", False)),
            weight_dtype=weight_dtype,
            kv_dtype=kv_dtype or weight_dtype,
            **_FAMILIES[family],
        )

    def with_dtypes(self, weight_dtype: str, kv_dtype: str | None = None) -> "ModelSpec":
        """The same model stored otherwise."""
        return replace(self, weight_dtype=weight_dtype, kv_dtype=kv_dtype or weight_dtype)

    def matrices(self) -> pd.DataFrame:
        """Every weight of the model: matrix, count, rows, cols, params (of all copies), bytes, read_in_decode.

        read_in_decode is False for the input embedding of an untied model: a step looks up one row per request. A
        tied one is read in full, once, as the output head.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = [
            ("embedding" + (" (also the head)" if self.tied else ""), 1, self.vocab, self.hidden, self.tied),
            ("attention norm", self.layers, 1, self.hidden, True),
            ("q projection", self.layers, q, self.hidden, True),
            ("k projection", self.layers, kv, self.hidden, True),
            ("v projection", self.layers, kv, self.hidden, True),
            ("q, k, v biases", self.layers, 1, q + 2 * kv, True),
            ("q, k norms", self.layers, 2, self.head_dim, True),
            ("output projection", self.layers, self.hidden, q, True),
            ("MLP norm", self.layers, 1, self.hidden, True),
            ("gate projection", self.layers, self.intermediate, self.hidden, True),
            ("up projection", self.layers, self.intermediate, self.hidden, True),
            ("down projection", self.layers, self.hidden, self.intermediate, True),
            ("final norm", 1, 1, self.hidden, True),
            ("head", 1, self.vocab, self.hidden, True),
        ]
        absent = {"q, k, v biases": not self.qkv_bias, "q, k norms": not self.qk_norm, "head": self.tied}
        table = pd.DataFrame(
            [row for row in rows if not absent.get(row[0])],
            columns=["matrix", "count", "rows", "cols", "read_in_decode"],
        )
        table["params"] = table["count"] * table["rows"] * table["cols"]
        table["bytes"] = (table["params"] * DTYPE_BYTES[self.weight_dtype]).astype("int64")
        return table[["matrix", "count", "rows", "cols", "params", "bytes", "read_in_decode"]]

    @cached_property
    def params_total(self) -> int:
        """Parameters, a tied embedding counted once."""
        return int(self.matrices().params.sum())

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of all weights, a tied embedding counted once."""
        return int(self.matrices().bytes.sum())

    @cached_property
    def weight_bytes(self) -> int:
        """W: bytes of weights that one decode step reads, whatever its batch."""
        table = self.matrices()
        return int(table.bytes[table.read_in_decode].sum())

    @cached_property
    def linear_params(self) -> int:
        """Parameters of the matrices that multiply each token: two floating-point operations each."""
        table = self.matrices()
        return int(table.params[table.read_in_decode & (table["rows"] > 2)].sum())

    def weight_bytes_as(self, counting: str) -> int:
        """W under a named way to count, since published rates use different ones.

        "read": what a step reads, as weight_bytes. "input_counted": the input embedding of an untied model counted
        as read; it is only looked up. "tied_counted_twice": a tied matrix counted as input and as head.
        """
        embedding_bytes = int(self.vocab * self.hidden * DTYPE_BYTES[self.weight_dtype])
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
        """k: bytes of one token's K and V over all layers: layers x 2 x kv_heads x head_dim x bytes per value."""
        return int(self.layers * 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.kv_dtype])


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
