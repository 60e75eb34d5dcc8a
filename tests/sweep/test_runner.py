import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from synthetic import KV_BYTES_PER_TOKEN, WEIGHT_BYTES, ClockedBackend, FakeClock, ReadingBackend, SleepingBackend

from nanoengine.errors import NanoengineError
from nanoengine.sweep.runner import drift, measure_visit, run_sweep, summary
from nanoengine.sweep.store import COLUMNS, read_samples

GRID = [(1, 256), (4, 512), (16, 1024)]


def sweep(backend, clock, grid=GRID, out=None, **settings):
    return run_sweep(backend, grid, out, progress=False, clock=clock, **settings)


def test_every_sample_carries_its_true_history_and_the_time_of_its_bytes(backend, clock):
    samples = sweep(backend, clock, samples_per_visit=4, visits=2, warmup=3)
    assert len(samples) == (2 * len(GRID) + 1) * 4
    assert (samples.history == samples.target_history + samples["sample"]).all()
    assert (samples.kv_bytes == samples.batch * samples.history * KV_BYTES_PER_TOKEN).all()
    np.testing.assert_allclose(samples.step_ms, (samples.kv_bytes + WEIGHT_BYTES) / 1e6 + backend.overhead_ms)
    # What the engine says it attended to, warm-up left out, is what the rows say.
    timed = [seen for i, seen in enumerate(backend.seen) if i % 7 >= 3]
    assert timed == list(samples[["batch", "history"]].itertuples(index=False, name=None))


def test_order_and_visit_numbers_tell_when_each_cell_was_measured(backend, clock):
    samples = sweep(backend, clock, samples_per_visit=2, visits=3)
    assert samples.order.is_monotonic_increasing and samples.order.nunique() == 3 * len(GRID) + 1
    first, last = samples.iloc[0], samples.iloc[-1]
    assert (first.batch, first.target_history) == (last.batch, last.target_history)
    assert (first.visit, last.visit) == (0, 3)


def test_a_history_at_the_context_starts_earlier_and_never_runs_past_it(clock):
    backend = ClockedBackend(clock, max_context=300)
    samples = sweep(backend, clock, [(1, 300)], samples_per_visit=4, visits=1)
    assert sorted(samples.history.unique()) == [296, 297, 298, 299]
    assert set(samples.target_history) == {300}


def test_a_history_shorter_than_the_warm_up_is_recorded_as_what_it_was(backend, clock):
    samples = sweep(backend, clock, [(1, 1)], samples_per_visit=2, visits=1, warmup=3)
    assert sorted(samples.history.unique()) == [4, 5]


def test_a_real_sweep_is_linear_in_the_bytes_it_reads():
    samples = run_sweep(ReadingBackend(), [(1, 100), (1, 4000), (1, 8000)], progress=False, visits=3)
    cells = summary(samples)
    assert cells.step_ms.is_monotonic_increasing
    read_bytes = 20_000_000 + cells.history * 20_000
    assert cells.step_ms.iloc[-1] / cells.step_ms.iloc[0] == pytest.approx(
        read_bytes.iloc[-1] / read_bytes.iloc[0], rel=0.5
    )


def test_summary_gives_medians_spread_and_rate(backend, clock):
    samples = sweep(backend, clock, samples_per_visit=3, visits=2)
    cells = summary(samples).set_index(["batch", "history"])
    first_cell = (samples.batch.iloc[0], samples.target_history.iloc[0])
    assert cells.n.drop(first_cell).eq(6).all() and cells.n[first_cell] == 9
    cell = cells.loc[(4, 512)]
    assert cell.step_ms == pytest.approx((WEIGHT_BYTES + 4 * 513 * KV_BYTES_PER_TOKEN) / 1e6 + backend.overhead_ms)
    assert cell.q25_ms < cell.step_ms < cell.q75_ms and cell.iqr_ms == pytest.approx(cell.q75_ms - cell.q25_ms)
    assert cell.read_gb_per_s == pytest.approx((WEIGHT_BYTES + cell.kv_bytes) / cell.step_ms / 1e6)


def test_outliers_are_marked_and_kept(backend, clock):
    samples = sweep(backend, clock, [(1, 256)], samples_per_visit=10, visits=2)
    assert not samples.outlier.any()
    spoiled = samples.drop(columns=["outlier", "disturbed"])
    spoiled.loc[5, "step_ms"] *= 10
    cells = summary(spoiled)
    assert cells.outliers.tolist() == [1] and cells.n.tolist() == [30]
    assert cells.step_ms[0] == pytest.approx(summary(samples).step_ms[0], rel=1e-2)


