"""Ships the few icons that the pages show, not Font Awesome's 1.5 MB: one small style sheet with the font inside it.

Runs after the build, when it is known which icons the pages use. A font inside the style sheet also works from file://.
"""

import base64
import io
import re
import shutil
from pathlib import Path

from sphinx.util import logging

FOLDER = "_static/vendor/fontawesome"
SHEET = "_static/icons.css"
BASE = """/* Icons of Font Awesome Free 6 (fontawesome.com; icons CC BY 4.0, font SIL OFL 1.1): only those used here. */
@font-face { font-family: "Font Awesome 6 Free"; font-weight: 900; font-display: block;
  src: url(data:font/woff;base64,%s) format("woff"); }
:root { --fa-font-solid: normal 900 1em/1 "Font Awesome 6 Free"; }
.fa-solid, .fas, .fa { font: var(--fa-font-solid); display: inline-block; -webkit-font-smoothing: antialiased; }
.fa-lg { font-size: 1.25em; line-height: .05em; vertical-align: -.075em; }
.fa-fw { text-align: center; width: 1.25em; }
"""


def ship(app, error):
    """Replace Font Awesome in the finished site."""
    if error or app.builder.format != "html":
        return
    site = Path(app.outdir)
    source = next(site.glob(f"{FOLDER}/*"), None)
    if source is None:
        return  # an earlier build of the same folder did it
    pages = list(site.rglob("*.html"))
    texts = {page: page.read_text() for page in pages}
    names = {name for text in texts.values() for name in re.findall(r"\bfa-([a-z][a-z-]+)\b", text)}
    known = dict(re.findall(r"\.fa-([a-z-]+):before\{content:\"\\([0-9a-f]+)\"\}", _spread(source)))
    used = {name: known[name] for name in sorted(names & known.keys())}
    in_themes = {
        code
        for sheet in site.glob("_static/styles/*.css")
        for code in re.findall(r'"\\(f[0-9a-f]{3})"', sheet.read_text())
    }
    font = _subset(source / "webfonts/fa-solid-900.ttf", sorted({*used.values(), *in_themes}))
    rules = "".join(f'.fa-{name}::before {{ content: "\\{code}"; }}\n' for name, code in used.items())
    (site / SHEET).write_text(BASE % font + rules)
    for page, text in texts.items():
        page.write_text(_relink(text))
    shutil.rmtree(site / FOLDER)
    logging.getLogger(__name__).info("icons: %d in a font of %d bytes", len(used) + len(in_themes), len(font))


def _spread(source: Path) -> str:
    """Font Awesome's rules with one selector each: `.a:before,.b:before{...}` names two."""
    rules = re.findall(r"([^{}]+)\{(content:[^}]+)\}", (source / "css/all.min.css").read_text())
    return "".join(f"{selector}{{{body}}}" for selectors, body in rules for selector in selectors.split(","))


def _subset(path: Path, codes: list[str]) -> str:
    from fontTools import subset, ttLib

    font = ttLib.TTFont(path)
    subsetter = subset.Subsetter(subset.Options(drop_tables=["GSUB", "GPOS"], notdef_outline=True))
    subsetter.populate(unicodes=[int(code, 16) for code in codes])
    subsetter.subset(font)
    font.flavor = "woff"
    out = io.BytesIO()
    font.save(out)
    return base64.b64encode(out.getvalue()).decode()


def _relink(text: str) -> str:
    sheet = r'<link href="([^"]*)' + FOLDER + r'/[^"]*all\.min\.css[^"]*" rel="stylesheet" />'
    text = re.sub(sheet, rf'<link href="\1{SHEET}" rel="stylesheet" />', text)
    return re.sub(r"\s*<(?:link|script)[^>]*" + FOLDER + r"[^>]*>(?:</script>)?", "", text)


def setup(app):
    """Sphinx entry point."""
    app.connect("build-finished", ship)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
