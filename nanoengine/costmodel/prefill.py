"""The price of a prompt: arithmetic, where decode pays for bytes. Arrays in, arrays out."""

from collections import Counter

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from nanoengine.costmodel.decode import checked_share, positive
from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.dtypes import dtype_bytes
from nanoengine.costmodel.model import ModelSpec
from nanoengine.errors import NanoengineError


def prefill_flop(model: ModelSpec, prompt_tokens: ArrayLike, cached_tokens: ArrayLike = 0) -> ArrayLike:
    """Floating-point operations that turn a prompt into KV and one token (chapter 05).

    With n new tokens: 2 n (linear_params - head) + 2 head, since only the last token meets the output head, plus the
    attention of each new token to all before it and itself. cached_tokens of the prompt have their KV already.
    Raises NanoengineError unless at least one token is new.
    """
    prompt, cached = _checked_prompt(model, prompt_tokens, cached_tokens)
    linear = 2 * (prompt - cached) * (model.linear_params - model.head_params) + 2 * model.head_params
    return linear + prefill_attention_flop(model, cached, prompt)


def prefill_attention_flop(model: ModelSpec, start: ArrayLike, end: ArrayLike) -> ArrayLike:
    """Attention's operations for the tokens start+1 ... end of a prompt, each attending to those before and itself.

    Over the layers, the sum of min(t, window) x 4 x heads x head_dim (q.k and p.v, a multiply and an add each). Masked
    halves of tiles, which kernels compute and throw away, are not counted. A latent cache is expanded to heads first.
    """
    if model.latent:
        latent = model.latent
        per_pair = 2 * model.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
    else:
        per_pair = model.attention_flop_per_layer_token
    pairs = 0.0
    for window, count in Counter(model.windows or (None,) * model.layers).items():
        pairs = pairs + count * (_sum_to(end, window) - _sum_to(start, window))
    return pairs * per_pair


def price_prefill(
    model: ModelSpec,
    device: DeviceSpec,
    prompt_tokens: ArrayLike,
    batch: ArrayLike = 1,
    cached_tokens: ArrayLike = 0,
    efficiency: float = 1.0,
    compute_efficiency: float = 1.0,
    overhead_ms: float = 0.0,
) -> pd.DataFrame:
    """The price of the prompts of `batch` requests computed in one step, one row per combination.

    Columns: prompt_tokens, batch, cached_tokens, flop, weight_bytes, kv_bytes (cached KV read, new KV written),
    compute_ms = flop / rate, memory_ms = bytes / bandwidth, overhead_ms, prefill_ms = overhead + the larger of the two,
    tokens_per_s (new tokens), binds ("compute" or "memory"). efficiency and compute_efficiency scale bandwidth and
    rate. Raises NanoengineError for a device whose dense rate nobody publishes. Chapter 05.
    """
    rate = device.dense_flop_per_s * checked_share("compute_efficiency", compute_efficiency)
    bandwidth = device.bandwidth_gb_per_s * 1e9 * checked_share("efficiency", efficiency)
    prompt, batch, cached = (
        array.ravel() for array in np.broadcast_arrays(prompt_tokens, positive("batch", batch), cached_tokens)
    )
    prompt, cached = _checked_prompt(model, prompt, cached)
    table = pd.DataFrame({"prompt_tokens": prompt, "batch": batch, "cached_tokens": cached})
    new_tokens = batch * (prompt - cached)
    table["flop"] = batch * prefill_flop(model, prompt, cached)
    table["weight_bytes"] = model.weight_bytes_at(new_tokens)
    table["kv_bytes"] = batch * model.kv_bytes_read(prompt)
    table["compute_ms"] = table.flop / rate * 1e3
    table["memory_ms"] = (table.weight_bytes + table.kv_bytes) / bandwidth * 1e3
    table["overhead_ms"] = overhead_ms
    table["prefill_ms"] = overhead_ms + np.maximum(table.compute_ms, table.memory_ms)
    table["tokens_per_s"] = new_tokens / table.prefill_ms * 1e3
    table["binds"] = np.where(table.compute_ms > table.memory_ms, "compute", "memory")
    return table


def gemm_roofline(
    device: DeviceSpec, rows: ArrayLike, cols: ArrayLike, inner: ArrayLike, dtype: str = "bfloat16"
) -> pd.DataFrame:
    """The least time of [rows, inner] @ [inner, cols], each matrix moved once (Williams et al., 2009; chapter 05).

    Columns: rows, cols, inner, flop = 2 rows cols inner, bytes (weights [inner, cols] in `dtype`, both activations in
    16 bit), flop_per_byte, compute_ms, memory_ms, gemm_ms (the larger), tflop_per_s reached at best, binds.
    """
    rows, cols, inner = (
        array.ravel()
        for array in np.broadcast_arrays(positive("rows", rows), positive("cols", cols), positive("inner", inner))
    )
    table = pd.DataFrame({"rows": rows, "cols": cols, "inner": inner})
    table["flop"] = 2 * rows * cols * inner
    table["bytes"] = inner * cols * dtype_bytes(dtype) + 2 * rows * (inner + cols)
    table["flop_per_byte"] = table.flop / table.bytes
    table["compute_ms"] = table.flop / device.dense_flop_per_s * 1e3
    table["memory_ms"] = table.bytes / (device.bandwidth_gb_per_s * 1e6)
    table["gemm_ms"] = np.maximum(table.compute_ms, table.memory_ms)
    table["tflop_per_s"] = table.flop / table.gemm_ms / 1e9
    table["binds"] = np.where(table.compute_ms > table.memory_ms, "compute", "memory")
    return table


def _sum_to(length: ArrayLike, window: int | None) -> np.ndarray:
    """min(1, window) + ... + min(length, window)."""
    length = np.asarray(length, dtype=float)
    rising = length if window is None else np.minimum(length, window)
    return rising * (rising + 1) / 2 + (0 if window is None else (length - rising) * window)


def _checked_prompt(model: ModelSpec, prompt_tokens: ArrayLike, cached_tokens: ArrayLike):
    prompt, cached = positive("prompt_tokens", prompt_tokens), np.asarray(cached_tokens, dtype=float)
    if np.any(prompt > model.max_context):
        raise NanoengineError(f"A prompt of {prompt.max():g} exceeds {model.name}'s context of {model.max_context}.")
    if not np.all((cached >= 0) & (cached < prompt)):
        raise NanoengineError("cached_tokens must be at least 0 and below prompt_tokens: the last token is computed.")
    return prompt, cached