def test_visits_that_others_disturbed_are_kept_but_leave_the_median_alone(backend, clock):
    samples = sweep(backend, clock, [(1, 256), (4, 512)], samples_per_visit=4, visits=3)
    quiet = summary(samples)
    spoiled = samples.copy()
    of_cell = (spoiled.batch == 4) & (spoiled.visit < 2)
    spoiled.loc[of_cell, "other_cores"] = 1.0
    spoiled.loc[of_cell, "step_ms"] *= 50
    cells = summary(spoiled)
    assert cells.disturbed.tolist() == [0, 8] and quiet.disturbed.tolist() == [0, 0]
    np.testing.assert_allclose(cells.step_ms, quiet.step_ms)
    spoiled["other_cores"] = 1.0
    assert summary(spoiled).step_ms[1] > 10 * quiet.step_ms[1], "with no quiet visit at all, every sample counts"


def test_drift_compares_the_first_cell_at_start_and_end(clock):
    class Heating(ClockedBackend):
        def step(self):
            self.overhead_ms += 0.5
            super().step()

    found = drift(sweep(Heating(clock), clock, samples_per_visit=3, visits=2))
    assert found.ratio > 2 and f"{found.ratio - 1:+.1%}" in str(found)
    steady = drift(sweep(ClockedBackend(clock), clock, samples_per_visit=3, visits=2))
    assert steady.ratio == pytest.approx(1)


def test_summary_refuses_to_mix_engines(backend, clock):
    samples = sweep(backend, clock)
    samples.loc[0, "dtype"] = "bfloat16"
    with pytest.raises(NanoengineError, match="mix dtype bfloat16, float32"):
        summary(samples)
    with pytest.raises(NanoengineError, match="no samples"):
        summary(samples.iloc[:0])


def test_a_finished_sweep_is_not_run_again(backend, clock, tmp_path):
    out = tmp_path / "sweep.csv"
    first = sweep(backend, clock, out=out)
    steps = len(backend.seen)
    again = sweep(backend, clock, out=out)
    assert len(backend.seen) == steps
    assert again.equals(first)
    assert read_samples(out).equals(first.drop(columns=["outlier", "disturbed"]))


def test_more_visits_extend_a_finished_sweep(backend, clock, tmp_path):
    out = tmp_path / "sweep.csv"
    sweep(backend, clock, out=out, visits=1)
    samples = sweep(backend, clock, out=out, visits=3)
    assert samples.groupby(["batch", "target_history"]).visit.nunique().min() == 3
    assert not samples.duplicated(["batch", "target_history", "visit", "sample"]).any()
    assert samples.sweep_id.nunique() == 1


@pytest.mark.parametrize("interrupt_at", [0, 3, 9, 10, 25])
def test_ctrl_c_keeps_what_was_timed_and_the_next_run_completes_it(clock, tmp_path, interrupt_at):
    out = tmp_path / "sweep.csv"
    with pytest.raises(KeyboardInterrupt):
        sweep(ClockedBackend(clock, interrupt_at=interrupt_at), clock, out=out, samples_per_visit=4, warmup=1)
    visits, steps_into = divmod(interrupt_at, 5)
    kept = read_samples(out)
    assert len(kept) == visits * 4 + max(0, steps_into - 1)
    resumed = sweep(ClockedBackend(clock), clock, out=out, samples_per_visit=4, warmup=1)
    assert resumed.iloc[: len(kept)].drop(columns=["outlier", "disturbed"]).equals(kept)
    whole = sweep(ClockedBackend(clock), clock, samples_per_visit=4, warmup=1)
    key = ["batch", "target_history", "visit", "sample", "history"]
    assert resumed[key].equals(whole[key])


def test_a_failing_step_keeps_the_samples_before_it(clock, tmp_path):
    class Failing(ClockedBackend):
        def step(self):
            if len(self.seen) == 8:
                raise NanoengineError("The engine gave up.")
            super().step()

    with pytest.raises(NanoengineError, match="gave up"):
        sweep(Failing(clock), clock, out=tmp_path / "sweep.csv", samples_per_visit=4, warmup=1)
    assert len(read_samples(tmp_path / "sweep.csv")) == 4 + 2


