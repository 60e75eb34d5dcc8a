"""Interactive figures in Altair. Each takes data and returns a chart; the sliders work with no kernel."""

import altair as alt
import numpy as np
import pandas as pd

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.fit import GIB, StepFit
from nanoengine.costmodel.model import ModelSpec
from nanoengine.viz.theme import COLORS, EVIDENCE

_DIGITS = 5  # significant ones: what two machines agree on


def token_price(model: ModelSpec, device: DeviceSpec, max_batch: int = 64, max_history: int = 16_384) -> alt.Chart:
    """Time per token over batch, split into weights and KV, for a history set by a slider; a second slider picks B.

    Floors: bytes over the device's bandwidth, no overhead, no arithmetic.
    """
    batch = alt.param(name="batch", value=1, bind=alt.binding_range(min=1, max=max_batch, step=1, name="batch B "))
    history = alt.param(
        name="history",
        value=1024,
        bind=alt.binding_range(min=256, max=max_history, step=256, name="history T (tokens) "),
    )
    bytes_per_ms = device.bandwidth_gb_per_s * 1e6
    weight_ms, kv_ms = (_round(x / bytes_per_ms) for x in (model.weight_bytes, model.kv_bytes_per_token))
    base = alt.Chart(pd.DataFrame({"B": np.unique(np.geomspace(1, max_batch, 60).round(2))}))
    areas = (
        base.transform_calculate(weights=f"{weight_ms} / datum.B", KV=f"{kv_ms} * history")
        .transform_fold(["KV", "weights"], as_=["read", "ms"])
        .mark_area(opacity=0.85)
        .encode(
            alt.X("B:Q").scale(type="log", base=2, domain=[1, max_batch], nice=False).title("batch B (requests)"),
            alt.Y("ms:Q").stack("zero").title("time per token (ms)"),
            alt.Color("read:N")
            .scale(domain=["weights", "KV"], range=[COLORS["weights"], COLORS["kv"]])
            .legend(orient="top", title=None),
            alt.Order("read:N"),
        )
    )
    chosen = alt.Chart(pd.DataFrame({"one": [1]})).transform_calculate(
        B="batch",
        total=f"{weight_ms} / batch + {kv_ms} * history",
        label=f"format({weight_ms} / batch + {kv_ms} * history, '.3f') + ' ms, ' + "
        f"format({kv_ms} * history / ({weight_ms} / batch + {kv_ms} * history), '.0%') + ' of it KV'",
    )
    rule = chosen.mark_rule(strokeDash=[4, 3]).encode(alt.X("B:Q"))
    point = chosen.mark_point(filled=True, size=60, opacity=1).encode(alt.X("B:Q"), alt.Y("total:Q"))
    text = chosen.mark_text(align="right", dy=-6, fontWeight="bold").encode(
        alt.Text("label:N"), x=alt.value("width"), y=alt.value(10)
    )
    return (
        alt.layer(areas, rule, point, text)
        .add_params(batch, history)
        .properties(
            title=f"Price of a token: {model.name} on {device.name} (floor)",
            description=f"Time per token of {model.name} at {device.bandwidth_gb_per_s:g} GB/s over batch size. "
            "The part for weights halves with each doubling of the batch; the part for KV stays.",
            width="container",
            height=280,
        )
    )


def step_fits(points: pd.DataFrame, fits: dict[str, StepFit], title: str, slider: bool = False) -> alt.LayerChart:
    """Step time over resident KV: points, fitted lines with 95 % bands, dashed where no data lies.

    points: columns series, kv_bytes, step_ms, label, and where known low_ms, high_ms (quartiles). fits: by series.
    slider: adds one that reads the lines at a chosen KV volume.
    """
    lines = pd.concat([line_of_fit(fit, series) for series, fit in fits.items()])
    points = points.assign(kv_gib=_round(points.kv_bytes / GIB), step_ms=_round(points.step_ms))
    names = list(fits)
    color = (
        alt.Color("series:N")
        .scale(domain=names, range=[COLORS[name] for name in names])
        .legend(orient="top", title=None, columns=1, labelLimit=400)
    )
    x = alt.X("kv_gib:Q").title("KV read by the step (GiB)").scale(zero=True)
    band = alt.Chart(lines[lines.covered]).mark_area(opacity=0.18).encode(x, y="low_ms:Q", y2="high_ms:Q", color=color)
    line = (
        alt.Chart(lines)
        .mark_line()
        .encode(
            x,
            alt.Y("step_ms:Q").title("one decode step (ms)").scale(zero=True),
            color=color,
            strokeDash=alt.StrokeDash("covered:N").scale(domain=[True, False], range=[[1, 0], [4, 4]]).legend(None),
        )
    )
    tooltip = ["series:N", "label:N", "kv_gib:Q", "step_ms:Q"]
    layers = [band, line]
    if "low_ms" in points:
        spread = points.assign(low_ms=_round(points.low_ms), high_ms=_round(points.high_ms))
        layers.append(alt.Chart(spread).mark_rule().encode(x, y="low_ms:Q", y2="high_ms:Q", color=color))
    shape = alt.Shape("series:N").scale(domain=names).legend(None)
    layers.append(
        alt.Chart(points)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(x, y="step_ms:Q", color=color, shape=shape, tooltip=tooltip)
    )
    chart = alt.layer(*layers).properties(title=title, width="container", height=320)
    if slider:
        chart = _with_reading(chart, fits, float(points.kv_gib.max()))
    return chart.properties(
        description=f"{title}. Step time rises along a line with the KV that a step reads. "
        + " ".join(
            f"{series}: {fit.intercept_ms:.1f} ms plus {fit.slope_ms_per_gib:.2f} ms per GiB, {fit.n} points."
            for series, fit in fits.items()
        )
    )


