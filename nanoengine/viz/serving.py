"""Interactive figures of a simulated service (chapter 12)."""

import altair as alt
import pandas as pd

from nanoengine.costmodel.simulation import Simulation
from nanoengine.viz.theme import COLORS, EVIDENCE, significant

CAUSE_COLORS = {
    "weights read": COLORS["weights"],
    "KV read": COLORS["kv"],
    "prompts computed": COLORS["nanoengine"],
    "prompts computed again after preemption": COLORS["transformers"],
    "overhead of steps": EVIDENCE["construction"],
}


def causes(simulations: dict[str, Simulation], published: dict[str, float]) -> alt.LayerChart:
    """Seconds by cause, one bar per simulation, with published totals as rules; a slider adds overhead to each step.

    simulations: by label, run with no overhead. published: seconds by label.
    """
    bars = pd.concat(run.causes().assign(run=label, steps=0) for label, run in simulations.items())[
        ["run", "cause", "seconds", "steps"]
    ]
    bars = bars[bars.cause.isin(CAUSE_COLORS)]
    steps = pd.Series({label: len(run.steps) for label, run in simulations.items()})
    overhead = bars.cause == "overhead of steps"
    bars.loc[overhead, "steps"] = bars.loc[overhead, "run"].map(steps)
    bars["seconds"] = bars.seconds.map(significant)
    slider = alt.param(
        name="step_overhead",
        value=0,
        bind=alt.binding_range(min=0, max=6, step=0.1, name="overhead of a step (ms) "),
    )
    rules = pd.DataFrame(list(published.items()), columns=["engine", "seconds"])
    y = alt.Y("run:N").sort(list(simulations)).title("KV pool")
    return (
        alt.layer(
            alt.Chart(bars)
            .transform_calculate(seconds="datum.seconds + datum.steps * step_overhead / 1000")
            .mark_bar()
            .encode(
                alt.X("sum(seconds):Q").title("seconds"),
                y,
                alt.Color("cause:N")
                .scale(domain=list(CAUSE_COLORS), range=list(CAUSE_COLORS.values()))
                .legend(orient="top", title=None, columns=1, labelLimit=300),
                alt.Order("cause:N"),
            ),
            alt.Chart(rules)
            .mark_rule(strokeDash=[4, 3], strokeWidth=2)
            .encode(x="seconds:Q", tooltip=["engine:N", "seconds:Q"]),
        )
        .add_params(slider)
        .properties(
            title="Where the seconds go",
            width="container",
            height=46 * len(simulations) + 20,
            description="Seconds of the simulated benchmark by cause, for several sizes of the KV pool. "
            + "; ".join(f"{label}: {run.total_s:.1f} s" for label, run in simulations.items())
            + ". Dashed: the published times.",
        )
    )


def timeline(run: Simulation, title: str, points: int = 160) -> alt.Chart:
    """Requests being decoded and requests waiting, over the run; the share of the pool in use on hovering."""
    steps = run.steps.iloc[:: max(1, len(run.steps) // points)]
    table = pd.DataFrame(
        {
            "second": (steps.start_ms / 1e3).map(significant),
            "decoding": steps.decodes,
            "waiting": steps.waiting,
            "pool in use": (steps.used_blocks / run.num_blocks).map(significant),
        }
    )
    return (
        alt.Chart(table)
        .transform_fold(["decoding", "waiting"], as_=["requests", "count"])
        .mark_line(interpolate="step-after")
        .encode(
            alt.X("second:Q").title("seconds"),
            alt.Y("count:Q").title("requests"),
            alt.Color("requests:N")
            .scale(domain=["decoding", "waiting"], range=[COLORS["nanoengine"], COLORS["transformers"]])
            .legend(orient="top", title=None),
            tooltip=["second:Q", "decoding:Q", "waiting:Q", alt.Tooltip("pool in use:Q", format=".0%")],
        )
        .properties(
            title=title,
            width="container",
            height=240,
            description="Requests being decoded and requests waiting over the simulated run. The pool is full almost "
            "from the start, so most requests wait, and fewer run together as their histories grow.",
        )
    )
