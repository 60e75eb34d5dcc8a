"""A GGUF file: its metadata as a Hugging Face config, its tensors dequantized under Hugging Face names."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from gguf import GGUFReader, dequantize

from nanoengine.errors import NanoengineError

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class GGUFFile:
    """Reads one GGUF file. Raises NanoengineError if it is missing, cut short, or not a GGUF file."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._reader = GGUFReader(path)
            self._architecture = self.field("general.architecture")
        # The reader maps the file and trusts its offsets, so a cut or foreign file fails in any of these ways.
        except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
            raise NanoengineError(
                f"{path} is not a whole GGUF file ({error or type(error).__name__}); fetch or install it again."
            ) from None

    def field(self, key: str, default=None):
        """One metadata value; without a default, a missing key is an error."""
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise NanoengineError(f"{self.path} lacks the metadata key {key!r}; fetch a complete GGUF file.")
        return default

    @cached_property
    def hf_config(self) -> dict:
        """The metadata in the words of a Hugging Face config.json."""
        arch = self._architecture
        tensors = {tensor.name for tensor in self._reader.tensors}
        hidden = self.field(f"{arch}.embedding_length")
        heads = self.field(f"{arch}.attention.head_count")
        if "rope_freqs.weight" in tensors:
            raise NanoengineError(f"{self.path} scales its rotary frequencies, which is read from safetensors only.")
        return {
            "model_type": arch,
            "_name_or_path": self.field("general.name", self.path.stem),
            "num_hidden_layers": self.field(f"{arch}.block_count"),
            "hidden_size": hidden,
            "intermediate_size": self.field(f"{arch}.feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.field(f"{arch}.attention.head_count_kv", heads),
            "head_dim": self.field(f"{arch}.attention.key_length", hidden // heads),
            "vocab_size": len(self.field("tokenizer.ggml.tokens")),
            "max_position_embeddings": self.field(f"{arch}.context_length"),
            "rms_norm_eps": self.field(f"{arch}.attention.layer_norm_rms_epsilon"),
            "rope_theta": self.field(f"{arch}.rope.freq_base", 10000.0),
            "tie_word_embeddings": "output.weight" not in tensors,
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
        }

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor as (Hugging Face name, float32 values)."""
        for tensor in self._reader.tensors:
            try:
                values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            except NotImplementedError:
                raise NanoengineError(
                    f"{self.path} stores {tensor.name} as {tensor.tensor_type.name}, which the gguf library cannot "
                    "dequantize; use a file in Q8_0, Q4_0, Q4_1, Q6_K, F16, BF16 or F32."
                ) from None
            yield self._hf_name(tensor.name), self._hf_layout(tensor.name, values)

    def _hf_name(self, name: str) -> str:
        if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
            layer, part, kind = match.groups()
            if part in _LAYER_NAMES:
                return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
        top, _, kind = name.rpartition(".")
        if top in _TOP_NAMES:
            return f"{_TOP_NAMES[top]}.{kind}"
        raise NanoengineError(f"{self.path} holds a tensor {name!r} that a dense decoder does not have.")

    def _hf_layout(self, name: str, values: torch.Tensor) -> torch.Tensor:
        # GGUF's llama interleaves the two halves of each rotary pair; Hugging Face keeps the halves apart.
        if self._architecture == "llama" and (part := re.search(r"attn_(q|k)\.", name)):
            heads = self.hf_config["num_attention_heads" if part[1] == "q" else "num_key_value_heads"]
            pairs = values.reshape(heads, -1, 2, *values.shape[1:])
            return pairs.transpose(1, 2).reshape(values.shape)
        return values
