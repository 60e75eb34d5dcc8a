"""The data package: valid by its own schema, and nothing in it without unit, source and date."""

import json
import shutil

import pandas as pd
import pytest
from frictionless import Package

from nanoengine import NanoengineError, datasets
from nanoengine.costmodel.model import ModelSpec, model_names
from nanoengine.datasets import data_dir, describe_table, load_table, table_names


def test_the_package_is_valid():
    report = Package(str(data_dir() / "datapackage.json")).validate()
    assert report.valid, report.flatten(["title", "rowNumber", "fieldName", "message"])


def test_every_csv_is_in_the_package():
    listed = {describe_table(name)["path"] for name in table_names()}
    assert listed == {path.name for path in data_dir().glob("*.csv")}


@pytest.mark.parametrize("name", table_names())
def test_every_column_is_described_and_every_row_has_source_and_date(name):
    table, fields = load_table(name), describe_table(name)["schema"]["fields"]
    for field in fields:
        assert field["description"]
        if field["type"] in ("number", "integer") and name != "published_rates":
            assert field["unit"], f"{name}.{field['name']} has no unit"
    if name == "published_rates":
        assert table.unit.notna().all()
    assert table.source.str.len().min() > 3 and table.accessed.str.fullmatch(r"\d{4}-\d\d-\d\d").all()
    assert describe_table(name)["licenses"] and describe_table(name)["sources"]


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of data/ to spoil."""
    shutil.copytree(data_dir(), tmp_path / "data")
    monkeypatch.setattr(datasets, "data_dir", lambda: tmp_path / "data")
    return tmp_path / "data" / "context_sweep.csv"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (",2.998,", ",fast,", r"context_sweep.csv, line 2: step_ms is 'fast', but must be a number"),
        (",1024,2.998,", ",1024.5,2.998,", "line 2: output_tokens is '1024.5', but must be a integer"),
        (",2.998,", ",,", "line 2: step_ms is empty"),
        (",accessed", ",seen", "has the columns"),
        (",2026-12-01", ",", "accessed is empty"),
    ],
)
def test_bad_data_is_named_by_file_line_and_column(copied, old, new, says):
    text = copied.read_text()
    assert old in text
    copied.write_text(text.replace(old, new, 1))
    with pytest.raises(NanoengineError, match=says):
        load_table("context_sweep")


def test_an_unknown_table():
    with pytest.raises(NanoengineError, match="There is no table 'nothing'"):
        load_table("nothing")


def test_measurements_name_devices_models_and_dtypes_that_exist():
    table = load_table("measurements")
    assert len(table) > 300 and set(table.device) <= set(load_table("devices").device)
    priced = table[table.model.notna()]
    for model, weights, kv, file_gib in set(
        priced[["model", "weight_dtype", "kv_dtype", "weight_file_gib"]].itertuples(index=False, name=None)
    ):
        spec = ModelSpec.from_config(model, weights, kv)
        # A file holds a little more than its weights: the tokenizer, and padding.
        assert pd.isna(file_gib) or 0 <= file_gib - spec.stored_bytes / 2**30 < 0.005 + 0.002 * file_gib, model


def test_the_control_is_stored_the_same_in_both_tables():
    both = load_table("measurements").query("series == 'gb10-llamacpp-batched' and model == 'qwen2.5-7b'")
    control = load_table("gb10_llamacpp_decode")
    assert (both.value.to_numpy() == control.total_s.to_numpy()).all()
    assert (both.batch.to_numpy() == control.batch.to_numpy()).all()
    assert (both.step_ms.to_numpy() == (control.total_s / control.steps * 1e3).round(4).to_numpy()).all()


def test_every_model_gives_its_published_totals():
    totals = load_table("models").set_index("model")
    assert set(totals.index) == set(model_names()) and len(totals) >= 20
    for name in model_names():
        spec, published = ModelSpec.from_config(name, "bfloat16"), int(totals.params_total[name])
        # Published to the billion, or to the last parameter.
        assert spec.params_total == (pytest.approx(published, rel=1e-3) if published % 10**9 == 0 else published), name
        assert spec.kv_bytes_per_token == totals.kv_bytes_per_token[name], name


def test_model_configs_load_in_the_engine_too():
    from nanoengine.models.config import _FAMILIES, DecoderConfig

    for name in model_names():
        config = json.loads((data_dir() / "models" / f"{name}.json").read_text())
        if config["model_type"] not in _FAMILIES:
            continue
        config, spec = DecoderConfig.from_hf(config), ModelSpec.from_config(name)
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "tied"):
            assert getattr(config, field) == getattr(spec, field), (name, field)
