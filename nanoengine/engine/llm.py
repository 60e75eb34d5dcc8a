"""The engine as a user sees it: prompts in, text out."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from tqdm.auto import tqdm

from nanoengine.engine.block_manager import BlockManager
from nanoengine.engine.model_runner import ModelRunner
from nanoengine.engine.sampler import Sampler
from nanoengine.engine.scheduler import Scheduler, Step
from nanoengine.engine.sequence import SamplingParams, Sequence
from nanoengine.errors import NanoengineError
from nanoengine.models.config import DecoderConfig
from nanoengine.models.decoder import Decoder
from nanoengine.models.loader import Checkpoint, load_weights, random_weights
from nanoengine.models.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from nanoengine.engine.trace import Trace

Prompt = str | list[int]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_REPLACEMENT = "�"  # what a tokenizer shows for the first bytes of a character still to come


@dataclass(frozen=True)
class Completion:
    """What one request produced. `finish_reason`: "stop" (end token), "length" or "abort"."""

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str


class LLM:
    """A model with its KV cache and scheduler.

    model: a packaged name ("smollm2"), a .gguf file, a Hugging Face folder, or a config.json as a dict, which gets
      made-up weights.
    dtype: "float32", "bfloat16" or "float16", of weights and KV cache.
    device: "cpu" or "cuda"; by default CUDA where there is one.
    threads: CPU threads for torch, process-wide; by default what torch chooses.
    block_size, num_kv_blocks: the paged KV cache; by default as many blocks as `max_num_seqs` full contexts take, at
      most a quarter of the available CPU memory or nine tenths of the free GPU memory.
    max_num_seqs, max_num_batched_tokens: how many sequences and tokens share a step at most.
    prefix_caching: whether a prompt that starts like an earlier one shares its KV instead of computing it again.
    max_model_len: longest prompt plus output, at most the model's context.
    load_format: "auto" reads the weights, "random" makes them up.

    Raises NanoengineError for a model that cannot be found, read or run, or settings that contradict each other.
    """

    def __init__(
        self,
        model: str | Path | dict = "smollm2",
        *,
        dtype: str = "float32",
        device: str | None = None,
        threads: int | None = None,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        prefix_caching: bool = True,
        max_model_len: int | None = None,
        load_format: str = "auto",
        seed: int = 0,
    ):
        if dtype not in _DTYPES:
            raise NanoengineError(f"dtype is {dtype!r}, but must be one of {', '.join(_DTYPES)}.")
        if load_format not in ("auto", "random"):
            raise NanoengineError(f'load_format is {load_format!r}, but must be "auto" or "random".')
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise NanoengineError("There is no CUDA device here; use device='cpu'.")
        if threads:
            torch.set_num_threads(threads)

        checkpoint = None if isinstance(model, dict) else Checkpoint(model)
        self.hf_config = model if checkpoint is None else checkpoint.hf_config
        config = DecoderConfig.from_hf(self.hf_config)
        self.name = f"made-up {config.family}" if checkpoint is None else Path(model).name
        self.max_model_len = max_model_len or config.max_context
        if self.max_model_len > config.max_context:
            raise NanoengineError(f"max_model_len is {max_model_len}, but the model's context is {config.max_context}.")
        if checkpoint is None or load_format == "random":
            weights = random_weights(config, _DTYPES[dtype], self.device, seed)
        else:
            weights = load_weights(checkpoint, config, _DTYPES[dtype], self.device)
        self.model = Decoder(config, weights, self.max_model_len)
        self.tokenizer = None if checkpoint is None else ChatTokenizer.of(checkpoint)

        num_kv_blocks = num_kv_blocks or self._default_num_blocks(block_size, max_num_seqs)
        self.blocks = BlockManager(num_kv_blocks, block_size, prefix_caching)
        self.scheduler = Scheduler(self.blocks, max_num_seqs, max_num_batched_tokens, self.max_model_len)
        self.runner = ModelRunner(self.model, num_kv_blocks, block_size)
        self.sampler = Sampler(seed)
        self.seed = seed
        self._seq_ids = count()

    # Generating text

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        params: SamplingParams | list[SamplingParams] | None = None,
        progress: bool = True,
    ) -> list[Completion]:
        """Complete each prompt (text or token ids), batched together; returns them in the order of `prompts`.

        `params` is one for all or one each. `progress` shows a bar that counts finished requests.
        """
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        if not isinstance(params, list):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise NanoengineError(f"There are {len(prompts)} prompts but {len(params)} SamplingParams.")
        sequences = [self._sequence(prompt, p) for prompt, p in zip(prompts, params, strict=True)]
        added, num_tokens = [], 0
        try:
            for seq in sequences:
                self.scheduler.add(seq)
                added.append(seq)
            with tqdm(total=len(sequences), desc="requests", disable=not progress) as bar:
                while self.scheduler.has_work:
                    step = self.step()
                    num_tokens += len(step.sampled)
                    bar.set_postfix_str(f"{num_tokens} tokens", refresh=False)
                    bar.update(len(step.finished))
        finally:  # a refused prompt or Ctrl-C must not leave the others in the pool
            for seq in added:
                self.scheduler.abort(seq)
        return [self._completion(seq) for seq in sequences]

    def chat(self, messages: list[dict], params: SamplingParams | None = None) -> Completion:
        """The model's answer to `messages` ({"role": "user", "content": ...}), by its own chat template."""
        return self.generate(self.chat_prompt(messages), params, progress=False)[0]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The completion of one prompt, piece by piece as its tokens come."""
        seq = self._sequence(prompt, params or SamplingParams())
        self.scheduler.add(seq)
        shown = ""
        try:
            while not seq.finish_reason:
                self.step()
                text = self._text(seq)
                if not text.endswith(_REPLACEMENT) or seq.finish_reason:
                    yield text[len(shown) :]
                    shown = text
        finally:
            self.scheduler.abort(seq)

    def chat_prompt(self, messages: list[dict]) -> str:
        """`messages` written out by the model's chat template."""
        return self._need_tokenizer().apply_chat_template(messages)

    # Running steps

    def trace(self) -> "Trace":
        """A record of what the scheduler does from now on, as tables; stop it with `close`, or use `with`."""
        from nanoengine.engine.trace import Trace  # pandas is not needed to make tokens

        return Trace(self.scheduler)

    def step(self) -> Step:
        """Schedule, run and sample one step; returns it with what it sampled and which sequences it finished."""
        step = self.scheduler.schedule()
        sampling = [chunk.seq for chunk in step.chunks if chunk.samples]
        token_ids = self.sampler(self.runner.run(step), sampling)
        sampled = {seq.seq_id: token_id for seq, token_id in zip(sampling, token_ids, strict=True)}
        self.scheduler.update(step, sampled)
        return step

    def start_decode(self, batch: int, history: int) -> list[Sequence]:
        """Put `batch` sequences straight into decode; their next step attends to `history` tokens each.

        For measurements: the cache holds made-up values, and no prefill is paid. Raises NanoengineError when the
        KV pool, `max_num_seqs` or the context is too small.
        """
        if batch < 1 or history < 1:
            raise NanoengineError(f"A decode step needs batch and history of at least 1, not {batch} and {history}.")
        sequences = []
        endless = SamplingParams(max_tokens=self.max_model_len, ignore_eos=True)
        tokens = torch.randint(self.model.config.vocab, (history,), generator=torch.Generator().manual_seed(self.seed))
        try:
            for _ in range(batch):
                seq = self._sequence(tokens.tolist(), endless)
                self.scheduler.admit_computed(seq, history - 1)
                sequences.append(seq)
                self.runner.fill_history(seq)
        except NanoengineError:
            self.abort_all()
            raise
        return sequences

    def abort_all(self) -> None:
        """Drop every waiting and running sequence and free its blocks."""
        for seq in [*self.scheduler.waiting, *self.scheduler.running.values()]:
            self.scheduler.abort(seq)

    # What a step reads

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decode step reads, as loaded."""
        return self.model.weight_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, as stored."""
        c = self.model.config
        return c.layers * 2 * c.kv_heads * c.head_dim * self.model.embedding.element_size()

    def _default_num_blocks(self, block_size: int, max_num_seqs: int) -> int:
        if self.device == "cpu":
            memory = psutil.virtual_memory().available // 4
        else:
            memory = torch.cuda.mem_get_info(self.device)[0] * 9 // 10
        return min(
            max_num_seqs * -(-self.max_model_len // block_size), memory // (block_size * self.kv_bytes_per_token)
        )

    def _sequence(self, prompt: Prompt, params: SamplingParams) -> Sequence:
        token_ids = self._need_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt
        vocab = self.model.config.vocab
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab:
            raise NanoengineError(f"The prompt has token ids outside the vocabulary (0 to {vocab - 1}).")
        return Sequence(next(self._seq_ids), token_ids, params, self.model.config.eos_token_ids)

    def _completion(self, seq: Sequence) -> Completion:
        return Completion(
            self._text(seq), seq.output_token_ids, seq.token_ids[: seq.num_prompt_tokens], seq.finish_reason
        )

    def _text(self, seq: Sequence) -> str:
        return self.tokenizer.decode(seq.output_token_ids) if self.tokenizer else ""

    def _need_tokenizer(self) -> ChatTokenizer:
        if self.tokenizer is None:
            raise NanoengineError("A model made from a config has no tokenizer; pass prompts as token ids.")
        return self.tokenizer
