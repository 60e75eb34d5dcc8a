"""The figure of what splitting a history costs and buys (chapter 07)."""

import altair as alt
import pandas as pd

from nanoengine.kernels.decode_plan import MAX_SPLITS, bytes_asked, plan_decode
from nanoengine.viz.theme import COLORS, EVIDENCE, significant


def split_cost(heads: int, kv_heads: int, head_dim: int, histories: list[int], itemsize: int = 2) -> alt.LayerChart:
    """Bytes asked for over bytes that must be read, for one sequence; a slider sets the number of splits (powers of 2).

    Beside it stands how many programs the launch has: what splitting is for.
    """
    rows = []
    for power in range(MAX_SPLITS.bit_length()):
        for history in histories:
            plan = plan_decode(1, heads, kv_heads, head_dim, history, num_sms=0, num_splits=2**power)
            asked = bytes_asked(plan, [history], itemsize)
            programs = kv_heads * plan.live_splits(history)
            rows.append((power, history, significant(asked.asked / asked.must_read), programs))
    table = pd.DataFrame(rows, columns=["power", "history", "ratio", "programs"])
    power = alt.param(
        name="power",
        value=0,
        bind=alt.binding_range(min=0, max=MAX_SPLITS.bit_length() - 1, step=1, name="log2 of splits "),
    )
    chosen = alt.Chart(table).transform_filter("datum.power == power")
    x = alt.X("history:Q").scale(type="log", base=2, domain=[histories[0], histories[-1]], nice=False)
    x = x.title("history T (tokens)")
    y = alt.Y("ratio:Q").scale(domain=[1, 1.25], clamp=True).title("bytes asked / bytes that must be read")
    last = chosen.transform_filter(f"datum.history == {histories[-1]}").transform_calculate(
        label="pow(2, power) + ' split(s): ' + datum.programs + ' programs at the longest history'"
    )
    return (
        alt.layer(
            alt.Chart(table).mark_line(color=EVIDENCE["construction"], opacity=0.35).encode(x, y, detail="power:N"),
            chosen.mark_line(color=COLORS["kv"]).encode(x, y),
            chosen.mark_point(filled=True, size=45, opacity=1, color=COLORS["kv"]).encode(
                x, y, tooltip=["history:Q", "ratio:Q", "programs:Q"]
            ),
            last.mark_text(align="right", fontWeight="bold").encode(
                text="label:N", x=alt.value("width"), y=alt.value(12)
            ),
        )
        .add_params(power)
        .properties(
            title=alt.Title("What a split costs", subtitle="one sequence, computed from the launch"),
            width="container",
            height=280,
            description="Bytes asked for over bytes that must be read, over the history. More splits write and read "
            "more partial results, which matters for short histories and vanishes for long ones.",
        )
    )
