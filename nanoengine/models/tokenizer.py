"""Text to tokens and back, with the model's own vocabulary and chat template."""

import json
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from nanoengine.errors import NanoengineError
from nanoengine.models.gguf_file import GGUFFile
from nanoengine.models.loader import Checkpoint

# How GGUF's `tokenizer.ggml.pre` names split text before byte-level BPE.
_DIGITS_APART = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS = {
    "smollm": _DIGITS_APART,
    "qwen2": [
        pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}
_CONTROL = 3  # GGUF token type of special tokens


class ChatTokenizer:
    """A `tokenizers.Tokenizer` with the chat template that belongs to it."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None, bos_token: str = "", eos_token: str = ""):
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._special_tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "ChatTokenizer":
        """The tokenizer that ships with a checkpoint. Raises NanoengineError when there is none to read."""
        return _from_gguf(checkpoint.gguf) if checkpoint.gguf else _from_folder(checkpoint.path)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written out in it (as chat templates do) become single tokens."""
        return self._tokenizer.encode(text).ids

    def decode(self, token_ids: list[int]) -> str:
        """Text of `token_ids` without special tokens."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def apply_chat_template(self, messages: list[dict]) -> str:
        """The prompt that asks the model for the next message after `messages` ({"role": ..., "content": ...})."""
        if not self._chat_template:
            raise NanoengineError("This model ships no chat template; use generate() with a plain prompt.")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            template = environment.from_string(self._chat_template)
            return template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)
        except jinja2.TemplateError as error:
            raise NanoengineError(f"The model's chat template does not accept these messages ({error}).") from None


def _from_gguf(file: GGUFFile) -> ChatTokenizer:
    pre = file.field("tokenizer.ggml.pre", "default")
    if file.field("tokenizer.ggml.model") != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise NanoengineError(
            f"{file.path} uses the tokenizer {pre!r}, which is read from GGUF only for "
            f"{', '.join(_PRE_TOKENIZERS)}; use the model's Hugging Face folder."
        )
    tokens = file.field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.field("tokenizer.ggml.token_type")
    control = [AddedToken(token, special=True) for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(control)
    return ChatTokenizer(
        tokenizer,
        file.field("tokenizer.chat_template", ""),
        bos_token=tokens[file.field("tokenizer.ggml.bos_token_id", 0)],
        eos_token=tokens[file.field("tokenizer.ggml.eos_token_id")],
    )


def _from_folder(folder: Path) -> ChatTokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise NanoengineError(f"{folder} has no tokenizer.json; pass token ids, or fetch the file.")
    settings = folder / "tokenizer_config.json"
    config = json.loads(settings.read_text()) if settings.exists() else {}
    template = folder / "chat_template.jinja"

    def token(key: str) -> str:
        value = config.get(key) or ""
        return value["content"] if isinstance(value, dict) else value

    return ChatTokenizer(
        Tokenizer.from_file(str(path)),
        template.read_text() if template.exists() else config.get("chat_template"),
        bos_token=token("bos_token"),
        eos_token=token("eos_token"),
    )
