"""Building the site: what it takes, and what it says when that is missing."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def vendor():
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "book/_ext/vendor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_second_build_has_nothing_to_do(built_book):
    run = subprocess.run([sys.executable, "book/build.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "the book in _build/html is up to date\n"


def test_a_package_that_is_not_the_locked_one_is_refused(vendor, tmp_path, monkeypatch):
    lock = json.loads((ROOT / "book/vendor.lock.json").read_text())
    lock = {"requirejs": lock["requirejs"] | {"integrity": "sha512-AAAA"}}
    (tmp_path / "lock.json").write_text(json.dumps(lock))
    monkeypatch.setattr(vendor, "LOCK", tmp_path / "lock.json")
    with pytest.raises(vendor.VendorError, match="is not the package that"):
        vendor.fetch(tmp_path / "npm")
    assert not list((tmp_path / "npm").iterdir()), "nothing of it is kept"


def test_a_package_that_cannot_be_fetched_says_so(vendor, tmp_path, monkeypatch):
    (tmp_path / "lock.json").write_text('{"requirejs": {"version": "0.0.0-none", "integrity": "sha512-AAAA"}}')
    monkeypatch.setattr(vendor, "LOCK", tmp_path / "lock.json")
    with pytest.raises(vendor.VendorError, match="could not fetch requirejs"):
        vendor.fetch(tmp_path / "npm")


def test_a_machine_without_npm_is_told_what_to_do(vendor, monkeypatch):
    monkeypatch.setattr(vendor.shutil, "which", lambda *_, **__: None)
    with pytest.raises(vendor.VendorError, match="npm is missing: install Node"):
        vendor.npm_command()


def test_a_patch_that_hits_nothing_stops_the_build(vendor):
    with pytest.raises(vendor.VendorError, match="thebe has changed"):
        vendor.replace("text", "not there", "", "thebe")


def test_no_page_or_script_names_a_content_delivery_network(built_book):
    hosts = ("cdn.jsdelivr", "unpkg.com", "cdnjs.cloudflare", "fonts.googleapis", "mybinder.org/v2")
    for page in built_book.rglob("*.html"):
        assert not [host for host in hosts if host in page.read_text()], page
    thebe = "".join(path.read_text() for path in (built_book / "_static/vendor/thebe").glob("*.js"))
    assert not [host for host in hosts[:3] if host in thebe]