def _with_reading(chart: alt.LayerChart, fits: dict[str, StepFit], max_gib: float) -> alt.LayerChart:
    step = 10 ** np.floor(np.log10(max_gib / 20))
    kv = alt.param(
        name="kv",
        value=_round(step * round(max_gib / 2 / step)),
        bind=alt.binding_range(min=0, max=_round(step * round(max_gib / step)), step=_round(step), name="KV (GiB) "),
    )
    rows = pd.DataFrame(
        [(series, _round(fit.intercept_ms), _round(fit.slope_ms_per_gib)) for series, fit in fits.items()],
        columns=["series", "intercept", "slope"],
    )
    read = alt.Chart(rows).transform_calculate(
        kv_gib="kv",
        step_ms="datum.intercept + datum.slope * kv",
        label="format(datum.intercept + datum.slope * kv, '.1f') + ' ms'",
    )
    rule = alt.Chart(rows.head(1)).transform_calculate(kv_gib="kv").mark_rule(strokeDash=[4, 3]).encode(x="kv_gib:Q")
    text = read.mark_text(align="left", dx=6, dy=-8, fontWeight="bold").encode(
        x="kv_gib:Q", y="step_ms:Q", text="label:N", color="series:N"
    )
    return (
        alt.layer(*chart.layer, rule, text)
        .properties(title=chart.title, width=chart.width, height=chart.height)
        .add_params(kv)
    )


def line_of_fit(fit: StepFit, series: str, points: int = 25) -> pd.DataFrame:
    """A two-term fit's line from KV = 0 to its largest KV, with its band; `covered` where its data lies."""
    low, high = fit.kv_range_gib
    kv_gib = np.concatenate([[0.0, low], np.linspace(low, high, points)])
    covered = [False, False] + [True] * points
    line = fit.predict(kv_gib * GIB)
    frame = pd.DataFrame({"series": series, "kv_gib": kv_gib, "covered": covered})
    for column in ("step_ms", "low_ms", "high_ms"):
        frame[column] = line[column].to_numpy()
    return frame.assign(**{c: _round(frame[c]) for c in ("kv_gib", "step_ms", "low_ms", "high_ms")})


def relative_steps(points: pd.DataFrame, fits: dict[str, StepFit], weight_bytes: dict[str, float]) -> alt.LayerChart:
    """All systems on one scale: step time over the fixed cost, against KV bytes over weight bytes.

    Every line starts at 1. Its slope is what a KV byte costs in weight bytes: 1 where both are read alike.
    """
    lines, marks = [], []
    for series, fit in fits.items():
        reach = float(points.kv_bytes[points.series == series].max() / weight_bytes[series])
        slope = fit.slope_ms_per_gib / GIB * weight_bytes[series] / fit.intercept_ms
        lines += [(series, 0.0, 1.0), (series, reach, 1 + slope * reach)]
        own = points[points.series == series]
        marks.append(own.assign(ratio=own.kv_bytes / weight_bytes[series], relative=own.step_ms / fit.intercept_ms))
    lines = pd.DataFrame(lines, columns=["series", "ratio", "relative"])
    marks = pd.concat(marks)[["series", "label", "ratio", "relative"]]
    farthest = float(lines.ratio.max())
    alike = pd.DataFrame({"ratio": [0.0, farthest], "relative": [1.0, 1.0 + farthest]})
    lines, marks, alike = (
        frame.assign(ratio=_round(frame.ratio), relative=_round(frame.relative)) for frame in (lines, marks, alike)
    )
    names = list(fits)
    color = (
        alt.Color("series:N")
        .scale(domain=names, range=[COLORS[name] for name in names])
        .legend(orient="top", title=None, columns=1, labelLimit=400)
    )
    x = alt.X("ratio:Q").title("KV bytes / weight bytes")
    y = alt.Y("relative:Q").title("step time / fixed cost").scale(zero=False)
    shape = alt.Shape("series:N").scale(domain=names).legend(None)
    return alt.layer(
        alt.Chart(alike).mark_line(strokeDash=[2, 3], color=EVIDENCE["construction"]).encode(x, y),
        alt.Chart(lines).mark_line().encode(x, y, color),
        alt.Chart(marks)
        .mark_point(filled=True, size=60, opacity=1)
        .encode(x, y, color, shape, tooltip=["series:N", "label:N"]),
    ).properties(
        title="What a KV byte costs, in weight bytes",
        description="Every system's line starts at one; the steeper it is, the dearer a KV byte. "
        "The dotted line is where a KV byte costs as much as a weight byte.",
        width="container",
        height=320,
    )


def _round(values):
    """To significant digits, so that stored charts compare equal across machines."""
    if isinstance(values, pd.Series):
        return values.map(_round)
    return float(f"{float(values):.{_DIGITS}g}")
