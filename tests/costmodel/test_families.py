"""What a config means, family by family: windows, experts, latent attention, quantization."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoengine import DeviceSpec, ModelSpec, NanoengineError, price_step
from nanoengine.costmodel.decode import largest_batch
from nanoengine.costmodel.dtypes import canonical_dtype, dtype_bytes
from nanoengine.costmodel.model import model_names
from nanoengine.datasets import data_dir

GIB = 2**30
MODELS = {name: ModelSpec.from_config(name) for name in model_names()}
any_model = st.sampled_from(sorted(MODELS))


def config_of(name):
    return json.loads((data_dir() / "models" / f"{name}.json").read_text())


def test_all_families_are_covered():
    from nanoengine.costmodel.families import FAMILIES

    covered = {model.family for model in MODELS.values()}
    assert covered >= set(FAMILIES) - {"gemma3", "deepseek_v2"}  # the same readers under another name


@pytest.mark.parametrize(
    ("name", "windowed", "window"),
    [
        ("gemma-2-9b", 21, 4096),
        ("gemma-3-1b", 22, 512),
        ("gemma-3-4b", 29, 1024),
        ("gemma-3-27b", 52, 1024),
        ("gpt-oss-20b", 12, 128),
        ("phi-3-mini-4k", 32, 2047),
    ],
)
def test_windows_by_layer(name, windowed, window):
    model = MODELS[name]
    assert model.windows.count(window) == windowed and model.windows.count(None) == model.layers - windowed
    k = model.kv_bytes_per_token
    assert model.kv_bytes_read(window) == window * k  # nothing has left a window yet
    beyond = model.kv_bytes_read(np.array([window + 1000, window + 2000]))
    assert np.diff(beyond)[0] == pytest.approx(1000 * k * (model.layers - windowed) / model.layers)


def test_layer_types_say_which_layers_have_a_window():
    config = config_of("gpt-oss-20b")
    types = ["sliding_attention", "full_attention"] * 12
    assert ModelSpec.from_config(config | {"layer_types": types}) == MODELS["gpt-oss-20b"]
    with pytest.raises(NanoengineError, match="layer_types"):
        ModelSpec.from_config(config | {"layer_types": types[:-1]})
    with pytest.raises(NanoengineError, match="layer_types"):
        ModelSpec.from_config(config | {"layer_types": ["linear_attention"] * 24})


def test_qwen_windows_only_where_switched_on():
    config = config_of("qwen2.5-7b") | {"sliding_window": 4096, "max_window_layers": 20}
    assert ModelSpec.from_config(config).windows == ()
    assert ModelSpec.from_config(config | {"use_sliding_window": True}).windows == (None,) * 20 + (4096,) * 8


@given(any_model, st.integers(1, 2047))
def test_kv_bytes_read_rise_with_history_and_never_above_all_tokens(name, history):
    model = MODELS[name]
    here, next_one = model.kv_bytes_read([history, history + 1])
    assert 0 < here <= next_one and here <= history * model.kv_bytes_per_token


def test_experts_by_batch():
    model = MODELS["mixtral-8x7b"]
    assert model.experts.distinct(1) == 2 and model.experts.distinct(10**4) == pytest.approx(8)
    # Two tokens choose 2 of 8 each: by counting pairs of choices, 28 x 28 of them, 3.5 experts on average.
    from itertools import combinations, product

    pairs = list(product(combinations(range(8), 2), repeat=2))
    assert model.experts.distinct(2) == pytest.approx(np.mean([len(set(a) | set(b)) for a, b in pairs]))
    assert model.weight_bytes_at(1) == pytest.approx(model.weight_bytes)
    input_bytes = model.vocab * model.hidden * 2
    assert model.weight_bytes_at(10**4) == pytest.approx(model.stored_bytes - input_bytes)
    dense = MODELS["llama-3.1-8b"]
    assert dense.weight_bytes_at([1, 64]).tolist() == [dense.weight_bytes] * 2


@given(st.sampled_from(["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"]), st.integers(1, 4096))
def test_experts_make_a_batch_dearer_but_a_token_cheaper(name, batch):
    model = MODELS[name]
    one, more = model.weight_bytes_at([batch, batch + 1])
    assert one <= more and more / (batch + 1) < one / batch
    assert model.weight_bytes <= one * (1 + 1e-12) and one < model.stored_bytes


def test_active_parameters():
    assert MODELS["mixtral-8x7b"].params_active == 12_879_925_248
    assert MODELS["qwen3-30b-a3b"].params_active == 3_353_032_704
    assert MODELS["deepseek-v3"].params_active == pytest.approx(37e9, rel=0.02)  # the model card's 37 billion
    # gpt-oss' card leaves the input embedding out: 5.13 and 3.61 billion
    for name, billions in (("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)):
        model = MODELS[name]
        assert (model.params_active - model.vocab * model.hidden) / 1e9 == pytest.approx(billions, abs=0.01)


def test_mxfp4_experts_give_the_published_size_of_the_checkpoint():
    assert MODELS["gpt-oss-20b"].stored_bytes / GIB == pytest.approx(12.8, abs=0.05)
    assert MODELS["gpt-oss-120b"].stored_bytes / GIB == pytest.approx(60.8, abs=0.05)


class TestKvMiscounts:
    """What calculators get wrong, as named in public issues: each factor, and that the count here is free of it."""

    def test_head_size_divided_out(self):
        model = MODELS["qwen3-0.6b"]
        assert model.kv_bytes_per_token == 2 * (28 * 2 * 8 * (1024 // 16) * 2)  # hidden / heads gives half

    def test_windows_ignored_and_head_size_divided_out(self):
        model = MODELS["gemma-3-27b"]  # the 7.8 of unslothai/unsloth 4757
        context = model.max_context
        wrong = 62 * 2 * 16 * (5376 // 32) * 2 * context
        assert wrong / float(model.kv_bytes_read(context)) == pytest.approx(7.8, abs=0.05)

    def test_latent_cache_counted_as_heads(self):
        model = MODELS["deepseek-v3"]
        assert 61 * 2 * 128 * 128 * 2 / model.kv_bytes_per_token == pytest.approx(57, abs=0.2)
        # With one KV head of hidden / heads values, five times too little.
        assert model.kv_bytes_per_token / (61 * 2 * 1 * (7168 // 128) * 2) == pytest.approx(5.1, abs=0.05)

    def test_all_heads_cached(self):
        model = MODELS["llama-3.1-8b"]  # before grouped-query attention a head had its own K and V
        assert 4 * model.kv_bytes_per_token == 32 * 2 * 32 * 128 * 2

    def test_kv_from_the_parameter_count(self):
        smaller, larger = MODELS["qwen2.5-3b"], MODELS["smollm2-135m"]
        ratio = smaller.params_total / larger.params_total
        assert ratio > 20 and smaller.kv_bytes_per_token / larger.kv_bytes_per_token < 2

    def test_capacity_with_and_without_freed_windows(self):
        model, device = MODELS["gpt-oss-20b"], DeviceSpec.named("h100-sxm")
        freed, kept = (largest_batch(model, device, 10_000, windows_freed=freed) for freed in (True, False))
        assert freed == pytest.approx(2 * kept, rel=0.03) and freed > kept


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", 2),
        ("fp32", 4),
        ("torch.float16", 2),
        ("fp8", 1),
        ("int8", 1),
        ("int4", 0.5),
        ("int4:128", 0.5 + 2 / 128),
        ("int8:32", 1 + 2 / 32),
        ("mxfp4", 0.53125),
        ("q8_0", 1.0625),
    ],
)
def test_bytes_of_a_value(name, expected):
    assert dtype_bytes(name) == expected


@pytest.mark.parametrize("name", ["int3", "int4:0", "bf16:128", "mxfp4:32", "", "int4:"])
def test_unknown_dtypes(name):
    with pytest.raises(NanoengineError, match="is not one of float32"):
        canonical_dtype(name)


def test_dtypes_by_part():
    model = MODELS["llama-3.1-8b"]
    all_int4 = ModelSpec.from_config("llama-3.1-8b", "int4:128")
    head_kept = ModelSpec.from_config("llama-3.1-8b", {"default": "int4:128", "head": "bf16"})
    head = model.vocab * model.hidden
    assert head_kept.weight_bytes - all_int4.weight_bytes == pytest.approx(head * (2 - dtype_bytes("int4:128")), abs=2)
    assert all_int4.kv_dtype == "bfloat16"  # weights say nothing of the cache
    norms = 65 * model.hidden  # they stay in 16 bit
    assert all_int4.weight_bytes == pytest.approx((model.linear_params) * dtype_bytes("int4:128") + norms * 2, abs=10)
    assert ModelSpec.from_config("llama-3.1-8b", "int4:128, head=bf16") == head_kept
    with pytest.raises(NanoengineError, match="names head twice"):
        ModelSpec.from_config("llama-3.1-8b", "int4:128,head=bf16,head=fp8")
    with pytest.raises(NanoengineError, match="no part 'lm_head'"):
        ModelSpec.from_config("llama-3.1-8b", {"lm_head": "bf16"})


def test_quantization_config():
    config = config_of("llama-3.1-8b")
    awq = ModelSpec.from_config(config | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    assert awq == ModelSpec.from_config(config, {"default": "int4:128", "head": "bf16", "embedding": "bf16"})
    fp8 = ModelSpec.from_config(config | {"quantization_config": {"quant_method": "fp8"}})
    assert fp8.weight_dtype == "float8" and fp8.kv_dtype == "bfloat16"
    odd = config | {"quantization_config": {"quant_method": "aqlm"}}
    with pytest.raises(NanoengineError, match="quantization 'aqlm'"):
        ModelSpec.from_config(odd)
    assert ModelSpec.from_config(odd, "bfloat16") == MODELS["llama-3.1-8b"]


def test_images_and_text():
    config = config_of("gemma-3-4b")
    wrapped = {"model_type": "gemma3", "_name_or_path": config["_name_or_path"], "text_config": config}
    assert ModelSpec.from_config(wrapped) == MODELS["gemma-3-4b"]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "cannot choose 9 of 8"),
        ("mixtral-8x7b", {"num_local_experts": None}, "'num_local_experts', not None"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, "only some of the later layers"),
        ("deepseek-v3", {"kv_lora_rank": 0}, "'kv_lora_rank', not 0"),
        ("gemma-2-2b", {"sliding_window": -1}, "'sliding_window', not -1"),
        ("llama-3.1-8b", {"head_dim": True}, "'head_dim', not True"),
        ("phi-2", {"num_attention_heads": 33}, "33 heads do not divide hidden_size"),
    ],
)
def test_contradictory_configs(name, change, says):
    config = config_of(name)
    if name == "phi-2":
        config["num_key_value_heads"] = None
    with pytest.raises(NanoengineError, match=says):
        ModelSpec.from_config(config | change)


def test_a_windowed_step_costs_less():
    model, device = MODELS["gemma-3-27b"], DeviceSpec.named("h100-sxm")
    price = price_step(model, device, [1, 8], 100_000)
    assert (price.kv_bytes == price.batch * model.kv_bytes_read(100_000)).all()
    assert (price.kv_bytes < price.batch * 100_000 * model.kv_bytes_per_token / 5).all()
