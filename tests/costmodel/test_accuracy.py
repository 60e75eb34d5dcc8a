"""Predicted against published: the floors, where they are broken, and by what."""

import pytest

from nanoengine import load_table
from nanoengine.costmodel.accuracy import accuracy_table, end_to_end, predictions


@pytest.fixture(scope="module")
def rows():
    return predictions()


def test_every_step_that_can_be_priced_is(rows):
    stored = load_table("measurements")
    steps = stored[stored.step_ms.notna()]
    assert len(rows) == len(steps) + len(load_table("dgx_spark_decode"))
    assert rows.ratio.notna().all() and (rows.ratio == rows.predicted_ms / rows.measured_ms).all()


def test_dense_models_never_beat_the_floor(rows):
    experts = rows.model.isin(["gpt-oss-20b", "gpt-oss-120b", "qwen3-30b-a3b"])
    assert (rows.ratio[~experts] < 1).all()
    # Real tokens share experts: at larger batches uniform routing reads more than there was time for.
    broken = rows[rows.ratio > 1]
    assert set(broken.model) == {"gpt-oss-120b", "qwen3-30b-a3b"} and broken.batch.min() >= 8


def test_one_factor_explains_one_engine_at_batch_1(rows):
    table = accuracy_table(rows).set_index(["series", "engine"])
    depth = table.loc[("gb10-llamacpp-depth", "llama.cpp")]
    assert depth.error > 0.2 and depth.error_with_efficiency < 0.05  # five models, 0 to 32k tokens, one number
    assert (table.error_with_efficiency <= table.error).all()
    every = table.loc[("all", "")]
    assert every.n == len(rows) == table.n.iloc[:-1].sum() and every.error_with_efficiency < every.error / 2


def test_dividing_work_over_chips_is_not_free(rows):
    tensor_parallel = rows.query("series == 'gptfast-a100' and model == 'llama-2-7b' and chips > 1")
    assert tensor_parallel.sort_values("chips").ratio.is_monotonic_decreasing


def test_the_headline_end_to_end():
    table = end_to_end()
    assert len(table) == 4 and table.ratio.between(0.75, 0.95).all()
