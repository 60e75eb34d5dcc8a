"""Interactive figures that hold claims against data sheets (chapters 05 and 11)."""

import altair as alt
import numpy as np
import pandas as pd

from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.prefill import gemm_roofline
from nanoengine.viz.theme import COLORS, EVIDENCE, significant


def possible_cards(devices: pd.DataFrame, readings: pd.DataFrame, gemm_tflop_per_s: float) -> alt.LayerChart:
    """Devices by bandwidth and dense rate; those right of and above the dashed lines could have done what is claimed.

    devices: name, bandwidth_gb_per_s, bf16_tflop_per_s. readings: reading, needed_gb_per_s; a menu picks one.
    """
    names = list(readings.reading)
    picked = alt.param(name="reading", value=names[0], bind=alt.binding_select(options=names, name="reading "))
    needed = alt.Chart(readings).transform_filter("datum.reading == reading")
    limits = "{" + ", ".join(f"{row.reading!r}: {row.needed_gb_per_s}" for row in readings.itertuples()) + "}"
    able = f"datum.bandwidth_gb_per_s >= {limits}[reading] && datum.bf16_tflop_per_s >= {gemm_tflop_per_s}"
    named = devices[["name", "bandwidth_gb_per_s", "bf16_tflop_per_s"]].sort_values("bf16_tflop_per_s")
    # Names stand right of their points, but for cards that share a bandwidth with a lesser one, and the last one.
    crowded = named.bandwidth_gb_per_s.duplicated() | (named.bandwidth_gb_per_s == named.bandwidth_gb_per_s.max())
    cards, lone, others = (alt.Chart(rows) for rows in (named, named[~crowded], named[crowded]))
    x = alt.X("bandwidth_gb_per_s:Q").scale(type="log", domain=[150, 2600], nice=False).title("memory bandwidth (GB/s)")
    y = alt.Y("bf16_tflop_per_s:Q").scale(type="log", domain=[20, 300], nice=False).title("dense bf16 (TFLOP/s)")
    color = alt.condition(able, alt.value(COLORS["nanoengine"]), alt.value(EVIDENCE["construction"]))
    return (
        alt.layer(
            needed.mark_rule(strokeDash=[5, 3], color=COLORS["kv"]).encode(alt.X("needed_gb_per_s:Q")),
            alt.Chart(pd.DataFrame({"rate": [gemm_tflop_per_s]}))
            .mark_rule(strokeDash=[5, 3], color=COLORS["transformers"])
            .encode(alt.Y("rate:Q")),
            cards.mark_point(filled=True, size=80, opacity=1).encode(
                x, y, color=color, tooltip=["name:N", "bandwidth_gb_per_s:Q", "bf16_tflop_per_s:Q"]
            ),
            lone.mark_text(align="left", dx=7, dy=-6, fontSize=11).encode(x, y, text="name:N", color=color),
            others.mark_text(align="right", dx=-7, dy=-6, fontSize=11).encode(x, y, text="name:N", color=color),
        )
        .add_params(picked)
        .properties(
            title="Which cards could have done it",
            width="container",
            height=340,
            description="Consumer and workstation cards by memory bandwidth and dense bf16 rate. Dashed: what the "
            "chosen reading of the published rates needs. Few cards lie beyond both lines.",
        )
    )


def gemm_rates(devices: list[str], cols: int, inner: int) -> alt.LayerChart:
    """Rate that one linear layer can reach over the rows it is given, on a device that the reader picks (a ceiling)."""
    rows = np.unique(np.geomspace(1, 8192, 50).round())
    specs = [DeviceSpec.named(name) for name in devices]
    table = pd.concat(
        gemm_roofline(spec, rows, cols, inner)[["rows", "tflop_per_s", "binds"]].assign(device=spec.name)
        for spec in specs
    )
    table["tflop_per_s"] = table.tflop_per_s.map(significant)
    names = [spec.name for spec in specs]
    picked = alt.param(name="card", value=names[0], bind=alt.binding_select(options=names, name="device "))
    x = alt.X("rows:Q").scale(type="log", base=2, domain=[1, 8192], nice=False).title("rows (tokens in the pass)")
    y = alt.Y("tflop_per_s:Q").scale(type="log").title("TFLOP/s at best")
    return (
        alt.layer(
            alt.Chart(table).mark_line(color=EVIDENCE["construction"], opacity=0.35).encode(x, y, detail="device:N"),
            alt.Chart(table)
            .transform_filter("datum.device == card")
            .mark_line(strokeWidth=3)
            .encode(
                x,
                y,
                alt.Color("binds:N")
                .scale(domain=["memory", "compute"], range=[COLORS["weights"], COLORS["transformers"]])
                .legend(orient="top", title="what binds"),
            ),
        )
        .add_params(picked)
        .properties(
            title=alt.Title("The roofline of one layer", subtitle=f"{inner:,} x {cols:,} weights in bf16"),
            width="container",
            height=300,
            description="The rate a linear layer can reach over the number of rows. With few rows it rises in "
            "proportion: memory binds. With many it is flat at the device's arithmetic rate.",
        )
    )
