"""Interactive figures of average history (chapter 02)."""

import altair as alt
import pandas as pd

from nanoengine.viz.theme import COLORS, EVIDENCE


def growing_history(prompt: int = 256, output: int = 1024) -> alt.LayerChart:
    """The history of one request, step by step: the prompt below, generated tokens above, and their average."""
    prompt_tokens = _slider("prompt", prompt, 0, 4096, 64, "prompt P (tokens) ")
    output_tokens = _slider("output", output, 16, 2048, 16, "output N (tokens) ")
    ends = alt.Chart(pd.DataFrame({"f": [0.0, 1.0]})).transform_calculate(
        step="datum.f * output", history="prompt + datum.f * output", prompt_part="prompt"
    )
    x = alt.X("step:Q").title("decode step").scale(domain=[0, 2048])
    average = alt.Chart(pd.DataFrame({"one": [1]})).transform_calculate(
        average="prompt + output / 2",
        end="output",
        start="0",
        label="'average ' + format(prompt + output / 2, ',.0f')",
    )
    return (
        alt.layer(
            ends.mark_area(color=COLORS["weights"], opacity=0.75).encode(
                x, alt.Y("prompt_part:Q").title("history (tokens)").scale(domain=[0, 6144])
            ),
            ends.mark_area(color=COLORS["kv"], opacity=0.75).encode(x, alt.Y("prompt_part:Q"), y2="history:Q"),
            average.mark_rule(strokeWidth=2, strokeDash=[5, 3]).encode(alt.X("start:Q"), x2="end:Q", y="average:Q"),
            average.mark_text(align="left", dx=6, fontWeight="bold").encode(x="end:Q", y="average:Q", text="label:N"),
        )
        .add_params(prompt_tokens, output_tokens)
        .properties(
            title="What one request attends to",
            width="container",
            height=260,
            description="History over the decode steps of a request: it starts at the prompt's length and grows by one "
            "token a step, so its average is the prompt plus half of the output.",
        )
    )


def prompt_ratio(base: int, marked: int, output: int) -> alt.LayerChart:
    """Average history over the prompt, against that of the prompt `base`; a slider sets what is generated."""
    output_tokens = _slider("generated", output, 0, 8192, 64, "generated N (tokens) ")
    ratio = f"(datum.prompt + generated / 2) / ({base} + generated / 2)"
    prompts = [base * 2 ** (i / 8) for i in range(8 * 5 + 1)]
    curve = alt.Chart(pd.DataFrame({"prompt": prompts})).transform_calculate(
        ratio=ratio, prompts=f"datum.prompt / {base}"
    )
    point = alt.Chart(pd.DataFrame({"prompt": [marked]})).transform_calculate(
        ratio=ratio,
        label=f"format({ratio}, '.2f') + ' times the history'",
    )
    x = alt.X("prompt:Q").scale(type="log", base=2, domain=[base, prompts[-1]], nice=False).title("prompt P (tokens)")
    y = alt.Y("ratio:Q").scale(domain=[0, prompts[-1] / base]).title(f"average history, against P = {base}")
    return (
        alt.layer(
            curve.mark_line(strokeDash=[2, 3], color=EVIDENCE["construction"]).encode(x, alt.Y("prompts:Q")),
            curve.mark_line(color=COLORS["kv"]).encode(x, y),
            point.mark_point(filled=True, size=70, opacity=1, color=COLORS["kv"]).encode(x, y),
            point.mark_text(align="right", dx=-8, dy=-8, fontWeight="bold").encode(x, y, text="label:N"),
        )
        .add_params(output_tokens)
        .properties(
            title=alt.Title("A longer prompt, diluted", subtitle=f"marked: {marked / base:g} times the prompt"),
            width="container",
            height=260,
            description=f"Ratio of average histories over the prompt's length, against a prompt of {base} tokens. The "
            "more tokens both runs generate, the less the prompt's length matters.",
        )
    )


def _slider(name: str, value: int, low: int, high: int, step: int, label: str) -> alt.Parameter:
    return alt.param(name=name, value=value, bind=alt.binding_range(min=low, max=high, step=step, name=label))
