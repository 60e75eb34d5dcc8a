"""Run chapters and store their outputs, with when and where they were made: python book/refresh.py [chapter ...].

Widget views are not stored: they need a kernel, and the HTML twin that each panel gives along stands in for them.
"""

import argparse
import datetime
import importlib.metadata
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from nanoengine.sweep.machine import this_machine

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def refresh(path: Path) -> None:
    """Execute one notebook in place; a cell that raises leaves the file as it was."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if data.pop(WIDGET_VIEW, None) is not None:
                data.pop("text/plain", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["nanoengine"] = {
        "date": datetime.date.today().isoformat(),
        "machine": this_machine().label(),
        "versions": {
            "Python": ".".join(map(str, sys.version_info[:3])),
            **{name: importlib.metadata.version(name) for name in ("nanoengine", "torch")},
        },
    }
    nbformat.write(notebook, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", type=Path, help="notebooks (default: all of chapters/)")
    for path in parser.parse_args().chapters or sorted(CHAPTERS.glob("*.ipynb")):
        try:
            refresh(path.resolve())
        except CellExecutionError as error:
            print(f"{path.name} was not refreshed: {error.ename}: {error.evalue}", file=sys.stderr)
            return 1
        print(f"refreshed {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
