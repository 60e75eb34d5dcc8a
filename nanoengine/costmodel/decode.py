"""The price of a decode step. Arrays in, arrays out: every function takes scalars or numpy arrays.

Step time = weights read once + each request's own KV history + a fixed overhead, or arithmetic where that is slower.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.errors import NanoengineError


def average_history(
    prompt_tokens: ArrayLike, output_tokens: ArrayLike, first_token: str = "prefill", block_size: int | None = None
) -> ArrayLike:
    """Tavg: mean tokens attended to over the decode steps of a request, exactly (chapter 02).

    A step that appends a token attends to every token before it and to the one it feeds in. With P prompt and N
    output tokens the steps attend to P+1 ... P+N-1 when prefill yields the first token (N-1 decode steps, mean
    P + N/2), and to P ... P+N-1 when a decode step does (N steps, mean P + (N-1)/2). With block_size each length is
    rounded up to whole blocks, as for a kernel that reads all of a block, or for the room that a request occupies.
    """
    prompt, output = positive("prompt_tokens", prompt_tokens), positive("output_tokens", output_tokens)
    if first_token == "prefill":
        if np.any(output < 2):
            raise NanoengineError(
                "A request whose first token comes from prefill decodes only from its second output token on."
            )
        shortest = prompt + 1
    elif first_token == "decode":
        shortest = prompt
    else:
        raise NanoengineError(f'first_token is {first_token!r}, but must be "prefill" or "decode".')
    longest = prompt + output - 1
    if block_size is None:
        return (shortest + longest) / 2
    size = positive("block_size", block_size)
    return (_rounded_sum(longest, size) - _rounded_sum(shortest - 1, size)) / (longest - shortest + 1)


def _rounded_sum(length: np.ndarray, size: np.ndarray) -> np.ndarray:
    # The sum of 1 ... length, each rounded up to a multiple of size: whole blocks of equal terms, and the rest.
    blocks, rest = np.divmod(length, size)
    return size * (size * blocks * (blocks + 1) / 2 + rest * (blocks + 1))


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
    kv_ms = B T k / bandwidth (where a layer has a window, min(T, window) in place of T), overhead_ms, compute_ms
    (2 x params x B + attention, over the dense rate; NaN where the device's rate is unknown), step_ms = overhead +
    max(weight + kv, compute), per_token_ms = step_ms / B, and binds: which of "weights", "kv", "compute", "overhead"
    is largest. Chapters 01 and 03.
    """
    batch, history = np.broadcast_arrays(positive("batch", batch), positive("history", history))
    batch, history = batch.ravel(), history.ravel()
    if np.any(history > model.max_context):
        raise NanoengineError(f"A history of {history.max():g} exceeds {model.name}'s context of {model.max_context}.")
    checked_share("efficiency", efficiency)
    if not overhead_ms >= 0:
        raise NanoengineError(f"overhead_ms is {overhead_ms}, but must not be negative.")
    bytes_per_ms = device.bandwidth_gb_per_s * efficiency * 1e6
    table = pd.DataFrame({"batch": batch, "history": history})
    table["weight_bytes"] = model.weight_bytes if model.experts is None else model.weight_bytes_at(batch)
    table["kv_bytes"] = batch * model.kv_bytes_read(history)
    table["weight_ms"] = table.weight_bytes / bytes_per_ms
    table["kv_ms"] = table.kv_bytes / bytes_per_ms
    table["overhead_ms"] = overhead_ms
    table["compute_ms"] = decode_flop(model, batch, history) / ((device.bf16_tflop_per_s or np.nan) * 1e9)
    table["step_ms"] = overhead_ms + np.fmax(table.weight_ms + table.kv_ms, table.compute_ms)
    table["per_token_ms"] = table.step_ms / batch
    terms = table[["weight_ms", "kv_ms", "overhead_ms"]].rename(columns=lambda name: name.removesuffix("_ms"))
    largest = terms.rename(columns={"weight": "weights"}).idxmax(axis=1)
    table["binds"] = largest.where(~(table.compute_ms > table.weight_ms + table.kv_ms), "compute")
    return table


def kv_floor(model: ModelSpec, device: DeviceSpec, history: ArrayLike) -> ArrayLike:
    """k x T / bandwidth in ms, T limited by a layer's window: the token's time that no batch lowers (chapter 04)."""
    return model.kv_bytes_read(positive("history", history)) / (device.bandwidth_gb_per_s * 1e6)


def amortization(model: ModelSpec, device: DeviceSpec, batch: ArrayLike) -> ArrayLike:
    """W / (B x bandwidth) in ms: each request's share of the one read of the weights (chapter 03)."""
    batch = positive("batch", batch)
    return model.weight_bytes_at(batch) / batch / (device.bandwidth_gb_per_s * 1e6)


def ridge_batch(model: ModelSpec, device: DeviceSpec) -> float:
    """Batch at which the linear layers take as long to compute as to read (chapter 03).

    Reading takes W / bandwidth, computing 2 x params x B / rate; they meet where B = W x rate / (2 x params x
    bandwidth). Raises NanoengineError for a device whose dense rate nobody publishes.
    """
    rate_per_byte = device.dense_flop_per_s / (device.bandwidth_gb_per_s * 1e9)
    tokens_per_byte = rate_per_byte / (2 * model.linear_params)
    ridge = model.weight_bytes * tokens_per_byte
    while model.experts:  # W grows with the batch, ever more slowly, so this climbs to the crossing
        last, ridge = ridge, float(model.weight_bytes_at(ridge)) * tokens_per_byte
        if ridge - last < 1e-9 * ridge:
            break
    return ridge


def largest_batch(
    model: ModelSpec,
    device: DeviceSpec,
    history: ArrayLike,
    reserve: float = 0.1,
    windows_freed: bool = True,
) -> ArrayLike:
    """Requests of `history` tokens whose KV fits beside the weights; `reserve` is the share of memory kept free.

    windows_freed: whether the engine gives back what has left a sliding window; one that does not keeps every token
    in every layer. Zero where the weights alone do not fit. Raises NanoengineError for a device of unknown memory
    size. Chapter 04.
    """
    if device.memory_gb is None:
        raise NanoengineError(f"The memory size of {device.name} is not known; give one.")
    if not 0 <= reserve < 1:
        raise NanoengineError(f"reserve is {reserve}, but must be a share of the memory, from 0 to below 1.")
    history = positive("history", history)
    free_bytes = device.memory_gb * 1e9 * (1 - reserve) - model.stored_bytes
    held_bytes = model.kv_bytes_read(history) if windows_freed else history * model.kv_bytes_per_token
    return np.floor(np.maximum(free_bytes, 0) / held_bytes)


def decode_flop(model: ModelSpec, batch: ArrayLike, history: ArrayLike) -> ArrayLike:
    """Floating-point operations of a decode step: two for each weight and token, and the attention's."""
    attention = model.attention_flop_per_layer_token * model.layer_tokens(history)
    return np.asarray(batch, dtype=float) * (2 * model.linear_params + attention)


def checked_share(name: str, share: float) -> float:
    """`share` if it is one; raises NanoengineError otherwise."""
    if not 0 < share <= 1:
        raise NanoengineError(f"{name} is {share}, but must be above 0 and at most 1.")
    return share


def positive(name: str, values: ArrayLike) -> np.ndarray:
    """`values` as floats; raises NanoengineError unless all are positive and finite."""
    values = np.asarray(values, dtype=float)
    if not np.all(np.isfinite(values) & (values > 0)):
        raise NanoengineError(f"{name} must be positive and finite.")
    return values
