"""The figures as data: what they draw follows from what they were given."""

import numpy as np
import pandas as pd
import pytest

from nanoengine import DeviceSpec, ModelSpec, NanoengineError, fit_steps
from nanoengine.costmodel.line import Line
from nanoengine.viz import charts
from nanoengine.viz.theme import COLORS, LABELS

GIB = 2**30


def points(slope, intercept=10.0, series="vllm"):
    kv_gib = np.array([0.5, 1.0, 2.0, 4.0])
    noise = np.array([0.02, -0.03, 0.01, 0.0])
    return pd.DataFrame(
        {"series": series, "kv_bytes": kv_gib * GIB, "step_ms": intercept + slope * kv_gib + noise, "label": "1 x 1"}
    )


def datasets(chart):
    return [pd.DataFrame(rows) for rows in chart.to_dict()["datasets"].values()]


def test_the_price_chart_carries_the_model_and_the_device():
    model, device = ModelSpec.from_config("qwen3-0.6b"), DeviceSpec.named("rtx-4070")
    spec = str(charts.token_price(model, device).to_dict())
    weight_ms = float(f"{model.weight_bytes / device.bandwidth_gb_per_s / 1e6:.5g}")
    assert f"{weight_ms} / datum.B" in spec
    assert spec != str(charts.token_price(model, DeviceSpec.named("rtx-3090")).to_dict())


def test_a_fitted_line_lies_on_its_points_and_is_dashed_where_none_is():
    data = points(slope=3.0)
    line = charts.line_of_fit(fit_steps(data), data, "vllm", GIB)
    assert line.kv.iloc[0] == 0 and not line.covered.iloc[0]
    covered = line[line.covered]
    assert (covered.kv.min(), covered.kv.max()) == (0.5, 4.0)
    np.testing.assert_allclose(covered.step_ms, 10 + 3 * covered.kv, atol=0.1)
    assert (covered.low_ms < covered.step_ms).all() and (covered.step_ms < covered.high_ms).all()


def test_a_line_through_two_points_has_no_band():
    data = points(slope=3.0).iloc[[0, 3]]
    line = Line.through(data.kv_bytes, data.step_ms)
    drawn = charts.line_of_fit(line, data, "vllm", GIB)
    assert drawn.low_ms.isna().all()
    assert drawn.step_ms.iloc[-1] == pytest.approx(data.step_ms.iloc[-1], rel=1e-4)


def test_a_line_wants_exactly_two_different_points():
    data = points(slope=3.0)
    with pytest.raises(NanoengineError, match="two points"):
        Line.through(data.kv_bytes, data.step_ms)
    with pytest.raises(NanoengineError, match="two points"):
        Line.through([GIB, GIB], [1.0, 2.0])


def test_the_rate_of_a_line_is_the_inverse_of_its_slope():
    assert Line(10.0, 2.0).kv_rate_gb_per_s == pytest.approx(GIB / 2.0 * 1e3 / 1e9)


def test_step_fits_draws_every_series_in_its_own_colour():
    data = pd.concat([points(3.0, series="vllm"), points(5.0, series="transformers")])
    fits = {name: fit_steps(own) for name, own in data.groupby("series")}
    spec = charts.step_fits(data, fits, "title").to_dict()
    scale = spec["layer"][1]["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {LABELS[name]: COLORS[name] for name in fits}
    assert "5.0" in spec["description"] or "5.00" in spec["description"]


@pytest.mark.parametrize(("unit", "per_unit"), [("GiB", GIB), ("MiB", 2**20)])
def test_the_unit_on_the_axis_is_the_unit_of_the_marks(unit, per_unit):
    data = points(3.0)
    chart = charts.step_fits(data, {"vllm": fit_steps(data)}, "title", unit=unit)
    marks = next(frame for frame in datasets(chart) if "label" in frame and "kv" in frame)
    assert marks.kv.max() == pytest.approx(data.kv_bytes.max() / per_unit, rel=1e-4)
    assert unit in str(chart.to_dict()["layer"][1]["encoding"]["x"]["title"])


def test_every_relative_line_starts_at_one_and_a_dear_byte_is_steep():
    cheap, dear = points(1.0, series="vllm"), points(9.0, series="transformers")
    data = pd.concat([cheap, dear])
    fits = {name: fit_steps(own) for name, own in data.groupby("series")}
    weights = {"vllm": 4 * GIB, "transformers": 4 * GIB}
    lines = next(f for f in datasets(charts.relative_steps(data, fits, weights)) if len(f) == 4 and "label" not in f)
    assert (lines.relative[lines.ratio == 0] == 1).all()
    assert charts.relative_slope(fits["transformers"], 4 * GIB) == pytest.approx(
        9 * charts.relative_slope(fits["vllm"], 4 * GIB), rel=0.05
    )


def test_a_byte_of_kv_that_costs_what_a_byte_of_weights_costs_has_slope_one():
    line = Line(intercept_ms=8.0, slope_ms_per_gib=2.0)  # 4 GiB of weights in 8 ms, 1 GiB of KV in 2 ms
    assert charts.relative_slope(line, 4 * GIB) == pytest.approx(1.0)
