"""What each model family's config.json means: one reader for all, and a line per family for what is its own."""

from dataclasses import dataclass, field

from nanoengine.costmodel.architecture import Block, Experts, LatentAttention
from nanoengine.costmodel.dtypes import canonical_dtype
from nanoengine.errors import NanoengineError


@dataclass(frozen=True)
class Family:
    """The fixed choices of a family."""

    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False  # what transformers assumes where config.json is silent
    block: Block = field(default_factory=Block)
    full_every: int | None = None  # where there is a window, one layer in so many has none; None: all have it
    late_windows: bool = False  # windows only if use_sliding_window says so, and from max_window_layers on
    experts: dict = field(default_factory=dict)  # what the config calls count, intermediate and shared
    latent: bool = False


_GEMMA3 = Family(qk_norm=True, tied=True, block=Block(norms=4), full_every=6)
_DEEPSEEK = {"count": "n_routed_experts", "intermediate": "moe_intermediate_size", "shared": "n_shared_experts"}
FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True, late_windows=True),
    "qwen3": Family(qk_norm=True, late_windows=True),
    "gemma2": Family(tied=True, block=Block(norms=4), full_every=2),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "phi": Family(
        qkv_bias=True,
        block=Block(norms=1, norm_bias=True, output_bias=True, gated=False, mlp_bias=True, head_bias=True),
    ),
    "phi3": Family(),
    "mixtral": Family(experts={"count": "num_local_experts", "intermediate": "intermediate_size"}),
    "qwen3_moe": Family(
        qk_norm=True, late_windows=True, experts={"count": "num_experts", "intermediate": "moe_intermediate_size"}
    ),
    "gpt_oss": Family(
        qkv_bias=True,
        block=Block(output_bias=True, mlp_bias=True, sinks=True, router_bias=True),
        full_every=2,
        experts={"count": "num_local_experts", "intermediate": "intermediate_size"},
    ),
    "deepseek_v2": Family(latent=True, experts=_DEEPSEEK),
    "deepseek_v3": Family(latent=True, experts=_DEEPSEEK, block=Block(router_bias=True)),
}


def read_config(name: str, config: dict) -> dict:
    """The shape fields of a ModelSpec from a Hugging Face config.json; dtypes are read elsewhere.

    Raises NanoengineError for an unknown architecture, a missing key, or keys that contradict each other.
    """
    config = {**config, **config.get("text_config", {})}  # of a model that sees images, the part that decodes
    family_name = config.get("model_type")
    if family_name not in FAMILIES:
        raise NanoengineError(
            f"{name}: the model type {family_name!r} is not one that can be priced; known are "
            f"{', '.join(sorted(FAMILIES))}."
        )
    family = FAMILIES[family_name]
    keys = _Keys(name, config)
    layers, hidden, heads = keys["num_hidden_layers"], keys["hidden_size"], keys["num_attention_heads"]
    kv_heads = heads if config.get("num_key_value_heads") is None else keys["num_key_value_heads"]
    if heads % kv_heads:
        raise NanoengineError(f"{name}: {kv_heads} KV heads do not divide {heads} attention heads.")
    latent = _latent(config, keys) if family.latent else None
    if latent:
        head_dim = latent.nope_dim + latent.rope_dim
    elif config.get("head_dim") is not None:
        head_dim = keys["head_dim"]
    elif hidden % heads:
        raise NanoengineError(f"{name}: {heads} heads do not divide hidden_size {hidden}, and head_dim is missing.")
    else:
        head_dim = hidden // heads
    return {
        "family": family_name,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate": keys["intermediate_size"],
        "vocab": keys["vocab_size"],
        "max_context": keys["max_position_embeddings"],
        "tied": bool(config.get("tie_word_embeddings", family.tied)),
        "qkv_bias": family.qkv_bias or bool(config.get("attention_bias")),
        "qk_norm": family.qk_norm,
        "block": _block(family, config),
        "windows": _windows(name, family, config, keys),
        "experts": _experts(name, family, config, keys),
        "latent": latent,
    }


