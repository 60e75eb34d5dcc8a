import io

import pytest
from rich.console import Console

from nanoengine import LLM
from nanoengine.bench import __main__ as bench
from nanoengine.bench import linears, steps
from nanoengine.sweep.backends.nanoengine import NanoengineBackend
from nanoengine.sweep.bandwidth import MeasuredBandwidth
from nanoengine.sweep.grid import Cell

BANDWIDTH = MeasuredBandwidth(10.0, 9.0, 11.0, 5, 1, 2**30, "a test", "cpu", "here", None)


def shown(table):
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


@pytest.fixture
def small_cells(monkeypatch):
    monkeypatch.setattr(steps, "CELLS", [Cell(1, 8), Cell(1, 100), Cell(1, 200), Cell(4, 50)])


@pytest.fixture
def samples(small_cells, tiny_config):
    backends = {
        ("nanoengine", dtype): NanoengineBackend(llm=LLM(tiny_config, dtype=dtype, num_kv_blocks=200))
        for dtype in ("float32", "bfloat16")
    }
    return steps.measure_steps(backends, rounds=2)


def test_every_engine_is_measured_in_every_cell_and_every_round(samples):
    counts = samples.groupby(["dtype", "batch", "target_history", "visit"]).size()
    assert len(counts) == 2 * 4 * 2 and counts.eq(5).all()
    assert samples.dtype.unique().tolist() == ["float32", "bfloat16"], "tables list engines in the order given"


def test_tables_show_medians_and_rates_against_the_measured_bandwidth(samples):
    table = shown(steps.step_table(samples))
    assert table.count("float32") == 4 and table.count("bfloat16") == 4 and "ratio" not in table
    rates = shown(steps.rate_table(samples, BANDWIDTH, BANDWIDTH))
    assert "10.0 GB/s measured" in rates and rates.count("%") == 4


def test_two_engines_are_compared_by_their_ratio(samples):
    import pandas as pd

    slower = samples.assign(backend="other", step_ms=samples.step_ms * 4)
    table = shown(steps.step_table(pd.concat([samples, slower])))
    assert table.count("0.25") >= 8 and "other" in table


def test_linear_layers_are_timed_as_loaded_and_plain(smollm2_path):
    table = shown(linears.linear_table(smollm2_path, ("float32",), rounds=1))
    assert "as loaded" in table and "F.linear" in table and "batch 16" in table


def test_bad_model_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure_bandwidth", lambda *a: BANDWIDTH)
    assert bench.main(["--model", "no/such/model"]) == 2
    assert "There is no model 'no/such/model'" in capsys.readouterr().err
