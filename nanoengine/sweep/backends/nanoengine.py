"""This project's own engine, through its scheduler, block manager and sampler: what a step costs a user."""

from nanoengine.errors import NanoengineError
from nanoengine.extras import need
from nanoengine.sweep.backends import Description


class NanoengineBackend:
    """`llm`, or an LLM made from the other arguments (see nanoengine.LLM; `settings` go to it)."""

    name = "nanoengine"

    def __init__(
        self,
        model="smollm2",
        dtype: str = "float32",
        threads: int | None = None,
        device: str | None = None,
        *,
        llm=None,
        **settings,
    ):
        need("torch", "engine")
        if llm is None:
            from nanoengine import LLM

            llm = LLM(model, dtype=dtype, threads=threads, device=device, **settings)
        self.llm = llm
        self._batch = 0

    def describe(self) -> Description:
        import torch

        llm = self.llm
        return Description(
            backend=self.name,
            model=llm.name,
            dtype=str(llm.model.embedding.dtype).removeprefix("torch."),
            threads=torch.get_num_threads() if llm.device == "cpu" else 0,
            device=llm.device,
            weight_bytes=llm.weight_bytes,
            kv_bytes_per_token=llm.kv_bytes_per_token,
            max_context=llm.max_model_len,
            kv_capacity_tokens=llm.blocks.num_blocks * llm.blocks.block_size,
            kv_block_tokens=llm.blocks.block_size,
        )

    def prepare(self, batch: int, history: int) -> None:
        self.llm.abort_all()
        self.llm.start_decode(batch, history)
        self._batch = batch

    def step(self) -> None:
        sampled = len(self.llm.step().sampled)
        if sampled != self._batch:
            raise NanoengineError(
                f"A step served {sampled} of {self._batch} requests, so its time is of no use; the KV pool or the "
                "context is too small for this cell."
            )

    def close(self) -> None:
        self.llm.abort_all()
        self.llm = None
