"""Hugging Face transformers with SDPA attention and its default cache: the reference that most people run."""

import importlib.util
import inspect
from pathlib import Path

from nanoengine.errors import NanoengineError
from nanoengine.extras import need
from nanoengine.sweep.backends import Description
from nanoengine.sweep.machine import available_memory_bytes

# The default cache grows by concatenation: old and new K and V exist side by side, and a margin for the scores.
_COPIES = 3


class TransformersBackend:
    """The model of `AutoModelForCausalLM`, with the same weights in the same dtype as this project's engine.

    A step is one forward pass over a DynamicCache of made-up history, and the argmax; `generate()` adds to that.
    model: a packaged name, a .gguf file or a Hugging Face folder.
    """

    name = "transformers"

    def __init__(self, model="smollm2", dtype: str = "float32", threads: int | None = None, device: str | None = None):
        need("torch", "engine")
        need("psutil", "engine")
        if importlib.util.find_spec("transformers") is None:
            raise NanoengineError(
                "This backend needs transformers, which is not installed; run: pip install transformers"
            )
        import torch
        import transformers

        from nanoengine.models.config import DecoderConfig
        from nanoengine.models.loader import Checkpoint, load_weights

        if dtype not in ("float32", "bfloat16", "float16"):
            raise NanoengineError(f"dtype is {dtype!r}, but must be one of float32, bfloat16, float16.")
        if threads:
            torch.set_num_threads(threads)
        self.torch_dtype = getattr(torch, dtype)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        checkpoint = Checkpoint(model)
        hf_config = checkpoint.hf_config
        self.config = DecoderConfig.from_hf(hf_config)
        weights = load_weights(checkpoint, self.config, self.torch_dtype, self.device)
        config = transformers.AutoConfig.for_model(**hf_config)
        self.model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=self.torch_dtype, attn_implementation="sdpa"
        )
        self.model = self.model.to(self.device).eval()
        # `assign` takes our tensors as they are; a tied head is then tied again.
        self.model.load_state_dict(weights, strict=not self.config.tied, assign=True)
        self.model.tie_weights()
        self.model_name = Path(model).name
        self.dtype = dtype
        # transformers renamed the argument in 5.x and warns about the old name.
        arguments = inspect.signature(self.model.forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._cache = self._tokens = None

    def describe(self) -> Description:
        import torch

        c = self.config
        # As this project counts it: all that a step reads, which leaves out an input embedding that is not the head.
        read = {id(p): p.nbytes for p in self.model.parameters()}
        if not c.tied:
            read.pop(id(self.model.get_input_embeddings().weight))
        kv_bytes_per_token = c.layers * 2 * c.kv_heads * c.head_dim * self.torch_dtype.itemsize
        on_cpu = self.device == "cpu"
        free = available_memory_bytes() if on_cpu else torch.cuda.mem_get_info(self.device)[0]
        return Description(
            backend=self.name,
            model=self.model_name,
            dtype=self.dtype,
            threads=torch.get_num_threads() if on_cpu else 0,
            device=self.device,
            weight_bytes=sum(read.values()),
            kv_bytes_per_token=kv_bytes_per_token,
            max_context=c.max_context,
            kv_capacity_tokens=free // (_COPIES * kv_bytes_per_token),
        )

    def prepare(self, batch: int, history: int) -> None:
        import torch
        from transformers import DynamicCache

        c = self.config
        self._cache = None  # free the last cell's KV before making this one's
        cache = DynamicCache(config=self.model.config)
        # The step itself appends its token, so the cache holds one less than it attends to.
        shape = (batch, c.kv_heads, history - 1, c.head_dim)
        made_up = torch.randn(shape, dtype=self.torch_dtype, device=self.device)
        for layer in range(c.layers):
            cache.update(made_up.clone(), made_up.clone(), layer)
        self._cache = cache
        self._tokens = torch.zeros((batch, 1), dtype=torch.int64, device=self.device)

    def step(self) -> None:
        import torch

        with torch.inference_mode():
            logits = self.model(self._tokens, use_cache=True, **{self._cache_argument: self._cache}).logits
            self._tokens = logits[:, -1].argmax(dim=-1, keepdim=True)
            self._tokens.tolist()  # on a GPU this waits for the step

    def close(self) -> None:
        self.model = self._cache = None
