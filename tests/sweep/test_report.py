import pytest

from nanoengine.sweep.bandwidth import MeasuredBandwidth
from nanoengine.sweep.report import bandwidth_line, fit_lines, remarks
from nanoengine.sweep.runner import run_sweep, summary

GRID = [(1, 256), (1, 2048), (1, 8000), (4, 512), (4, 1024), (16, 1024)]


def bandwidth(gb_per_s):
    return MeasuredBandwidth(gb_per_s, gb_per_s, gb_per_s, 5, 1, 2**30, "a test", "cpu", "here", None)


@pytest.fixture
def samples(backend, clock):
    return run_sweep(backend, GRID, progress=False, clock=clock)


def test_rates_are_shares_of_the_mean_measured_bandwidth(samples):
    # The synthetic engine reads KV at 1 GB/s, and its intercept of 3 ms holds 2 MB of weights and 1 ms of overhead.
    text = "\n".join(fit_lines(summary(samples), bandwidth(1.5), bandwidth(2.5)))
    assert text.count("KV, 1/slope: 1.0 GB/s, 50% of the 2.0 GB/s measured here") == 2
    assert text.count("weights, bytes/intercept: 0.7 GB/s, 33% of the 2.0 GB/s") == 2
    assert "lower bound" in text and "overhead" in text


def test_a_sweep_within_one_batch_has_no_third_term(backend, clock):
    samples = run_sweep(backend, "context", progress=False, clock=clock)
    text = "\n".join(fit_lines(summary(samples), bandwidth(2.0)))
    assert "Two terms" in text and "Three terms" not in text


def test_a_busy_machine_and_outliers_are_remarked_on(samples):
    spoiled = samples.drop(columns="outlier").assign(other_cores=0.0)
    quiet = remarks(spoiled)
    assert len(quiet) == 1 and quiet[0].startswith("The first cell")
    spoiled.loc[spoiled.order == 2, "other_cores"] = 0.75
    spoiled.loc[7, "step_ms"] *= 100
    text = "\n".join(remarks(spoiled))
    assert "No visit was quiet" not in text
    assert "During 1 of 19 visits other processes" in text and "at most 0.75" in text
    assert f"1 of {len(samples)} samples lie far" in text


def test_drift_of_memory_itself_is_said():
    assert "50.0 GB/s before the sweep and 75.0 GB/s after it: +50%" in bandwidth_line(bandwidth(50.0), bandwidth(75.0))


def test_a_cell_without_a_quiet_visit_is_named(samples):
    busy = (samples.batch == 4) & (samples.target_history == 512)
    text = "\n".join(remarks(samples.assign(other_cores=busy.astype(float))))
    assert "No visit was quiet in 4 x 512; close other programs" in text


def test_a_slope_that_is_not_above_zero_gives_no_rate(samples):
    cells = summary(samples)
    cells["step_ms"] = 100 - cells.step_ms
    text = "\n".join(fit_lines(cells, bandwidth(2.0)))
    assert "KV, 1/slope: no rate" in text and "-" not in text.split("KV, 1/slope")[1].split("\n")[0]


def test_batch_and_kv_that_move_together_leave_only_the_two_term_fit(backend, clock):
    samples = run_sweep(backend, [(1, 256), (2, 256), (4, 256), (8, 256)], progress=False, clock=clock)
    text = "\n".join(fit_lines(summary(samples), bandwidth(2.0)))
    assert "Three terms, with a cost per request: no fit. Batch and KV bytes move together" in text
    assert text.count("1/slope") == 1
