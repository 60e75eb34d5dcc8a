"""Sentences and tables with computed numbers, as a notebook shows them."""

import html as html_text

import pandas as pd
from IPython.display import HTML, Markdown, display


def say(text: str) -> None:
    """Show Markdown: how a chapter puts computed numbers into prose, on the page, in JupyterLab and live."""
    display(Markdown(text))


def verdict(claim: str, holds: bool) -> None:
    """Print whether a claim about measured figures holds; `make test` compares the line with the stored one."""
    print(f"{'holds' if holds else 'FAILS'}: {claim}")


def show_table(table: pd.DataFrame, caption: str, formats: dict | None = None, folded: bool = False) -> None:
    """Show a table with a caption; `formats` maps columns to format strings as "{:.1f}".

    folded: behind a summary line that the reader opens, as the data of a figure is.
    """
    columns = [(name, (formats or {}).get(name)) for name in table.columns]
    shown = pd.DataFrame({name: table[name].map(_formatter(form)) for name, form in columns})
    caption = html_text.escape(caption, quote=False)
    html = shown.to_html(index=False, border=0, classes=["ne-table"], escape=True)
    if folded:
        html = f"<details class='ne-data'><summary>{caption}</summary>{html}</details>"
    else:
        html = html.replace(">", f"><caption>{caption}</caption>", 1)
    display(HTML(html))


def _formatter(form: str | None):
    def show(value) -> str:
        if pd.isna(value):
            return ""
        if form:
            return form.format(value)
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    return show
