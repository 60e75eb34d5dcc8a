"""One look for every figure: colours with a fixed meaning, light and dark, and how notebooks carry charts."""

import json
import os

import altair as alt
import matplotlib as mpl

VEGA_LITE_MIME = "application/vnd.vegalite.v5+json"

# One colour per thing, the same in every figure. Each has a contrast of at least 3:1 on white and on near-black.
COLORS = {
    "nanoengine": "#0f8b8d",
    "transformers": "#c4841d",
    "vllm": "#3b7dd8",
    "llama.cpp": "#8f5fbf",
    "context sweep": "#d1495b",
    "weights": "#3b7dd8",
    "kv": "#d1495b",
}

# How legends call the systems, and what kind of evidence their points are.
LABELS = {
    "nanoengine": "nanoengine (measured here)",
    "transformers": "Hugging Face, DGX Spark (stored)",
    "vllm": "vLLM, DGX Spark (stored)",
    "context sweep": "nano-vLLM context sweep (stored)",
}

# What a mark is evidence of.
EVIDENCE = {"measured": "#0f8b8d", "stored": "#3b7dd8", "estimate": "#c4841d", "construction": "#7f8790"}

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def setup() -> None:
    """Make Altair and Matplotlib draw in the book's style; the first call of every chapter."""
    alt.renderers.register("book", _bundle)
    alt.renderers.enable("book")
    alt.theme.register("book", enable=True)(_altair_theme)
    mpl.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.figsize": (6.4, 3.6),
            "font.family": "sans-serif",
            "axes.grid": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.alpha": 0.3,
            "svg.hashsalt": "book",
        }
    )


def _altair_theme() -> dict:
    return {
        "config": {
            "font": _FONT,
            "background": "transparent",
            "view": {"stroke": None},
            "title": {"anchor": "start", "fontSize": 14, "fontWeight": 600, "subtitleFontSize": 12},
            "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500, "gridOpacity": 0.35},
            "legend": {"labelFontSize": 12, "symbolSize": 120, "symbolOpacity": 1},
            "line": {"strokeWidth": 2},
        }
    }


def _bundle(spec: dict, **_) -> dict:
    """A chart as notebooks carry it: JupyterLab draws the MIME type, the book's own script draws it on the page."""
    title = spec.get("title", "chart")
    text = f"<chart: {title['text'] if isinstance(title, dict) else title}>"
    if os.environ.get("BOOK_LIVE"):  # live cells on a page know no Vega: give them what charts.js draws
        return {"text/html": chart_html(spec), "text/plain": text}
    return {VEGA_LITE_MIME: spec, "text/plain": text}


def chart_html(spec: dict) -> str:
    """The div that book/_static/charts.js turns into a chart."""
    label = str(spec.get("description") or spec.get("title") or "chart").replace("&", "&amp;").replace("'", "&#39;")
    blob = json.dumps(spec, sort_keys=True).replace("</", "<\\/")
    return f"<div class='ne-vega' role='img' aria-label='{label}'><script type='application/json'>{blob}</script></div>"


def significant(value: float, digits: int = 5) -> float:
    """`value` to significant digits, so that stored charts compare equal across machines."""
    return float(f"{float(value):.{digits}g}")
