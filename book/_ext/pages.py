"""What each page carries beside its text: only the scripts that it needs, and when and where its outputs were made."""

import json
from pathlib import Path

from docutils import nodes

# A script is loaded where the page holds what it serves.
NEEDS = {
    "vendor/vega.js": "ne-vega",
    "charts.js": "ne-vega",
}


def scripts(app, pagename, templatename, context, doctree):
    """Drop sphinx-thebe (it names another host, and the book has its own live.js) and what the page has no use for."""
    raw = "" if doctree is None else "".join(node.astext() for node in doctree.findall(nodes.raw))
    live_cells = doctree is not None and any(
        "cell_input" in node["classes"] for node in doctree.findall(nodes.container)
    )

    def wanted(script) -> bool:
        attributes = getattr(script, "attributes", None) or {}
        name = str(getattr(script, "filename", "") or "")
        if "THEBE_JS_URL" in (attributes.get("body") or "") or "sphinx-thebe" in name:
            return False
        for ending, mark in NEEDS.items():
            if name.endswith(ending):
                return mark in raw
        if name.endswith("live.js"):
            return live_cells
        return True

    context["script_files"][:] = [script for script in context.get("script_files", []) if wanted(script)]
    context["css_files"][:] = [css for css in context.get("css_files", []) if "sphinx-thebe" not in str(css.filename)]


def provenance(app, doctree, docname):
    """Say at the foot of a notebook's page when, on what machine and with which versions its outputs were made."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".ipynb":
        return
    made = json.loads(path.read_text())["metadata"].get("nanoengine")
    if not made:
        raise ValueError(f"{path.name} does not say where its outputs were made; refresh it with book/refresh.py")
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    text = f"Outputs of this page: made on {made['date']} on {made['machine']}, with {versions}."
    doctree.append(nodes.paragraph("", text, classes=["ne-provenance"]))


def setup(app):
    """Sphinx entry point."""
    app.connect("doctree-resolved", provenance)
    app.connect("html-page-context", scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
