"""Sentences, tables and panels: what they carry for a page, a notebook and a page that is live."""

import json

import pandas as pd
import pytest

from nanoengine import viz
from nanoengine.viz.panels import fit_panel, price_panel
from nanoengine.viz.theme import VEGA_LITE_MIME, chart_html


@pytest.fixture
def shown(monkeypatch):
    out = []
    monkeypatch.setattr("nanoengine.viz.prose.display", out.append)
    return out


def test_a_sentence_is_markdown(shown):
    viz.say("**2** tokens")
    assert shown[0].data == "**2** tokens"


def test_a_table_has_a_caption_formats_and_blanks(shown):
    viz.show_table(pd.DataFrame({"ms": [1.234, None], "n": [1200, 3]}), "Times <here>", {"ms": "{:.1f}"})
    html = shown[0].data
    assert "<caption>Times &lt;here&gt;</caption>" in html
    assert ">1.2</td>" in html and ">1,200</td>" in html and "nan" not in html.lower()


def test_a_folded_table_opens_at_its_caption(shown):
    viz.show_table(pd.DataFrame({"n": [1]}), "Data of Figure 1", folded=True)
    assert shown[0].data.startswith("<details class='ne-data'><summary>Data of Figure 1</summary>")


def test_a_verdict_says_which_way_it_went(capsys):
    viz.verdict("a", True)
    viz.verdict("b", False)
    assert capsys.readouterr().out == "holds: a\nFAILS: b\n"


def test_a_chart_is_vega_in_a_notebook_and_html_on_a_live_page(monkeypatch):
    import altair as alt

    viz.setup()
    chart = alt.Chart(pd.DataFrame({"x": [1]})).mark_point().encode(x="x:Q").properties(title="A title")
    assert VEGA_LITE_MIME in chart._repr_mimebundle_()
    assert chart._repr_mimebundle_()["text/plain"] == "<chart: A title>"
    monkeypatch.setenv("BOOK_LIVE", "1")
    bundle = chart._repr_mimebundle_()
    assert VEGA_LITE_MIME not in bundle and "ne-vega" in bundle["text/html"]


def test_a_chart_s_html_cannot_be_closed_by_its_data():
    html = chart_html({"title": "t", "description": "it's", "data": "</script><b>"})
    assert html.count("</script>") == 1
    assert json.loads(html.split("json'>")[1].split("</script>")[0])["data"] == "</script><b>"


def test_the_price_panel_answers_its_controls():
    panel = price_panel()
    model, _, batch, history, price = panel.children
    before = price.value
    batch.value = 64
    assert price.value != before
    before = price.value
    history.value = 32_768
    assert price.value != before
    before = price.value
    model.value = "llama-3.1-8b"
    assert price.value != before


def test_the_price_panel_explains_what_a_model_cannot_do():
    panel = price_panel("smollm2-135m")
    panel.children[3].value = 32_768
    assert "exceeds" in panel.children[4].value


def test_a_panel_carries_an_html_twin():
    bundle = price_panel()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "needs a running kernel" in bundle["text/html"] and "ms</b> a step" in bundle["text/html"]


def test_the_fit_panel_fits_what_is_chosen():
    cells = pd.DataFrame(
        {
            "batch": [1, 1, 1, 1, 4, 4, 4, 4],
            "kv_bytes": [2**28 * i for i in (1, 2, 3, 4, 4, 8, 12, 16)],
            "step_ms": [11, 12, 13.1, 14, 20, 24.2, 28, 32],
        }
    )
    drawn = []
    panel = fit_panel(cells, lambda chosen, fit: drawn.append((len(chosen), fit)) or "chart")
    boxes, text, _ = panel.children
    four = next(box for box in boxes.children if box.description == "batch 4")
    assert drawn[-1][0] == 8
    four.value = False
    assert drawn[-1][0] == 4
    boxes.children[-1].value = True  # a cost per request, with one batch size: cannot be told
    assert "cannot be told apart" in text.value
    four.value = True
    assert drawn[-1][1].per_request_ms == pytest.approx(2, abs=2)
