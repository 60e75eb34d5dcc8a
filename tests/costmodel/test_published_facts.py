"""The published figures, recomputed from data/: each to the digits that were printed."""

import numpy as np
import pytest

from nanoengine import DeviceSpec, ModelSpec, average_history, fit_steps, load_table
from nanoengine.costmodel.fit import GIB
from nanoengine.costmodel.fit_views import matched_cells, segments, within_batch


@pytest.fixture(scope="module")
def qwen3():
    return ModelSpec.from_config("qwen3-0.6b")


@pytest.fixture(scope="module")
def spark():
    table = load_table("dgx_spark_decode")
    k = ModelSpec.from_config("qwen2.5-7b").kv_bytes_per_token
    return table.assign(kv_bytes=table.batch * table.context * k)  # what the published column rounds


@pytest.fixture(scope="module")
def rates():
    return load_table("published_rates").set_index("quantity")


def close(value, digits):
    """Equal to a printed figure, to half of its last digit."""
    decimals = len(str(digits).partition(".")[2])
    return pytest.approx(float(digits), abs=0.5 * 10**-decimals + 1e-9) == value


def test_models(qwen3):
    qwen25 = ModelSpec.from_config("qwen2.5-7b", kv_dtype="float16")
    assert qwen3.kv_bytes_per_token == 114_688 and qwen3.params_total == 596_049_920
    assert close(qwen3.weight_bytes / 1e9, "1.192")
    assert close(qwen3.weight_bytes_as("tied_counted_twice") / 1e9, "1.503")
    assert qwen25.kv_bytes_per_token == 57_344
    assert close(qwen25.weight_bytes / GIB, "13.17") and close(qwen25.weight_bytes_as("input_counted") / GIB, "14.19")
    for batch, context, gib in [(1, 4096, "0.21875"), (1, 16384, "0.875"), (16, 16384, "14.0"), (1, 32000, "1.709")]:
        assert close(batch * context * qwen25.kv_bytes_per_token / GIB, gib)


def test_resident_kv_is_batch_times_context_times_k(spark):
    k = ModelSpec.from_config("qwen2.5-7b").kv_bytes_per_token
    assert (spark.batch * spark.context * k / GIB).round(2).tolist() == spark.resident_kv_gib.tolist()


def test_context_sweep(qwen3, rates):
    sweep = load_table("context_sweep")
    histories = average_history(sweep.prompt_tokens.to_numpy(), sweep.output_tokens.to_numpy())
    assert histories.tolist() == [768, 3584]
    by_decode = average_history(sweep.prompt_tokens.to_numpy(), sweep.output_tokens.to_numpy(), first_token="decode")
    assert (histories - by_decode).tolist() == [0.5, 0.5]
    assert close(histories[1] / histories[0], "4.67") and sweep.prompt_tokens[1] / sweep.prompt_tokens[0] == 12
    short_ms, long_ms = sweep.step_ms
    rise = long_ms - short_ms
    assert close(rise, "0.409") and close(100 * rise / short_ms, "13.6")
    # KV share at the shorter history that the two times imply, if time follows bytes
    implied = rise / (histories[1] / histories[0] - 1) / short_ms
    assert close(100 * implied, "3.7")
    kv_bytes = histories * qwen3.kv_bytes_per_token
    twice = qwen3.weight_bytes_as("tied_counted_twice")
    assert close(100 * kv_bytes[0] / (twice + kv_bytes[0]), "5.5")
    assert close(100 * kv_bytes[0] / (qwen3.weight_bytes + kv_bytes[0]), "6.9")
    published = rates.loc["sweep_bandwidth"]
    for W, low, high in [(twice, "530.8", "561.9"), (qwen3.weight_bytes, "427.0", "470.5")]:
        assert close((W + kv_bytes[0]) / short_ms / 1e6, low) and close((W + kv_bytes[1]) / long_ms / 1e6, high)
    assert round((twice + kv_bytes[0]) / short_ms / 1e6) == published.value
    assert round((twice + kv_bytes[1]) / long_ms / 1e6) == published.value_high
    assert (kv_bytes[1] - kv_bytes[0]) / rise / 1e6 == pytest.approx(790, abs=1)
    assert DeviceSpec.named("rtx-4070").bandwidth_gb_per_s < published.value


