"""What the decoder must know of a model, read from a Hugging Face config.json."""

import json
from dataclasses import dataclass
from pathlib import Path

from nanoengine.errors import NanoengineError

# What each architecture adds to the plain Llama block: biases on q, k and v; a norm on each head of q and k.
_FAMILIES = {
    "llama": {"qkv_bias": False, "qk_norm": False},
    "mistral": {"qkv_bias": False, "qk_norm": False},
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
}
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class DecoderConfig:
    """Shapes and constants of a dense decoder of the Llama, Mistral, Qwen2 or Qwen3 family."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    rms_eps: float
    rope_theta: float
    rope_scaling: dict
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    eos_token_ids: frozenset[int]

    @classmethod
    def from_hf(cls, config: dict) -> "DecoderConfig":
        """Read a Hugging Face config.json, of transformers 4 or 5. Raises NanoengineError naming the faulty key."""
        family = config.get("model_type")
        if family not in _FAMILIES:
            raise NanoengineError(
                f"The model type {family!r} is not one the engine runs; it runs {', '.join(sorted(_FAMILIES))}."
            )

        def key(name: str):
            if config.get(name) is None:
                raise NanoengineError(
                    f"config.json lacks the key {name!r}; take the file as the model's authors ship it."
                )
            return config[name]

        heads = key("num_attention_heads")
        kv_heads = config.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise NanoengineError(f"config.json has {heads} attention heads, which {kv_heads} KV heads do not divide.")
        if family != "qwen2" and config.get("attention_bias"):
            raise NanoengineError("config.json asks for attention biases, which the engine runs for qwen2 only.")
        if config.get("use_sliding_window") or (family == "mistral" and config.get("sliding_window")):
            raise NanoengineError("config.json asks for a sliding window, which the engine does not run.")
        # transformers 5 moved rope_theta and rope_scaling into rope_parameters.
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        rope_type = rope.get("rope_type") or rope.get("type") or "default"
        if rope_type not in _ROPE_TYPES:
            raise NanoengineError(
                f"config.json asks for rope scaling {rope_type!r}; the engine knows {', '.join(_ROPE_TYPES)}."
            )
        eos = config.get("eos_token_id")
        return cls(
            family=family,
            layers=key("num_hidden_layers"),
            hidden=key("hidden_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.get("head_dim") or key("hidden_size") // heads,
            intermediate=key("intermediate_size"),
            vocab=key("vocab_size"),
            max_context=key("max_position_embeddings"),
            rms_eps=key("rms_norm_eps"),
            rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
            rope_scaling={**rope, "rope_type": rope_type},
            tied=bool(config.get("tie_word_embeddings", False)),
            **_FAMILIES[family],
            eos_token_ids=frozenset([eos] if isinstance(eos, int) else eos or ()),
        )


def read_hf_config(folder: Path) -> dict:
    """The config.json of a model folder, its end tokens completed from generation_config.json."""
    config = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.exists():
        config["eos_token_id"] = _read_json(generation).get("eos_token_id", config.get("eos_token_id"))
    return config


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise NanoengineError(f"There is no {path}; give a folder in Hugging Face layout or a .gguf file.") from None
    except json.JSONDecodeError as error:
        raise NanoengineError(f"{path} is not valid JSON (line {error.lineno}: {error.msg}).") from None
