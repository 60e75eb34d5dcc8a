"""Interactive figures in Altair. Each takes data and returns a chart; the sliders work with no kernel."""

import altair as alt
import numpy as np
import pandas as pd

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.fit import GIB, StepFit
from nanoengine.costmodel.line import Line
from nanoengine.costmodel.model import ModelSpec
from nanoengine.viz.theme import COLORS, EVIDENCE, LABELS, significant


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
            title=alt.Title("Price of a token (floor)", subtitle=f"{model.name} on {device.name}"),
            description=f"Time per token of {model.name} at {device.bandwidth_gb_per_s:g} GB/s over batch size. "
            "The part for weights halves with each doubling of the batch; the part for KV stays.",
            width="container",
            height=280,
        )
    )


def step_fits(
    points: pd.DataFrame, fits: dict[str, StepFit | Line], title: str, slider: bool = False, unit: str = "GiB"
) -> alt.LayerChart:
    """Step time over resident KV: points, fitted lines with 95 % bands, dashed where no data lies.

    points: columns series, kv_bytes, step_ms, label, and where known low_ms, high_ms (quartiles). fits: two-term, by
    series; a Line has no band. slider: adds one that reads the lines at a chosen KV volume. unit of KV: GiB or MiB.
    """
    per_unit = {"GiB": GIB, "MiB": 2**20}[unit]
    points = points.assign(kv=_round(points.kv_bytes / per_unit), step_ms=_round(points.step_ms)).pipe(_labelled)
    lines = pd.concat([line_of_fit(fit, points, series, per_unit) for series, fit in fits.items()]).pipe(_labelled)
    color, shape = _series_scales(fits)
    x = alt.X("kv:Q").title(f"KV that the step reads ({unit})").scale(zero=True)
    y = alt.Y("step_ms:Q").title("one decode step (ms)").scale(zero=True)
    dash = alt.StrokeDash("covered:N").scale(domain=[True, False], range=[[1, 0], [4, 4]]).legend(None)
    layers = [
        alt.Chart(lines[lines.covered & lines.low_ms.notna()])
        .mark_area(opacity=0.18)
        .encode(x, y="low_ms:Q", y2="high_ms:Q", color=color),
        # Both parts hold the first covered point, so that the dashes meet the line.
        alt.Chart(lines).mark_line().encode(x, y, color=color, strokeDash=dash),
    ]
    if "low_ms" in points:
        spread = points.assign(low_ms=_round(points.low_ms), high_ms=_round(points.high_ms))
        layers.append(alt.Chart(spread).mark_rule().encode(x, y="low_ms:Q", y2="high_ms:Q", color=color))
    layers.append(
        alt.Chart(points)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(x, y, color=color, shape=shape, tooltip=["series:N", "label:N", "kv:Q", "step_ms:Q"])
    )
    chart = alt.layer(*layers)
    if slider:
        chart = _with_reading(layers, fits, float(points.kv.max()), per_unit, unit)
    return chart.properties(
        title=title,
        width="container",
        height=320,
        description=f"{title}. Step time rises along a line with the KV that a step reads. "
        + " ".join(
            f"{LABELS.get(series, series)}: {fit.intercept_ms:.1f} ms plus {fit.slope_ms_per_gib:.2f} ms per GiB."
            for series, fit in fits.items()
        ),
    )


def _with_reading(
    layers: list, fits: dict[str, StepFit | Line], max_kv: float, per_unit: float, unit: str
) -> alt.LayerChart:
    step = 10 ** np.floor(np.log10(max_kv / 20))
    kv = alt.param(
        name="kv_read",
        value=_round(step * round(max_kv / 2 / step)),
        bind=alt.binding_range(
            min=0, max=_round(step * round(max_kv / step)), step=_round(step), name=f"KV read ({unit}) "
        ),
    )
    rows = pd.DataFrame(
        [(name, _round(fit.intercept_ms), _round(fit.slope_ms_per_gib * per_unit / GIB)) for name, fit in fits.items()],
        columns=["series", "intercept", "slope"],
    ).pipe(_labelled)
    read = alt.Chart(rows).transform_calculate(
        kv="kv_read",
        step_ms="datum.intercept + datum.slope * kv_read",
        label="format(datum.intercept + datum.slope * kv_read, '.1f') + ' ms'",
    )
    rule = alt.Chart(rows.head(1)).transform_calculate(kv="kv_read").mark_rule(strokeDash=[4, 3]).encode(x="kv:Q")
    # One label above its point, the next below, so that near lines stay legible.
    texts = [
        read.transform_filter(f"datum.series == {LABELS.get(name, name)!r}")
        .mark_text(align="left", dx=7, dy=-9 if number % 2 == 0 else 13, fontWeight="bold")
        .encode(x="kv:Q", y="step_ms:Q", text="label:N", color=_series_scales(fits)[0])
        for number, name in enumerate(fits)
    ]
    return alt.layer(*layers, rule, *texts).add_params(kv)


