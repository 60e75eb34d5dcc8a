"""Views and checks of a fit, on data whose makers we are: each must find what was put in."""

import numpy as np
import pandas as pd
import pytest

from nanoengine import NanoengineError, fit_steps
from nanoengine.costmodel.fit import GIB
from nanoengine.costmodel.fit_checks import implied_rates, not_identified
from nanoengine.costmodel.fit_views import all_fits, bootstrap, matched_cells, segments, within_batch


@pytest.fixture
def grid():
    """A grid of cells that cost 10 ms, 5 ms per GiB and 0.3 ms per request, with a little noise."""
    rng = np.random.default_rng(1)
    cells = pd.DataFrame([(b, t) for b in (1, 4, 16) for t in (1000, 4000, 16_000)] * 3, columns=["batch", "context"])
    kv_gib = cells.batch * cells.context * 100_000 / GIB
    return cells.assign(
        kv_bytes=kv_gib * GIB, step_ms=10 + 5 * kv_gib + 0.3 * cells.batch + rng.normal(0, 0.05, len(cells))
    )


def test_within_batch_is_free_of_the_cost_per_request(grid):
    table = within_batch(grid)
    assert table.batch.dropna().tolist() == [1, 4, 16] and table.n.tolist() == [9, 9, 9, 27]
    pooled = table.iloc[-1]
    assert pooled.low < 5 < pooled.high and pooled.kv_rate_gb_per_s == pytest.approx(GIB / 5 / 1e6, rel=0.01)
    assert fit_steps(grid).slope_ms_per_gib > pooled.high  # two terms put the cost of requests into the slope
    with pytest.raises(NanoengineError, match="No batch size has two KV sizes"):
        within_batch(grid[grid.context == 1000])


def test_segments_show_a_bend():
    bent = pd.DataFrame({"batch": 1, "kv_bytes": np.array([1, 2, 3]) * GIB, "step_ms": [10.0, 12.0, 20.0]})
    assert segments(bent).slope_ms_per_gib.tolist() == [2, 8]


def test_matched_cells(grid):
    left, right = grid.iloc[:9], grid.iloc[9:15].assign(context=lambda t: t.context * 0.98)
    a, b = matched_cells(left, right)
    assert len(a) == len(b) == 6 and (a.batch == b.batch).all() and np.allclose(b.context / a.context, 0.98)
    with pytest.raises(NanoengineError, match="share no cell"):
        matched_cells(left, right, tolerance=0.01)


def test_drift_is_told_from_kv_when_the_order_is_random(grid):
    order = np.random.default_rng(2).permutation(len(grid))
    hot = grid.assign(order=order, step_ms=grid.step_ms + 0.1 * order)
    fit = fit_steps(hot, per_request=True, drift=True)
    low, high = fit.interval("order")
    assert low < 0.1 < high and fit.drift_ms_per_row == pytest.approx(0.1, rel=0.1)
    assert fit.interval("kv_gib")[0] < 5 < fit.interval("kv_gib")[1]
    assert len(fit.table()) == 4 and "drift" in str(fit)
    assert set(all_fits(hot)) == {"two terms", "three terms", "with drift"}
    assert set(all_fits(grid[["kv_bytes", "step_ms"]])) == {"two terms"}
    band = fit.predict(GIB, batch=1)
    assert band.low_ms[0] < band.step_ms[0] < band.high_ms[0]


def test_bootstrap_surrounds_the_truth_and_repeats(grid):
    fit = fit_steps(grid, per_request=True)
    draws = bootstrap(fit, draws=500)
    low, high = draws.kv_gib.quantile([0.025, 0.975])
    assert low < 5 < high and len(draws) == 500
    assert (high - low) == pytest.approx(np.diff(fit.interval("kv_gib"))[0], rel=0.5)
    assert bootstrap(fit, draws=500).equals(draws)
    assert len(bootstrap(fit_steps(grid.iloc[:3]), draws=50)) == 50  # most resamples of 3 rows identify nothing


def test_points_show_what_each_does(grid):
    fit = fit_steps(grid.assign(step_ms=grid.step_ms.where(grid.index != 8, 100.0)))
    points = fit.points()
    assert points.cooks_distance.idxmax() == 8 and np.allclose(points.fitted_ms + points.residual_ms, points.step_ms)
    assert len(fit.leave_one_out()) == len(grid)


def test_a_point_that_nothing_else_can_replace_is_not_left_out():
    frame = pd.DataFrame({"kv_bytes": np.array([1, 1, 1, 5]) * GIB, "step_ms": [10, 10.1, 9.9, 30]})
    assert fit_steps(frame).leave_one_out().left_out.tolist() == [0, 1, 2]


def test_rows_that_no_memory_can_produce():
    rows = pd.DataFrame({"kv_bytes": [1e9, 1e9, 1e6], "step_ms": [10.0, 1.0, 0.001]})
    assert implied_rates(rows, 500).verdict.tolist() == ["possible", "impossible", "impossible"]
    assert implied_rates(rows, 500, cache_bytes=64e6).verdict.tolist() == ["possible", "impossible", "cached"]
    assert implied_rates(rows, 500, weight_bytes=5e9).fraction_of_data_sheet[0] == pytest.approx(1.2)
    with pytest.raises(NanoengineError, match="must be positive"):
        implied_rates(rows, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g, "second dtype or model size"),
        (lambda g: g, "Batch varies but has no term"),
        (lambda g: g, "order of the measurements is not known"),
        (lambda g: g.drop(columns="batch"), "batch of the points is not known"),
        (lambda g: g[g.batch == 4], "Every point has batch 4"),
        (lambda g: g.assign(order=g.kv_bytes.rank()), "heat and KV cannot be told apart"),
        (lambda g: g.assign(order=range(len(g))), "fit with drift"),
        (lambda g: g.assign(step_ms=50 - g.step_ms / 10), "'KV' is negative"),
        (
            lambda g: g.assign(step_ms=10 + np.resize([1, 2, 3, 1, 2.5], len(g)) + g.kv_bytes / GIB / 100),
            "includes zero",
        ),
        (lambda g: g.iloc[:9].assign(step_ms=lambda t: t.step_ms.where(t.batch * t.context < 2e5, 60)), "decides"),
        (lambda g: g, "Outside 0.0931 to 23.8 GiB"),
    ],
)
def test_what_the_data_do_not_settle(grid, change, says):
    assert any(says in sentence for sentence in not_identified(fit_steps(change(grid))))


def test_what_is_settled_is_not_said(grid):
    shuffled = grid.assign(order=np.random.default_rng(0).permutation(len(grid)))
    said = " ".join(not_identified(fit_steps(shuffled, per_request=True, drift=True)))
    assert "not known" not in said and "no term" not in said and "negative" not in said


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ({"kv_bytes": [0.22, 0.88, 3.5], "step_ms": [1, 2, 3]}, "Row 1 has 0.22 bytes of KV"),
        ({"kv_bytes": [1e9, 2e9, 3.5], "step_ms": [1, 2, 3]}, "Row 3 has 3.5 bytes of KV"),
    ],
)
def test_mixed_units(frame, says):
    with pytest.raises(NanoengineError, match=says):
        fit_steps(pd.DataFrame(frame))
