"""Interactive figures of what a fit rests on (chapter 10)."""

import altair as alt
import numpy as np
import pandas as pd

from nanoengine.costmodel.fit import GIB, StepFit
from nanoengine.viz.theme import COLORS, EVIDENCE, significant

ALL_POINTS = "none: all points"


def leave_one_out(fit: StepFit, labels: list[str], title: str) -> alt.LayerChart:
    """The fitted line with one chosen point left out, over the line of all points. labels: one per row of the fit."""
    low, high = 0.0, fit.kv_range_gib[1]
    fits = [(ALL_POINTS, fit.intercept_ms, fit.slope_ms_per_gib)]
    fits += [(labels[row.left_out], row.intercept_ms, row.slope_ms_per_gib) for row in fit.leave_one_out().itertuples()]
    lines = pd.DataFrame(
        [
            (name, significant(kv), significant(start + slope * kv), significant(start), significant(slope))
            for name, start, slope in fits
            for kv in (low, high)
        ],
        columns=["left_out", "kv", "step_ms", "start", "slope"],
    )
    points = pd.DataFrame(
        {"label": labels, "kv": fit.data.kv_bytes / GIB, "step_ms": fit.data.step_ms},
    ).assign(kv=lambda t: t.kv.map(significant), step_ms=lambda t: t.step_ms.map(significant))
    picked = alt.param(
        name="left_out",
        value=ALL_POINTS,
        bind=alt.binding_select(options=[ALL_POINTS, *labels], name="leave out (batch x context) "),
    )
    x = alt.X("kv:Q").title("KV that the step reads (GiB)")
    y = alt.Y("step_ms:Q").title("one decode step (ms)").scale(zero=True)
    chosen = alt.Chart(lines).transform_filter("datum.left_out == left_out")
    return (
        alt.layer(
            alt.Chart(lines[lines.left_out == ALL_POINTS])
            .mark_line(strokeDash=[4, 4], color=EVIDENCE["construction"])
            .encode(x, y),
            chosen.mark_line(color=COLORS["vllm"]).encode(x, y),
            alt.Chart(points)
            .mark_point(size=70, opacity=1, color=COLORS["vllm"])
            .encode(
                x,
                y,
                fillOpacity=alt.condition("datum.label == left_out", alt.value(0), alt.value(1)),
                fill=alt.value(COLORS["vllm"]),
                tooltip=["label:N", "kv:Q", "step_ms:Q"],
            ),
            chosen.transform_filter(f"datum.kv == {significant(low)}")
            .transform_calculate(
                label="format(datum.start, '.1f') + ' ms + ' + format(datum.slope, '.2f') + ' ms per GiB'"
            )
            .mark_text(align="left", fontWeight="bold")
            .encode(text="label:N", x=alt.value(10), y=alt.value(12)),
        )
        .add_params(picked)
        .properties(
            title=title,
            width="container",
            height=300,
            description="Step time over KV with the line fitted to all points, dashed, and the line without one chosen "
            "point. Leaving out the point of the largest KV moves the line most.",
        )
    )


def influence_bars(fit: StepFit, labels: list[str]) -> alt.Chart:
    """Cook's distance of each point: how far all fitted values move when it is left out."""
    table = pd.DataFrame({"point": labels, "distance": [significant(d) for d in fit.cooks_distance]})
    return (
        alt.Chart(table)
        .mark_bar(color=COLORS["vllm"])
        .encode(
            alt.X("distance:Q").title("Cook's distance"),
            alt.Y("point:N").sort(None).title("batch x context"),
            tooltip=["point:N", "distance:Q"],
        )
        .properties(
            title="Which point the line rests on",
            width="container",
            height=26 * len(table),
            description="Cook's distance of each point of the fit. "
            + ", ".join(f"{label}: {distance:.2g}" for label, distance in table.itertuples(index=False)),
        )
    )


def heat_as_kv(drift_ms: float = 20.0, intercept_ms: float = 60.0, slope_ms_per_gib: float = 5.0) -> alt.LayerChart:
    """A machine that slows down while it is measured, in rising order of KV and in shuffled order; a slider heats it.

    A construction: sixteen made-up cells with no noise. Both orders measure the same machine.
    """
    cells = pd.DataFrame({"kv": np.arange(1, 17) / 2.0})
    shuffled = np.random.default_rng(1).permutation(len(cells))
    orders = pd.concat(
        [cells.assign(order=np.arange(len(cells)), how="in rising order"), cells.assign(order=shuffled, how="shuffled")]
    )
    last = len(cells) - 1
    heat = alt.param(
        name="heat",
        value=drift_ms,
        bind=alt.binding_range(min=0, max=60, step=1, name="slower at the end by (ms) "),
    )
    points = alt.Chart(orders).transform_calculate(
        step_ms=f"{intercept_ms} + {slope_ms_per_gib} * datum.kv + heat * datum.order / {last}"
    )
    x = alt.X("kv:Q").title("KV that the step reads (GiB)")
    y = alt.Y("step_ms:Q").title("one decode step (ms)").scale(zero=True)
    color = (
        alt.Color("how:N")
        .scale(domain=["in rising order", "shuffled"], range=[COLORS["kv"], COLORS["nanoengine"]])
        .legend(title=None, orient="top")
    )
    true = pd.DataFrame({"kv": [0.0, 8.0], "step_ms": [intercept_ms, intercept_ms + 8 * slope_ms_per_gib]})
    return (
        alt.layer(
            alt.Chart(true).mark_line(strokeDash=[2, 3], color=EVIDENCE["construction"]).encode(x, y),
            points.transform_regression("kv", "step_ms", groupby=["how"]).mark_line().encode(x, y, color),
            points.mark_point(filled=True, size=55, opacity=1).encode(x, y, color),
        )
        .add_params(heat)
        .properties(
            title="Heat that looks like KV",
            width="container",
            height=280,
            description="Sixteen made-up cells of one machine that slows down while it is measured. Measured in rising "
            "order of KV the line is too steep; in shuffled order it keeps its slope and the points scatter.",
        )
    )
