"""Model weights from a GGUF file or a safetensors folder, or made up, as float32 or 16-bit tensors."""

from collections.abc import Iterator
from pathlib import Path

import torch

from nanoengine.errors import NanoengineError
from nanoengine.models.config import DecoderConfig, read_hf_config
from nanoengine.models.find import find_model
from nanoengine.models.gguf_file import GGUFFile


class Checkpoint:
    """A model on disk: `hf_config`, its `tensors`, and where its tokenizer is described.

    `path` is a .gguf file or a folder with config.json and *.safetensors.
    """

    def __init__(self, model: str | Path):
        self.path = find_model(model)
        self.gguf = GGUFFile(self.path) if self.path.is_file() else None
        self.hf_config = self.gguf.hf_config if self.gguf else read_hf_config(self.path)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every (Hugging Face name, tensor) of the checkpoint, one at a time."""
        return self.gguf.tensors() if self.gguf else _safetensors(self.path)


def _safetensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise NanoengineError(f"{folder} has no *.safetensors file; convert the weights or fetch that format.")
    for shard in shards:
        try:
            with safe_open(shard, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise NanoengineError(f"{shard} cannot be read ({error}); fetch it again.") from None


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor that the decoder needs."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes = {"model.embed_tokens.weight": (c.vocab, c.hidden), "model.norm.weight": (c.hidden,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.hidden)
    layer = {
        "input_layernorm.weight": (c.hidden,),
        "self_attn.q_proj.weight": (q, c.hidden),
        "self_attn.k_proj.weight": (kv, c.hidden),
        "self_attn.v_proj.weight": (kv, c.hidden),
        "self_attn.o_proj.weight": (c.hidden, q),
        "post_attention_layernorm.weight": (c.hidden,),
        "mlp.gate_proj.weight": (c.intermediate, c.hidden),
        "mlp.up_proj.weight": (c.intermediate, c.hidden),
        "mlp.down_proj.weight": (c.hidden, c.intermediate),
    }
    if c.qkv_bias:
        layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", q), ("k", kv), ("v", kv))}
    if c.qk_norm:
        layer |= {f"self_attn.{p}_norm.weight": (c.head_dim,) for p in "qk"}
    return shapes | {f"model.layers.{i}.{name}": shape for i in range(c.layers) for name, shape in layer.items()}


def load_weights(
    checkpoint: Checkpoint, config: DecoderConfig, dtype: torch.dtype, device: str
) -> dict[str, torch.Tensor]:
    """The decoder's tensors in `dtype` on `device`; each one's presence and shape is checked."""
    shapes = expected_shapes(config)
    weights = {}
    for name, values in checkpoint.tensors():
        if name not in shapes:
            if name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq"):
                continue  # a stored copy of a tied head; a table that the decoder computes itself
            raise NanoengineError(f"{checkpoint.path} holds {name}, which its config.json does not account for.")
        if tuple(values.shape) != shapes[name]:
            raise NanoengineError(
                f"{checkpoint.path} stores {name} as {tuple(values.shape)}, but its config.json means {shapes[name]}."
            )
        weights[name] = values.to(device=device, dtype=dtype)
    if missing := shapes.keys() - weights.keys():
        raise NanoengineError(f"{checkpoint.path} lacks {len(missing)} tensors, {min(missing)} among them.")
    return weights


def random_weights(config: DecoderConfig, dtype: torch.dtype, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Made-up weights of the right shapes, scaled so that activations stay finite: time does not depend on values."""
    generator = torch.Generator(device).manual_seed(seed)

    def make(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(shape, dtype=dtype, device=device)
        values = torch.empty(shape, dtype=dtype, device=device)
        return values.normal_(0.0, config.hidden**-0.5, generator=generator)

    return {name: make(name, shape) for name, shape in expected_shapes(config).items()}
