"""The price model: what must hold whatever the model and the device."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoengine import DeviceSpec, ModelSpec, NanoengineError, average_history, price_step
from nanoengine.costmodel.decode import amortization, kv_floor, largest_batch, ridge_batch
from nanoengine.costmodel.fit import fit_steps
from nanoengine.costmodel.model import model_names
from nanoengine.datasets import data_dir, load_table

MODELS = {name: ModelSpec.from_config(name) for name in model_names()}
DEVICES = [DeviceSpec.named(name) for name in load_table("devices").device]
models, devices = st.sampled_from(list(MODELS.values())), st.sampled_from(DEVICES)
batches, histories = st.integers(1, 512), st.integers(1, 2048)  # the shortest context in data/models


@given(models, devices, batches, batches, histories)
def test_more_batch_never_raises_the_weight_time_of_a_token(model, device, a, b, history):
    few, many = sorted((a, b))
    assert amortization(model, device, many) <= amortization(model, device, few)
    prices = price_step(model, device, [few, many], history)
    assert prices.step_ms[0] <= prices.step_ms[1]


@given(models, devices, batches, histories, histories)
def test_more_history_never_lowers_a_step(model, device, batch, a, b):
    short, long = price_step(model, device, batch, sorted((a, b))).step_ms
    assert short <= long


@given(models, devices, batches, histories, st.floats(0, 10))
def test_the_floor_is_below_every_price(model, device, batch, history, overhead_ms):
    price = price_step(model, device, batch, history, overhead_ms).iloc[0]
    assert kv_floor(model, device, history) < price.per_token_ms
    assert price.step_ms >= price.weight_ms + price.kv_ms + overhead_ms
    parts = {"weights": price.weight_ms, "kv": price.kv_ms, "overhead": overhead_ms, "compute": price.compute_ms}
    assert parts[price.binds] >= max(price.weight_ms, price.kv_ms, overhead_ms) or price.binds == "compute"


@given(st.integers(1, 5000), st.integers(2, 5000))
def test_average_history_is_the_mean_of_the_steps(prompt, output):
    exact = np.mean(range(prompt + 1, prompt + output))  # the first token came from prefill
    assert average_history(prompt, output) == pytest.approx(exact)
    assert average_history(prompt, output, "decode") == pytest.approx(np.mean(range(prompt, prompt + output)))


@given(st.integers(1, 3000), st.integers(2, 3000), st.sampled_from([1, 16, 256]))
def test_average_history_in_whole_blocks(prompt, output, block_size):
    exact = np.mean([-(-t // block_size) * block_size for t in range(prompt + 1, prompt + output)])
    assert average_history(prompt, output, block_size=block_size) == pytest.approx(exact)


def test_a_price_by_hand():
    model, device = MODELS["smollm2-135m"], DeviceSpec("test", bandwidth_gb_per_s=100, bf16_tflop_per_s=10)
    price = price_step(model, device, 4, 1000, overhead_ms=1, efficiency=0.5).iloc[0]
    assert price.weight_ms == pytest.approx(134_515_008 * 2 / 50e9 * 1e3)
    assert price.kv_ms == pytest.approx(4 * 1000 * 23_040 / 50e9 * 1e3)
    assert price.step_ms == pytest.approx(price.weight_ms + price.kv_ms + 1) and price.binds == "weights"
    assert price.per_token_ms == pytest.approx(price.step_ms / 4)


def test_compute_binds_beyond_the_ridge():
    model, device = MODELS["qwen2.5-7b"], DeviceSpec.named("h100-sxm")
    ridge = ridge_batch(model, device)
    assert 200 < ridge < 400  # near FLOP per byte of the card: 295
    below, above = price_step(model, device, [ridge / 4, ridge * 4], 1).binds
    assert (below, above) == ("weights", "compute")
    moe = MODELS["qwen3-30b-a3b"]  # its experts meet few tokens each, so that the ridge lies far higher
    ridge = ridge_batch(moe, device)
    assert ridge > 2000
    price = price_step(moe, device, ridge, 1).iloc[0]
    assert price.weight_ms == pytest.approx(price.compute_ms, rel=1e-3)
    with pytest.raises(NanoengineError, match="not published"):
        ridge_batch(model, DeviceSpec.named("gb10"))


def test_the_largest_batch_fits_and_one_more_does_not():
    model, device = MODELS["qwen3-0.6b"], DeviceSpec.named("rtx-4070-laptop")
    batch = largest_batch(model, device, 1000)
    room = device.memory_gb * 0.9e9 - model.stored_bytes
    assert batch * 1000 * model.kv_bytes_per_token <= room < (batch + 1) * 1000 * model.kv_bytes_per_token
    assert largest_batch(MODELS["llama-3.1-70b"], device, 1000) == 0


def test_dtypes_scale_the_bytes():
    model = MODELS["llama-3.1-8b"]
    assert model.with_dtypes("float32").weight_bytes == 2 * model.weight_bytes
    assert model.with_dtypes("bfloat16", "float8").kv_bytes_per_token * 2 == model.kv_bytes_per_token


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "rwkv"}, "model type 'rwkv'"),
        ({"num_hidden_layers": None}, "'num_hidden_layers', not None"),
        ({"hidden_size": -5}, "'hidden_size', not -5"),
        ({"num_key_value_heads": 7}, "7 KV heads do not divide 16"),
        ({"dtype": "int3"}, "dtype 'int3'"),
    ],
)
def test_configs_that_cannot_be_priced(change, says):
    config = json.loads((data_dir() / "models" / "qwen3-0.6b.json").read_text())
    with pytest.raises(NanoengineError, match=says):
        ModelSpec.from_config(config | change)


def test_configs_are_found_by_name_file_and_folder(tmp_path):
    text = (data_dir() / "models" / "qwen3-0.6b.json").read_text()
    (tmp_path / "config.json").write_text(text)
    named = ModelSpec.from_config("qwen3-0.6b")
    assert ModelSpec.from_config(tmp_path) == ModelSpec.from_config(tmp_path / "config.json") == named
    with pytest.raises(NanoengineError, match="There is no model 'qwen9'"):
        ModelSpec.from_config("qwen9")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(NanoengineError, match="not valid JSON"):
        ModelSpec.from_config(tmp_path)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m, d: price_step(m, d, 0, 10), "batch must be positive"),
        (lambda m, d: price_step(m, d, 1, -1), "history must be positive"),
        (lambda m, d: price_step(m, d, 1, float("nan")), "history must be positive and finite"),
        (lambda m, d: price_step(m, d, 1, 10**6), "exceeds Qwen/Qwen3-0.6B's context"),
        (lambda m, d: price_step(m, d, 1, 10, efficiency=1.5), "efficiency is 1.5"),
        (lambda m, d: price_step(m, d, 1, 10, overhead_ms=-1), "must not be negative"),
        (lambda m, d: average_history(10, 1), "from its second output token"),
        (lambda m, d: average_history(10, 5, "luck"), "first_token is 'luck'"),
        (lambda m, d: DeviceSpec("x", 0), "bandwidth must be positive"),
        (lambda m, d: DeviceSpec.named("abacus"), "There is no device 'abacus'"),
        (lambda m, d: m.weight_bytes_as("by feel"), "There is no counting 'by feel'"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(NanoengineError, match=says) as caught:
        call(MODELS["qwen3-0.6b"], DEVICES[0])
    assert "\n" not in str(caught.value)


def test_pricing_imports_no_torch():
    code = (
        "import sys; from nanoengine import ModelSpec, DeviceSpec, price_step, fit_steps, load_table;"
        "price_step(ModelSpec.from_config('qwen3-0.6b'), DeviceSpec.named('gb10'), 1, 100);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_fit_finds_the_terms_that_made_the_data():
    import pandas as pd

    rng = np.random.default_rng(0)
    batch, history = rng.integers(1, 32, 60), rng.integers(100, 8000, 60)
    kv = batch * history * 1e5
    frame = pd.DataFrame({"batch": batch, "kv_bytes": kv, "step_ms": 10 + kv / 200e6 + 0.3 * batch})
    frame["step_ms"] += rng.normal(0, 0.2, 60)
    fit = fit_steps(frame, per_request=True)
    for term, truth in [("intercept", 10), ("kv_gib", 2**30 / 200e6), ("batch", 0.3)]:
        low, high = fit.interval(term)
        assert low < truth < high and high - low < 0.2 * truth + 0.2
    assert fit.kv_rate_gb_per_s == pytest.approx(200, rel=0.02)
    assert fit.leverage.sum() == pytest.approx(3)
    band = fit.predict(kv, batch)
    assert (band.low_ms < band.step_ms).all() and (band.step_ms < band.high_ms).all()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"kv_bytes": [1, 2], "step_ms": [1, 2]}, "2 points cannot show how well 2 terms fit"),
        ({"kv_bytes": [1, 1, 1], "step_ms": [1, 2, 3]}, "same KV bytes"),
        ({"kv_bytes": [1, 2, float("nan")], "step_ms": [1, 2, 3]}, "Row 3"),
        ({"kv_bytes": [1, 2, 3], "step_ms": [1, 0, 3]}, "Row 2"),
        ({"kv": [1, 2, 3], "step_ms": [1, 2, 3]}, "kv_bytes is missing"),
    ],
)
def test_data_that_cannot_identify_the_terms(columns, says):
    import pandas as pd

    with pytest.raises(NanoengineError, match=says):
        fit_steps(pd.DataFrame(columns))
    frame = pd.DataFrame({"kv_bytes": [1e9, 2e9, 3e9, 4e9], "batch": [1, 2, 3, 4], "step_ms": [1.0, 2, 3, 4.5]})
    with pytest.raises(NanoengineError, match="move together"):
        fit_steps(frame, per_request=True)
