"""The directive `data-tables`: every table of the data package with its columns, units, licence, sources and file."""

import json
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

DATA = Path(__file__).resolve().parents[2] / "data"


def table_text(resource: dict) -> str:
    """One table of datapackage.json, in Markdown."""
    rows = sum(1 for _ in (DATA / resource["path"]).open()) - 1
    licences = "; ".join(licence.get("title") or licence["name"] for licence in resource["licenses"])
    lines = [
        f"## {resource['title']}",
        "",
        resource["description"],
        "",
        f"{rows} rows. {licences}. {{download}}`{resource['path']} <../data/{resource['path']}>`",
        "",
        "| column | unit | meaning |",
        "|---|---|---|",
    ]
    for field in resource["schema"]["fields"]:
        unit = "" if field.get("unit") in (None, "1") else field["unit"]
        lines.append(f"| `{field['name']}` | {unit} | {_cell(field['description'])} |")
    sources = [
        _cell(source["title"] + (f", <{source['path']}>" if "path" in source else "")) for source in resource["sources"]
    ]
    return "\n".join([*lines, "", "Sources: " + "; ".join(sources) + "."])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class DataTables(SphinxDirective):
    """Takes no argument."""

    def run(self):
        package = DATA / "datapackage.json"
        self.env.note_dependency(str(package))
        text = "\n\n".join(table_text(resource) for resource in json.loads(package.read_text())["resources"])
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app):
    """Sphinx entry point."""
    app.add_directive("data-tables", DataTables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
