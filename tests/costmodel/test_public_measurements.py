"""What the stored public measurements say, each figure computed from data/."""

import pytest

from nanoengine import DeviceSpec, ModelSpec, fit_steps, load_table
from nanoengine.costmodel.fit_checks import implied_rates
from nanoengine.costmodel.prefill import prefill_flop


@pytest.fixture(scope="module")
def table():
    return load_table("measurements")


def attention_rows(table, series, model="llama-3.1-8b"):
    """One layer of 32 query and 8 KV heads of 128: the kernels' KV bytes."""
    rows = table[table.series == series]
    return rows.assign(kv_bytes=rows.batch * rows.history_tokens * 2 * 8 * 128 * 2, step_ms=rows.value)


def test_kernels_above_the_data_sheet_are_the_flagged_rows(table):
    rows = attention_rows(table, "aic-attention-32-8-128")
    beyond_cache = 0
    for device, kernels in rows.groupby("device"):
        spec = DeviceSpec.named(device)
        checked = implied_rates(kernels, spec.bandwidth_gb_per_s, cache_bytes=128e6)  # the largest L2 among these
        assert ((checked.verdict != "possible") == checked.suspect.notna()).all(), device
        beyond_cache += (checked.verdict == "impossible").sum()
    assert beyond_cache == 1  # all but one hold their KV in the L2 whole; that one does in part


@pytest.mark.parametrize(
    ("device", "context", "batch", "percent"),
    [
        ("a100-80gb-sxm", 1024, 1, 10),
        ("h100-sxm", 4096, 1, 35),
        ("h200-sxm", 16384, 1, 53),
        ("h100-sxm", 4096, 16, 82),
        ("h100-sxm", 16384, 16, 89),
        ("b200-sxm", 16384, 32, 93),
    ],
)
def test_share_of_the_data_sheet_that_attention_kernels_reach(table, device, context, batch, percent):
    rows = attention_rows(table, "aic-attention-32-8-128").query(
        "device == @device and context_tokens == @context and batch == @batch"
    )
    share = implied_rates(rows, DeviceSpec.named(device).bandwidth_gb_per_s).fraction_of_data_sheet
    assert 100 * share.max() == pytest.approx(percent, abs=1)


def test_linear_layers_cost_the_same_from_1_to_64_rows(table):
    gemm = table[table.kind == "kernel_gemm"]
    for (_device, _shape), rows in gemm.groupby(["device", "model_as_published"]):
        by_rows = rows.set_index("batch").value
        assert by_rows[64] < 1.35 * by_rows[1]
        assert by_rows[1024] > 1.5 * by_rows[1]  # and not from 1 to 1,024


def test_the_prompt_rate_of_the_gb10(table):
    rows = table.query("series == 'gb10-llamacpp-prefill' and model == 'qwen2.5-7b'")
    row = rows.iloc[0]
    model = ModelSpec.from_config("qwen2.5-7b")
    flop = prefill_flop(model, row.context_tokens)
    assert flop / row.context_tokens * row.value / 1e12 == pytest.approx(31.3, abs=0.1)
    # With the head counted for each token of the prompt, not for its last alone, it would be 34.
    flop += 2 * model.head_params * (row.context_tokens - 1)
    assert flop / row.context_tokens * row.value / 1e12 == pytest.approx(34, abs=0.3)


@pytest.mark.parametrize(
    ("name", "rate"), [("qwen2.5-7b", 191), ("qwen3-30b-a3b", 202), ("gpt-oss-20b", 175), ("gemma-3-4b", 186)]
)
def test_kv_rates_by_depth_with_windows_counted(table, name, rate):
    rows = table.query("series == 'gb10-llamacpp-depth' and model == @name")
    model = ModelSpec.from_config(name, kv_dtype="float16")
    kv_bytes = rows.batch.astype(float) * model.kv_bytes_read(rows.history_tokens)
    fit = fit_steps(rows.assign(kv_bytes=kv_bytes))
    assert fit.r_squared > 0.96 and fit.kv_rate_gb_per_s == pytest.approx(rate, rel=0.02)


def test_a_term_in_batch_is_weights_for_a_mixture_of_experts(table):
    costs = {}
    for name in ("qwen2.5-7b", "qwen3-30b-a3b", "gpt-oss-20b"):
        rows = table.query("series == 'gb10-llamacpp-batched' and model == @name")
        model = ModelSpec.from_config(name, kv_dtype="float16")
        kv_bytes = rows.batch.astype(float) * model.kv_bytes_read(rows.history_tokens)
        costs[name] = fit_steps(rows.assign(kv_bytes=kv_bytes), per_request=True).per_request_ms
    assert costs["qwen2.5-7b"] == pytest.approx(0.465, abs=0.001)
    assert costs["gpt-oss-20b"] > 2 * costs["qwen2.5-7b"] and costs["qwen3-30b-a3b"] > 2 * costs["qwen2.5-7b"]


def test_half_the_bytes_take_more_than_half_the_time(table):
    rows = table.query("series == 'gptfast-a100' and model == 'llama-2-7b' and chips == 1").set_index("weights")
    for weights in ("int8", "int4"):
        bytes_ratio = (
            ModelSpec.from_config("llama-2-7b", weights).weight_bytes / ModelSpec.from_config("llama-2-7b").weight_bytes
        )
        assert rows.step_ms[weights] / rows.step_ms["bf16"] > 1.2 * bytes_ratio
