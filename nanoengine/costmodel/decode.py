"""The price of a decode step. Arrays in, arrays out: every function takes scalars or numpy arrays.

Step time = weights read once + each request's own KV history + a fixed overhead, or arithmetic where that is slower.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.errors import NanoengineError


def average_history(prompt_tokens: ArrayLike, output_tokens: ArrayLike, first_token: str = "prefill") -> ArrayLike:
    """Tavg: mean tokens attended to over the decode steps of a request, exactly (chapter 02).

    A step that appends a token attends to every token before it and to the one it feeds in. With P prompt and N
    output tokens the steps attend to P+1 ... P+N-1 when prefill yields the first token (N-1 decode steps, mean
    P + N/2), and to P ... P+N-1 when a decode step does (N steps, mean P + (N-1)/2).
    """
    prompt, output = _positive("prompt_tokens", prompt_tokens), _positive("output_tokens", output_tokens)
    if first_token == "prefill":
        if np.any(output < 2):
            raise NanoengineError(
                "A request whose first token comes from prefill decodes only from its second output token on."
            )
        return prompt + output / 2
    if first_token == "decode":
        return prompt + (output - 1) / 2
    raise NanoengineError(f'first_token is {first_token!r}, but must be "prefill" or "decode".')


def price_step(
    model: ModelSpec,
    device: DeviceSpec,
    batch: ArrayLike,
    history: ArrayLike,
    overhead_ms: float = 0.0,
    efficiency: float = 1.0,
) -> pd.DataFrame:
    """The priced decode step of `batch` requests with `history` tokens each, one row per (batch, history) pair.

    batch and history broadcast against each other. efficiency scales the device's bandwidth: 1.0 prices a step that
    no implementation can beat. Columns: batch, history, weight_bytes, kv_bytes, weight_ms = W / bandwidth,
    kv_ms = B T k / bandwidth, overhead_ms, compute_ms (2 x params x B + attention, over the dense rate; NaN where
    the device's rate is unknown), step_ms = overhead + max(weight + kv, compute), per_token_ms = step_ms / B, and
    binds: which of "weights", "kv", "compute", "overhead" is largest. Chapters 01 and 03.
    """
    batch, history = np.broadcast_arrays(_positive("batch", batch), _positive("history", history))
    batch, history = batch.ravel(), history.ravel()
    if np.any(history > model.max_context):
        raise NanoengineError(f"A history of {history.max():g} exceeds {model.name}'s context of {model.max_context}.")
    if not 0 < efficiency <= 1:
        raise NanoengineError(f"efficiency is {efficiency}, but must be above 0 and at most 1.")
    if not overhead_ms >= 0:
        raise NanoengineError(f"overhead_ms is {overhead_ms}, but must not be negative.")
    bytes_per_ms = device.bandwidth_gb_per_s * efficiency * 1e6
    table = pd.DataFrame({"batch": batch, "history": history})
    table["weight_bytes"] = model.weight_bytes
    table["kv_bytes"] = batch * history * model.kv_bytes_per_token
    table["weight_ms"] = table.weight_bytes / bytes_per_ms
    table["kv_ms"] = table.kv_bytes / bytes_per_ms
    table["overhead_ms"] = overhead_ms
    table["compute_ms"] = _decode_flop(model, batch, history) / ((device.bf16_tflop_per_s or np.nan) * 1e9)
    table["step_ms"] = overhead_ms + np.fmax(table.weight_ms + table.kv_ms, table.compute_ms)
    table["per_token_ms"] = table.step_ms / batch
    terms = table[["weight_ms", "kv_ms", "overhead_ms"]].rename(columns=lambda name: name.removesuffix("_ms"))
    largest = terms.rename(columns={"weight": "weights"}).idxmax(axis=1)
    table["binds"] = largest.where(~(table.compute_ms > table.weight_ms + table.kv_ms), "compute")
    return table


def kv_floor(model: ModelSpec, device: DeviceSpec, history: ArrayLike) -> ArrayLike:
    """k x T / bandwidth in ms: the per-token time that no batch size lowers (chapter 04)."""
    return _positive("history", history) * model.kv_bytes_per_token / (device.bandwidth_gb_per_s * 1e6)


def amortization(model: ModelSpec, device: DeviceSpec, batch: ArrayLike) -> ArrayLike:
    """W / (B x bandwidth) in ms: each request's share of the one read of the weights (chapter 03)."""
    return model.weight_bytes / _positive("batch", batch) / (device.bandwidth_gb_per_s * 1e6)


def ridge_batch(model: ModelSpec, device: DeviceSpec) -> float:
    """Batch at which the linear layers take as long to compute as to read (chapter 03).

    Reading takes W / bandwidth, computing 2 x params x B / rate; they meet where B = W x rate / (2 x params x
    bandwidth). Raises NanoengineError for a device whose dense rate nobody publishes.
    """
    if device.bf16_tflop_per_s is None:
        raise NanoengineError(f"The dense BF16 rate of {device.name} is not published; measure it.")
    ops_per_byte = device.bf16_tflop_per_s * 1e12 / (device.bandwidth_gb_per_s * 1e9)
    return model.weight_bytes * ops_per_byte / (2 * model.linear_params)


def largest_batch(model: ModelSpec, device: DeviceSpec, history: ArrayLike, reserve: float = 0.1) -> ArrayLike:
    """Requests of `history` tokens whose KV fits beside the weights; `reserve` is the share of memory kept free.

    Zero where the weights alone do not fit. Raises NanoengineError for a device of unknown memory size.
    """
    if device.memory_gb is None:
        raise NanoengineError(f"The memory size of {device.name} is not known; give one.")
    free_bytes = device.memory_gb * 1e9 * (1 - reserve) - model.stored_bytes
    return np.floor(np.maximum(free_bytes, 0) / (_positive("history", history) * model.kv_bytes_per_token))


def _decode_flop(model: ModelSpec, batch: np.ndarray, history: np.ndarray) -> np.ndarray:
    # A multiply and an add for each weight, and for each of q.k and p.v over the history.
    attention = 4 * model.layers * model.heads * model.head_dim * history
    return batch * (2 * model.linear_params + attention)


def _positive(name: str, values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if not np.all(np.isfinite(values) & (values > 0)):
        raise NanoengineError(f"{name} must be positive and finite.")
    return values