def test_a_spent_budget_still_measures_the_first_cell_again(backend, clock):
    one_visit_s = sum((WEIGHT_BYTES + 16 * 1030 * KV_BYTES_PER_TOKEN) / 1e9 for _ in range(7))
    samples = sweep(backend, clock, visits=50, budget_s=10 * one_visit_s)
    assert 3 < samples.order.nunique() < 60
    assert drift(samples).cell == (samples.batch.iloc[0], samples.target_history.iloc[0])
    assert samples.visit.iloc[-1] == 50


def test_cells_beyond_memory_are_left_out_and_the_card_says_so(clock, capsys):
    from nanoengine.sweep.bandwidth import MeasuredBandwidth

    bandwidth = MeasuredBandwidth(10.0, 9.0, 11.0, 5, 1, 2**30, "a test", "cpu", "this machine", 2**33)
    samples = run_sweep(
        ClockedBackend(clock, kv_capacity_tokens=3000), GRID, visits=1, clock=clock, bandwidth=bandwidth
    )
    assert set(samples.batch) == {1, 4}
    card = capsys.readouterr().out
    assert "16 x 1024" in card and "3000 tokens" in card
    assert "10.0 GB/s (quartiles 9.0 to 11.0" in card
    # 4 x 512 x 1,000 B of KV, and with 2,000,000 B of weights at 10 GB/s
    assert re.search(r"4 +512 +2.0 +4.0 +0.40\n", card)


@pytest.mark.parametrize("settings", [{"samples_per_visit": 0}, {"warmup": -1}, {"visits": 0}, {"grid": "no such"}])
def test_bad_settings_are_refused_before_anything_runs(backend, clock, tmp_path, settings):
    with pytest.raises(NanoengineError):
        sweep(backend, clock, **{"grid": GRID, "out": tmp_path / "sweep.csv"} | settings)
    assert not backend.seen


def test_rows_name_machine_versions_and_time(backend, clock):
    samples = sweep(backend, clock)
    assert list(samples.columns) == [*COLUMNS, "disturbed", "outlier"]
    row = samples.iloc[0]
    assert "cores)" in row.machine and f"python={sys.version_info.major}." in row.versions
    assert row.started_at[:2] == "20" and row.started_at.endswith("+00:00")


def test_a_sweep_records_the_load_during_its_visits():
    samples = run_sweep(SleepingBackend(), [(1, 8), (1, 9)], progress=False, visits=1, samples_per_visit=30)
    assert samples.other_cores.ge(0).all()


def test_measure_visit_times_one_cell(clock):
    timed = measure_visit(ClockedBackend(clock), 2, 100, samples=3, clock=clock)
    assert [history for history, _ in timed] == [100, 101, 102]
    assert timed[0][1] == pytest.approx(1 + (WEIGHT_BYTES + 2 * 100 * KV_BYTES_PER_TOKEN) / 1e6)


KILLED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from synthetic import SleepingBackend
from nanoengine.sweep.runner import run_sweep
run_sweep(SleepingBackend(), {GRID}, sys.argv[1], progress=False, visits=40, seed=3)
"""


def test_a_sweep_killed_with_sigkill_resumes_without_loss_or_repetition(tmp_path):
    out = tmp_path / "sweep.csv"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)])
    deadline = time.monotonic() + 60
    while not (out.exists() and out.read_bytes().count(b"\n") > 20):
        assert process.poll() is None and time.monotonic() < deadline, "the sweep must still run when it is killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # A kill may also cut the line that is being written.
    before = read_samples(out)
    with open(out, "ab") as file:
        file.write(b"20261201,77,1,0,slee")
    finished = before.groupby(["batch", "target_history", "visit"]).size()

    backend = SleepingBackend()
    prepared = []
    prepare = backend.prepare
    backend.prepare = lambda batch, history: (prepared.append((batch, history)), prepare(batch, history))
    visits = before.visit.max() + 2
    samples = run_sweep(backend, GRID, out, progress=False, visits=visits, seed=3)

    assert samples.iloc[: len(before)].drop(columns=["outlier", "disturbed"]).equals(before)
    assert not samples.duplicated(["batch", "target_history", "visit", "sample"]).any()
    assert len(samples) == (visits * len(GRID) + 1) * 5
    assert len(prepared) == visits * len(GRID) + 1 - (finished == 5).sum()


def test_ctrl_c_before_the_first_sample_leaves_an_empty_sweep(tmp_path):
    clock = FakeClock()
    with pytest.raises(KeyboardInterrupt):
        sweep(ClockedBackend(clock, interrupt_at=0), clock, out=tmp_path / "sweep.csv")
    assert read_samples(tmp_path / "sweep.csv").empty
