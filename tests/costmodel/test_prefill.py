"""The price of a prompt: counted by hand, and additive over chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoengine import DeviceSpec, ModelSpec, NanoengineError
from nanoengine.costmodel.decode import ridge_batch
from nanoengine.costmodel.prefill import gemm_roofline, prefill_attention_flop, prefill_flop, price_prefill

H100 = DeviceSpec.named("h100-sxm")
names = st.sampled_from(["qwen3-0.6b", "gemma-3-1b", "gpt-oss-20b", "deepseek-v3", "mixtral-8x7b", "phi-2"])


def test_flop_by_hand():
    model = ModelSpec.from_config("smollm2-135m")
    pairs = sum(range(1, 101))
    linear = 100 * (model.linear_params - model.vocab * model.hidden) + model.vocab * model.hidden
    assert prefill_flop(model, 100) == 2 * linear + 30 * 4 * 9 * 64 * pairs


@given(names, st.integers(2, 2048), st.data())
def test_attention_is_additive_over_chunks_and_counts_each_pair_once(name, length, data):
    model = ModelSpec.from_config(name)
    cut = data.draw(st.integers(1, length - 1))
    whole = prefill_attention_flop(model, 0, length)
    assert prefill_attention_flop(model, 0, cut) + prefill_attention_flop(model, cut, length) == pytest.approx(whole)
    if model.latent is None:
        counted = model.layer_tokens(np.arange(1, length + 1)).sum() * model.attention_flop_per_layer_token
        assert whole == pytest.approx(counted)


@given(names, st.integers(2, 2048), st.integers(1, 64))
def test_cached_tokens_never_make_a_prompt_dearer(name, length, batch):
    model = ModelSpec.from_config(name)
    prices = price_prefill(model, H100, length, batch, np.array([0, length // 2, length - 1]))
    assert prices.flop.is_monotonic_decreasing and prices.prefill_ms.is_monotonic_decreasing
    assert (prices.prefill_ms >= prices[["compute_ms", "memory_ms"]].max(axis=1)).all()


def test_one_new_token_costs_what_a_decode_step_does():
    from nanoengine import price_step

    model = ModelSpec.from_config("llama-3.1-8b")
    last = price_prefill(model, H100, 1000, cached_tokens=999).iloc[0]
    step = price_step(model, H100, 1, 1000).iloc[0]
    assert last.memory_ms == pytest.approx(step.weight_ms + step.kv_ms)
    assert last.compute_ms == pytest.approx(step.compute_ms)


def test_a_long_prompt_is_bound_by_arithmetic_and_a_short_one_by_bytes():
    model = ModelSpec.from_config("llama-3.1-8b")
    ridge = ridge_batch(model, H100)
    prices = price_prefill(model, H100, [ridge / 2, ridge * 2])
    assert prices.binds.tolist() == ["memory", "compute"]
    slow = price_prefill(model, H100, 4096, compute_efficiency=0.5, overhead_ms=3).iloc[0]
    assert slow.prefill_ms == pytest.approx(2 * price_prefill(model, H100, 4096).prefill_ms[0] + 3)


def test_gemm_roofline():
    few, many = (gemm_roofline(H100, rows, 4096, 4096).iloc[0] for rows in (1, 8192))
    assert (few.binds, many.binds) == ("memory", "compute")
    assert few.memory_ms == pytest.approx((4096**2 + 2 * 4096) * 2 / 3350e9 * 1e3)
    assert many.tflop_per_s == pytest.approx(989)
    assert few.flop_per_byte == pytest.approx(1, rel=0.001)
    assert gemm_roofline(H100, 1, 4096, 4096, "int4").gemm_ms[0] < few.gemm_ms / 3
    table = gemm_roofline(H100, [1, 2, 4], 4096, 4096)
    assert len(table) == 3 and table.gemm_ms.is_monotonic_increasing


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: price_prefill(m, DeviceSpec.named("gb10"), 100), "not published"),
        (lambda m: price_prefill(m, H100, 10**6), "exceeds"),
        (lambda m: price_prefill(m, H100, 100, cached_tokens=100), "cached_tokens must be"),
        (lambda m: price_prefill(m, H100, 0), "prompt_tokens must be positive"),
        (lambda m: price_prefill(m, H100, 10, compute_efficiency=0), "compute_efficiency is 0"),
        (lambda m: gemm_roofline(H100, 0, 1, 1), "rows must be positive"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(NanoengineError, match=says):
        call(ModelSpec.from_config("qwen3-0.6b"))
