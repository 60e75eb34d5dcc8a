"""The chapters as files: executed, honest about it, and strict enough that comparing them means something."""

import json
from pathlib import Path

import pytest

CHAPTERS = sorted(Path(__file__).resolve().parents[2].glob("chapters/*.ipynb"))
LEAST_STRICT_CELLS = 8


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return json.loads(request.param.read_text())


def code_cells(chapter):
    return [cell for cell in chapter["cells"] if cell["cell_type"] == "code"]


def tags(cell):
    return cell["metadata"].get("tags", [])


def test_every_cell_was_run_and_none_failed(chapter):
    for cell in code_cells(chapter):
        assert cell["execution_count"], cell["source"]
        assert not [o for o in cell["outputs"] if o["output_type"] == "error"], cell["source"]


def test_enough_cells_are_compared_with_their_stored_output(chapter):
    strict = [cell for cell in code_cells(chapter) if cell["outputs"] and "nbval-ignore-output" not in tags(cell)]
    assert len(strict) >= LEAST_STRICT_CELLS


def test_every_verdict_holds(chapter):
    printed = "".join(
        "".join(o.get("text", ""))
        for cell in code_cells(chapter)
        for o in cell["outputs"]
        if o["output_type"] == "stream"
    )
    assert "holds: " in printed
    assert "FAILS" not in printed


def test_measured_cells_are_followed_by_a_verdict(chapter):
    """What is not compared is judged: some later strict cell prints a verdict."""
    cells = code_cells(chapter)
    measured = [
        i
        for i, cell in enumerate(cells)
        if "run_sweep" in "".join(cell["source"]) and "nbval-ignore-output" in tags(cell)
    ]
    verdicts = [i for i, cell in enumerate(cells) if "viz.verdict" in "".join(cell["source"])]
    assert verdicts and not [i for i in verdicts if "nbval-ignore-output" in tags(cells[i])]
    for first in measured[:1]:
        assert any(i > first for i in verdicts)


def test_no_widget_view_is_stored(chapter):
    """A view without its kernel shows an error in JupyterLab; the HTML twin is stored instead."""
    assert "widgets" not in chapter["metadata"]
    kinds = {kind for cell in code_cells(chapter) for output in cell["outputs"] for kind in output.get("data", {})}
    assert "application/vnd.jupyter.widget-view+json" not in kinds


def test_the_outputs_say_where_they_were_made(chapter):
    assert {"date", "machine", "versions"} <= chapter["metadata"]["nanoengine"].keys()


def test_each_chapter_has_its_parts(chapter):
    text = "\n".join("".join(cell["source"]) for cell in chapter["cells"] if cell["cell_type"] == "markdown")
    for part in ("**The question.**", "**The idea.**", "## Exercises", "## Summary", "## Sources"):
        assert part in text
    assert len([cell for cell in code_cells(chapter) if "hide-cell" in tags(cell)]) >= 3, "three solutions"


def test_every_figure_has_a_caption(chapter):
    """A chart is followed by a paragraph in italics that begins with its number."""
    cells = chapter["cells"]
    for i, cell in enumerate(cells):
        if any("application/vnd.vegalite.v5+json" in o.get("data", {}) for o in cell.get("outputs", [])):
            assert "".join(cells[i + 1]["source"]).startswith("*Figure ")