class _Keys:
    """Positive whole numbers of a config, or an error that names the key."""

    def __init__(self, name: str, config: dict):
        self._name, self._config = name, config

    def __getitem__(self, key: str) -> int:
        value = self._config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise NanoengineError(
                f"{self._name}: config.json needs a positive whole number for {key!r}, not {value!r}."
            )
        return value


def _block(family: Family, config: dict) -> Block:
    if family.block == Block() and config.get("attention_bias"):
        return Block(output_bias=True)
    return family.block


def _windows(name: str, family: Family, config: dict, keys: _Keys) -> tuple[int | None, ...]:
    """The window of each layer in tokens, None where it sees everything; () where no layer has one."""
    layers = keys["num_hidden_layers"]
    if config.get("sliding_window") is None or (family.late_windows and not config.get("use_sliding_window")):
        return ()
    if types := config.get("layer_types"):
        known = {"sliding_attention": True, "full_attention": False}
        if len(types) < layers or not set(types) <= set(known):
            raise NanoengineError(f"{name}: layer_types must name sliding_attention or full_attention for each layer.")
        slides = [known[kind] for kind in types[:layers]]
    elif family.late_windows:
        slides = [i >= config.get("max_window_layers", 28) for i in range(layers)]
    else:
        every = config.get("sliding_window_pattern") or family.full_every
        slides = [every is None or (i + 1) % every != 0 for i in range(layers)]
    return tuple(keys["sliding_window"] if slide else None for slide in slides) if any(slides) else ()


def _experts(name: str, family: Family, config: dict, keys: _Keys) -> Experts | None:
    if not family.experts:
        return None
    if (
        config.get("mlp_only_layers")
        or config.get("decoder_sparse_step", 1) != 1
        or config.get("moe_layer_freq", 1) != 1
    ):
        raise NanoengineError(f"{name}: experts in only some of the later layers are not priced.")
    count, per_token = keys[family.experts["count"]], keys["num_experts_per_tok"]
    if per_token > count:
        raise NanoengineError(f"{name}: a token cannot choose {per_token} of {count} experts.")
    shared, dense = config.get(family.experts.get("shared")) or 0, config.get("first_k_dense_replace") or 0
    return Experts(
        count, per_token, keys[family.experts["intermediate"]], shared, min(dense, keys["num_hidden_layers"])
    )


def _latent(config: dict, keys: _Keys) -> LatentAttention:
    return LatentAttention(
        kv_rank=keys["kv_lora_rank"],
        rope_dim=keys["qk_rope_head_dim"],
        nope_dim=keys["qk_nope_head_dim"],
        value_dim=keys["v_head_dim"],
        q_rank=None if config.get("q_lora_rank") is None else keys["q_lora_rank"],
    )


def read_dtypes(name: str, config: dict) -> tuple[str, dict[str, str]]:
    """The 16- or 32-bit dtype of a config, and what its quantization_config stores otherwise, by part.

    Quantizers leave embedding, head, router and norms in 16 bit; a config that says more needs weight_dtype from the
    caller, and so does a method that is not known here.
    """
    base = canonical_dtype(config.get("dtype") or config.get("torch_dtype") or "bfloat16", name)
    quantization = config.get("quantization_config")
    if not quantization:
        return base, {}
    method = quantization.get("quant_method")
    if method == "mxfp4":
        return base, {"experts": "mxfp4"}
    if method == "fp8":
        narrow = "float8-block" if quantization.get("weight_block_size") else "float8"
    elif method in ("gptq", "awq") and quantization.get("bits") in (4, 8):
        group = quantization.get("group_size", 128)
        narrow = f"int{quantization['bits']}" + (f":{group}" if group > 0 else "")
    else:
        raise NanoengineError(
            f"{name}: the quantization {method!r} is not one that can be priced; give a weight dtype."
        )
    return base, dict.fromkeys(("attention", "mlp", "experts"), narrow)