def line_of_fit(fit: StepFit | Line, points: pd.DataFrame, series: str, per_unit: float) -> pd.DataFrame:
    """A line from KV = 0 to its largest KV, with its band where it has one; `covered` where its points lie.

    Columns series, kv (bytes / per_unit), covered, step_ms, low_ms, high_ms.
    """
    own = points.kv_bytes[points.series.isin([series, LABELS.get(series)])]
    low, high = float(own.min()), float(own.max())
    kv_bytes = np.concatenate([[0.0, low], np.linspace(low, high, 25)])
    if isinstance(fit, Line):
        line = pd.DataFrame({"step_ms": fit.step_ms(kv_bytes), "low_ms": np.nan, "high_ms": np.nan})
    else:
        line = fit.predict(kv_bytes)
    frame = pd.DataFrame({"series": series, "kv": _round(pd.Series(kv_bytes / per_unit))})
    frame["covered"] = [False, False] + [True] * 25
    for column in ("step_ms", "low_ms", "high_ms"):
        frame[column] = _round(line[column])
    return frame


def relative_steps(
    points: pd.DataFrame, fits: dict[str, StepFit | Line], weight_bytes: dict[str, float]
) -> alt.LayerChart:
    """All systems on one scale: step time over the fixed cost, against KV bytes over weight bytes.

    points: columns series, kv_bytes, step_ms, label. Every line starts at 1. Its slope is what a KV byte costs in
    weight bytes: 1 where both are read alike.
    """
    lines, marks = [], []
    for series, fit in fits.items():
        own = points[points.series == series]
        reach = float(own.kv_bytes.max() / weight_bytes[series])
        slope = relative_slope(fit, weight_bytes[series])
        lines += [(series, 0.0, 1.0), (series, reach, 1 + slope * reach)]
        marks.append(own.assign(ratio=own.kv_bytes / weight_bytes[series], relative=own.step_ms / fit.intercept_ms))
    lines = pd.DataFrame(lines, columns=["series", "ratio", "relative"])
    marks = pd.concat(marks)[["series", "label", "ratio", "relative"]]
    farthest = float(lines.ratio.max())
    alike = pd.DataFrame({"ratio": [0.0, farthest], "relative": [1.0, 1.0 + farthest]})
    lines, marks, alike = (
        frame.assign(ratio=_round(frame.ratio), relative=_round(frame.relative)) for frame in (lines, marks, alike)
    )
    color, shape = _series_scales(fits)
    x = alt.X("ratio:Q").title("KV bytes / weight bytes")
    y = alt.Y("relative:Q").title("step time / fixed cost").scale(zero=False)
    return alt.layer(
        alt.Chart(alike).mark_line(strokeDash=[2, 3], color=EVIDENCE["construction"]).encode(x, y),
        alt.Chart(lines.pipe(_labelled)).mark_line().encode(x, y, color),
        alt.Chart(marks.pipe(_labelled))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(x, y, color, shape, tooltip=["series:N", "label:N"]),
    ).properties(
        title="What a KV byte costs, in weight bytes",
        description="Every system's line starts at one; the steeper it is, the dearer a KV byte. "
        "The dotted line is where a KV byte costs as much as a weight byte.",
        width="container",
        height=320,
    )


def relative_slope(fit: StepFit | Line, weight_bytes: float) -> float:
    """Cost of a KV byte over the cost of a weight byte, the whole fixed cost taken as the cost of the weights."""
    return fit.slope_ms_per_gib / GIB * weight_bytes / fit.intercept_ms


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(series=frame.series.map(lambda name: LABELS.get(name, name)))


def _series_scales(fits) -> tuple[alt.Color, alt.Shape]:
    names = list(fits)
    labels = [LABELS.get(name, name) for name in names]
    color = alt.Color("series:N").scale(domain=labels, range=[COLORS[name] for name in names])
    legend = dict(orient="top", title=None, columns=1, labelLimit=400)
    return color.legend(**legend), alt.Shape("series:N").scale(domain=labels).legend(**legend)


def _round(values):
    return values.map(significant) if isinstance(values, pd.Series) else significant(values)
