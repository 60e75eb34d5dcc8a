"""Interactive figures of what a batch shares and what it does not (chapters 03 and 04)."""

import altair as alt
import numpy as np
import pandas as pd

from nanoengine.costmodel.decode import price_step, ridge_batch
from nanoengine.costmodel.device import DeviceSpec
from nanoengine.costmodel.model import ModelSpec
from nanoengine.viz.theme import COLORS, EVIDENCE, significant


def ridge(model: ModelSpec, devices: list[str], history: int = 1, max_batch: int = 2048) -> alt.LayerChart:
    """Step time over batch on a device that the reader picks: flat while weights are read, then rising with arithmetic.

    devices: names in data/devices.csv with a published dense rate. Floors, no overhead.
    """
    batch = np.unique(np.geomspace(1, max_batch, 45).round())
    specs = {name: DeviceSpec.named(name) for name in devices}
    steps = pd.concat(
        price_step(model, spec, batch, history)[["batch", "step_ms"]].assign(device=spec.name)
        for spec in specs.values()
    )
    steps["step_ms"] = steps.step_ms.map(significant)
    knees = pd.DataFrame(
        [(spec.name, significant(ridge_batch(model, spec)), _step_at_ridge(model, spec)) for spec in specs.values()],
        columns=["device", "batch", "step_ms"],
    )
    knees["label"] = [f"B = {knee:,.0f}" for knee in knees.batch]
    names = [spec.name for spec in specs.values()]
    picked = alt.param(name="picked", value=names[0], bind=alt.binding_select(options=names, name="device "))
    x = alt.X("batch:Q").scale(type="log", base=2, domain=[1, max_batch], nice=False).title("batch B (requests)")
    y = alt.Y("step_ms:Q").scale(type="log").title("one decode step (ms)")
    chosen = "datum.device == picked"
    return (
        alt.layer(
            alt.Chart(steps).mark_line(color=EVIDENCE["construction"], opacity=0.35).encode(x, y, detail="device:N"),
            alt.Chart(steps).transform_filter(chosen).mark_line(color=COLORS["weights"]).encode(x, y),
            alt.Chart(knees)
            .transform_filter(chosen)
            .mark_point(filled=True, size=80, opacity=1, color=COLORS["kv"])
            .encode(x, y),
            alt.Chart(knees)
            .transform_filter(chosen)
            .mark_text(align="right", dx=-8, dy=-8, fontWeight="bold")
            .encode(x, y, text="label:N"),
        )
        .add_params(picked)
        .properties(
            title=alt.Title("Where a batch stops being free (floor)", subtitle=f"linear layers of {model.name}"),
            width="container",
            height=300,
            description="Step time over batch size on several devices: flat while reading the weights takes longer "
            "than the arithmetic, then rising in proportion to the batch. "
            + "; ".join(f"{row.device}: {row.label}" for row in knees.itertuples()),
        )
    )


def _step_at_ridge(model: ModelSpec, device: DeviceSpec) -> float:
    return significant(float(price_step(model, device, ridge_batch(model, device), 1).step_ms.iloc[0]))


def floor(models: dict[str, ModelSpec], device: DeviceSpec, max_batch: int = 4096) -> alt.LayerChart:
    """Time per token over batch up to thousands: it falls to the KV floor and stops. A slider sets the history.

    models: variants by label, such as one with KV in 8 bit; a menu picks one, the others stay in grey.
    """
    bytes_per_ms = device.bandwidth_gb_per_s * 1e6
    rows = pd.DataFrame(
        [
            (label, batch, significant(m.weight_bytes / bytes_per_ms), significant(m.kv_bytes_per_token / bytes_per_ms))
            for label, m in models.items()
            for batch in np.unique(np.geomspace(1, max_batch, 40).round())
        ],
        columns=["variant", "batch", "weight_ms", "kv_ms"],
    )
    names = list(models)
    history = alt.param(
        name="tokens",
        value=4096,
        bind=alt.binding_range(min=256, max=32_768, step=256, name="history T (tokens) "),
    )
    picked = alt.param(name="variant", value=names[0], bind=alt.binding_select(options=names, name="KV cache "))
    priced = alt.Chart(rows).transform_calculate(
        token_ms="datum.weight_ms / datum.batch + datum.kv_ms * tokens", floor_ms="datum.kv_ms * tokens"
    )
    chosen = priced.transform_filter("datum.variant == variant")
    one = chosen.transform_filter(f"datum.batch == {max_batch}").transform_calculate(
        label="'floor ' + format(datum.floor_ms, '.3f') + ' ms a token'"
    )
    x = alt.X("batch:Q").scale(type="log", base=2, domain=[1, max_batch], nice=False).title("batch B (requests)")
    y = alt.Y("token_ms:Q").scale(type="log").title("time per token (ms)")
    return (
        alt.layer(
            priced.mark_line(color=EVIDENCE["construction"], opacity=0.35).encode(x, y, detail="variant:N"),
            chosen.mark_line(strokeDash=[5, 3], color=COLORS["kv"]).encode(x, alt.Y("floor_ms:Q")),
            chosen.mark_line(color=COLORS["weights"]).encode(x, y),
            one.mark_text(align="right", dx=-4, dy=14, fontWeight="bold").encode(
                x, alt.Y("floor_ms:Q"), text="label:N"
            ),
        )
        .add_params(history, picked)
        .properties(
            title=alt.Title("The floor under a token", subtitle=f"on {device.name}, from bytes and bandwidth"),
            width="container",
            height=300,
            description="Time per token over batch size. It falls with the batch until only the KV of the request's "
            "own history is left; from there no batch lowers it.",
        )
    )


def inverse_batch(cells: pd.DataFrame, lines: pd.DataFrame) -> alt.LayerChart:
    """Measured time per token against 1/B: straight lines whose ends at 1/B = 0 are the floors.

    cells: columns history, batch, token_ms, low_ms, high_ms. lines: history, floor_ms, shared_ms (slope over 1/B).
    """
    marks = cells.assign(inverse=1 / cells.batch, history=cells.history.map("{:,} tokens".format))
    drawn = pd.DataFrame(
        [
            (f"{int(r.history):,} tokens", u, r.floor_ms + r.shared_ms * u)
            for r in lines.itertuples()
            for u in (0.0, 1.0)
        ],
        columns=["history", "inverse", "token_ms"],
    )
    for frame in (marks, drawn):
        for column in frame.columns.intersection(["inverse", "token_ms", "low_ms", "high_ms"]):
            frame[column] = frame[column].map(significant)
    color = (
        alt.Color("history:N")
        .scale(domain=list(drawn.history.unique()), range=[COLORS["nanoengine"], COLORS["kv"]])
        .legend(orient="top", title="history")
    )
    x = alt.X("inverse:Q").title("1 / batch").scale(domain=[0, 1])
    y = alt.Y("token_ms:Q").title("time per token (ms)").scale(zero=True)
    return alt.layer(
        alt.Chart(drawn).mark_line().encode(x, y, color),
        alt.Chart(marks).mark_rule().encode(x, alt.Y("low_ms:Q"), alt.Y2("high_ms:Q"), color=color),
        alt.Chart(marks)
        .mark_point(filled=True, size=60, opacity=1)
        .encode(x, y, color, tooltip=["history:N", "batch:Q", "token_ms:Q"]),
    ).properties(
        title="Where the lines end is the floor",
        width="container",
        height=300,
        description="Measured time per token against one over the batch size, for two histories. Each lies on a line; "
        "the lines end, at an endless batch, above zero, and the longer history ends higher.",
    )
