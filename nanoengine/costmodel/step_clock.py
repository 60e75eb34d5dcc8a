"""The time of one scheduled step, decodes and chunks of prompts together, as plain numbers for a simulator."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from nanoengine.costmodel.decode import checked_share
from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.costmodel.prefill import prefill_attention_flop
from nanoengine.errors import NanoengineError


class StepTime(NamedTuple):
    """Milliseconds of one step by cause; they add up to the step. Arrays where the histories were arrays.

    arithmetic_ms: what decodes compute beyond the time of their reads. prefill_ms: what prompts add to a step.
    """

    weight_ms: float
    kv_ms: float
    arithmetic_ms: float
    prefill_ms: float
    overhead_ms: float

    @property
    def total_ms(self) -> float:
        return self.weight_ms + self.kv_ms + self.arithmetic_ms + self.prefill_ms + self.overhead_ms


class StepClock:
    """Prices steps of one model on one device (chapter 12).

    Kernels run one after the other, so each has its own roofline: the linear layers, which take all rows of a step at
    once, cost the larger of reading the weights and multiplying; the attention of decodes the larger of reading their
    KV and its arithmetic; the attention of prompts likewise, added. A step of decodes alone whose arithmetic hides
    behind its reads costs exactly what `price_step` says. Raises NanoengineError for a device of unknown dense rate.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        efficiency: float = 1.0,
        compute_efficiency: float = 1.0,
        overhead_ms: float = 0.0,
    ):
        if not overhead_ms >= 0:
            raise NanoengineError(f"overhead_ms is {overhead_ms}, but must not be negative.")
        self.model = model
        self.overhead_ms = overhead_ms
        self._bytes_per_ms = device.bandwidth_gb_per_s * checked_share("efficiency", efficiency) * 1e6
        self._flop_per_ms = device.dense_flop_per_s * checked_share("compute_efficiency", compute_efficiency) / 1e3
        self._body_flop = 2 * (model.linear_params - model.head_params)
        self._head_flop = 2 * model.head_params
        layer_bytes = model.kv_bytes_per_token / model.layers
        self._kv_ms = layer_bytes / self._bytes_per_ms  # of one token in one layer
        self._attention_ms = model.attention_flop_per_layer_token / self._flop_per_ms

    def price(
        self,
        decodes: int,
        layer_tokens: float | np.ndarray,
        prefills: Iterable[tuple[int, int]] = (),
        sampling: int = 0,
    ) -> StepTime:
        """One step. decodes: requests that decode. layer_tokens: what they attend to, as `ModelSpec.layer_tokens`,
        summed over them. prefills: start and end of each chunk of a prompt. sampling: chunks that end their prompt.
        """
        rows = decodes + sum(end - start for start, end in prefills)
        weight_ms = self._weight_bytes(rows) / self._bytes_per_ms
        kv_ms = layer_tokens * self._kv_ms
        decode_linear_ms = decodes * (self._body_flop + self._head_flop) / self._flop_per_ms
        linear_ms = (rows * self._body_flop + (decodes + sampling) * self._head_flop) / self._flop_per_ms
        prefill_ms = max(weight_ms, linear_ms) - max(weight_ms, decode_linear_ms)
        for start, end in prefills:
            flop_ms = float(prefill_attention_flop(self.model, start, end)) / self._flop_per_ms
            read_ms = float(self.model.layer_tokens(end)) * self._kv_ms
            prefill_ms += max(flop_ms, read_ms)
        arithmetic_ms = max(0.0, decode_linear_ms - weight_ms)
        arithmetic_ms = arithmetic_ms + np.maximum(0.0, layer_tokens * self._attention_ms - kv_ms)
        return StepTime(weight_ms, kv_ms, arithmetic_ms, prefill_ms, self.overhead_ms)

    def _weight_bytes(self, rows: int) -> float:
        model = self.model
        return model.weight_bytes if model.experts is None else float(model.weight_bytes_at(rows))
