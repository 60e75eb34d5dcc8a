"""How the book turns a stored Vega-Lite output into a page: the entry point that MyST-NB calls."""

import json

from docutils import nodes

from nanoengine.viz.theme import VEGA_LITE_MIME, chart_html


class VegaLite:
    """A MyST-NB MIME renderer (pyproject.toml, entry point myst_nb.mime_renderers)."""

    mime_priority_overrides = (("*", VEGA_LITE_MIME, 1),)

    @staticmethod
    def handle_mime(renderer, data, inline):
        """The chart as raw HTML, or None for any other output."""
        if inline or data.mime_type != VEGA_LITE_MIME:
            return None
        spec = data.content if isinstance(data.content, dict) else json.loads(data.content)
        html = f'<div class="output text_html">{chart_html(spec)}</div>'
        return [nodes.raw(text=html, format="html")]