@pytest.mark.parametrize(("framework", "prefix", "n"), [("transformers", "hf", 7), ("vllm", "vllm", 9)])
def test_published_fits(spark, rates, framework, prefix, n):
    # The printed slopes come out to their last digit from the printed, rounded KV.
    fit = fit_steps(spark[spark.framework == framework].assign(kv_bytes=lambda t: t.resident_kv_gib * GIB))
    value = rates.value
    assert fit.n == n
    assert fit.intercept_ms == pytest.approx(value[f"{prefix}_intercept"], abs=0.05)
    assert fit.slope_ms_per_gib == pytest.approx(value[f"{prefix}_slope"], abs=0.005)
    assert fit.r_squared == pytest.approx(value[f"{prefix}_r_squared"], abs=0.0005)
    assert fit.kv_rate_gb_per_s == pytest.approx(value[f"{prefix}_kv_rate"], abs=0.05)
    weight_rate = fit.weight_rate_gb_per_s(value["spark_weights"] * GIB)
    assert weight_rate == pytest.approx(value[f"{prefix}_weight_rate"], abs=0.15)


def test_what_the_published_finding_rests_on(spark):
    hf, vllm = (spark[spark.framework == name].reset_index(drop=True) for name in ("transformers", "vllm"))
    fit = fit_steps(vllm)
    flagged = vllm.index[(vllm.batch == 16) & (vllm.context == 16384)][0]
    assert close(fit.leverage[flagged], "0.72") and close(fit.cooks_distance[flagged], "7.5")
    assert round(fit.residuals_ms[flagged]) == 26
    without = fit_steps(vllm.drop(flagged))
    assert close(without.intercept_ms, "88.2") and close(without.slope_ms_per_gib, "11.9")
    assert close(without.r_squared, "0.943")
    left_out = fit.leave_one_out().set_index("left_out").loc[flagged]
    assert left_out.slope_ms_per_gib == pytest.approx(without.slope_ms_per_gib)
    hf_cells, vllm_cells = matched_cells(hf, vllm)  # 32,000 stands for 32,768
    matched = fit_steps(vllm_cells)
    assert len(hf_cells) == matched.n == 7 and close(matched.slope_ms_per_gib, "9.9")
    assert matched.intercept_ms == pytest.approx(91.0, abs=0.1) and close(matched.r_squared, "0.972")
    hf_fit = fit_steps(hf)
    # Slope and intercept of the two frameworks differ by so many per cent: published, without the point, matched.
    for other, slope, intercept in [(fit, 8, 26), (without, 27, 12), (matched, 39, 9)]:
        assert abs(other.slope_ms_per_gib / hf_fit.slope_ms_per_gib - 1) * 100 == pytest.approx(slope, abs=1)
        assert abs(other.intercept_ms / hf_fit.intercept_ms - 1) * 100 == pytest.approx(intercept, abs=0.6)
    smallest = vllm.index[vllm.kv_bytes == vllm.kv_bytes.min()][0]
    assert round(fit.residuals_ms[smallest]) == 17


def test_the_translated_line(spark, rates):
    # The HF line moved down by the difference of the intercepts stays near the vLLM line over the range drawn.
    value = rates.value
    down = value["hf_intercept"] - value["vllm_intercept"]
    kv_gib = np.linspace(0, 14, 100)
    hf, vllm = (value[f"{name}_intercept"] + value[f"{name}_slope"] * kv_gib for name in ("hf", "vllm"))
    assert close(down, "26.4") and abs(hf - down - vllm).max() == pytest.approx(17.4, abs=0.05)


def test_weight_rates_with_what_a_step_reads(spark, rates):
    model, value = ModelSpec.from_config("qwen2.5-7b"), rates.value
    input_bytes = model.weight_bytes_as("input_counted") - model.weight_bytes
    assert input_bytes == 152_064 * 3584 * 2 and close(input_bytes / GIB, "1.015")
    for name, rate, share in [("hf", 141, 60), ("vllm", 191, 81)]:
        honest = model.weight_bytes / value[f"{name}_intercept"] / 1e6
        assert round(honest) == rate and round(100 * honest / value["spark_achieved_bandwidth"]) == share
    published = [value[f"{name}_weight_rate"] / value[f"{name}_kv_rate"] for name in ("vllm", "hf")]
    assert close(published[0], "3.4") and close(published[1], "2.3")
    # Three passes over the KV at the fitted rate would be near what vLLM's weight reads reach.
    assert round(3 * value["hf_kv_rate"]) == 197


def test_the_slope_within_each_batch_size(spark):
    hf = spark[spark.framework == "transformers"]
    assert segments(hf).kv_rate_gb_per_s.between(64, 76).all()
    assert within_batch(hf).kv_rate_gb_per_s.between(65, 69).all()
    vllm = segments(spark[spark.framework == "vllm"])
    assert vllm.kv_rate_gb_per_s.round().tolist() == [110, 142, 161, 80, 52]


def test_which_card_ran_the_sweep(qwen3, rates):
    sweep, value = load_table("context_sweep"), rates.loc["sweep_gemm_rate"]
    histories = average_history(sweep.prompt_tokens.to_numpy(), sweep.output_tokens.to_numpy())
    kv_bytes = histories * qwen3.kv_bytes_per_token
    marginal = np.diff(kv_bytes)[0] / np.diff(sweep.step_ms.to_numpy(float))[0] / 1e6
    needed = (qwen3.weight_bytes + kv_bytes[0]) / sweep.step_ms[0] / 1e6  # the lower reading of W
    consumer = load_table("devices").query("kind.str.contains('consumer')", engine="python")
    fits = (consumer.bandwidth_gb_per_s >= max(marginal, needed)) & consumer.bf16_tflop_per_s.between(
        value.value, 1.5 * value.value_high
    )
    assert consumer.device[fits].tolist() == ["rtx-3090"]


def test_a_cost_per_request_in_the_seeds(spark):
    hf, vllm = (spark[spark.framework == name] for name in ("transformers", "vllm"))
    three = fit_steps(hf.assign(kv_bytes=hf.resident_kv_gib * GIB), per_request=True)  # from the printed KV
    assert close(three.intercept_ms, "98.8") and close(three.per_request_ms, "0.62") and close(three.r_squared, "0.998")
    assert close(three.slope_ms_per_gib, "15.9")
    biased = fit_steps(vllm, per_request=True)
    assert close(biased.intercept_ms, "75.0") and close(biased.slope_ms_per_gib, "18.1")
    assert close(biased.per_request_ms, "-0.37")  # negative: not physical
    clean = fit_steps(vllm[~((vllm.batch == 16) & (vllm.context == 16384))], per_request=True)
    assert close(clean.intercept_ms, "88.5") and close(clean.r_squared, "0.975")
    assert close(clean.slope_ms_per_gib, "9.9") and close(clean.per_request_ms, "0.72")


def test_the_control_on_the_same_machine():
    table = load_table("gb10_llamacpp_decode")
    k = ModelSpec.from_config("qwen2.5-7b").kv_bytes_per_token
    table = table.assign(kv_bytes=table.batch * table.history * k, step_ms=table.total_s / table.steps * 1e3)
    two, three = fit_steps(table), fit_steps(table, per_request=True)
    assert close(two.intercept_ms, "38.3") and close(two.slope_ms_per_gib, "6.02") and close(two.r_squared, "0.967")
    assert close(three.intercept_ms, "35.8") and close(three.slope_ms_per_gib, "5.02")
    assert close(three.per_request_ms, "0.465") and close(three.r_squared, "0.995")
    assert round(three.kv_rate_gb_per_s) == 214
    # Weights of Q8_0 without the input table: a weight byte and a KV byte cost the same there.
    weight_bytes = ModelSpec.from_config("qwen2.5-7b", "q8_0").weight_bytes
    assert three.weight_rate_gb_per_s(weight_bytes) / three.kv_rate_gb_per_s == pytest.approx(1.0, abs=0.05)


def test_the_headline():
    table = load_table("headline_benchmark").set_index("framework")
    assert (table.output_tokens / table.total_s).round(0).tolist() == table.output_tokens_per_s.round(0).tolist()
    assert close(table.total_s["vllm"] / table.total_s["nano-vllm"], "1.053")
