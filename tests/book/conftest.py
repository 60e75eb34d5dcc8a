"""The built book, and a browser to read it with."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import chromium

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def built_book():
    """The folder of the built site; builds it when its sources have changed."""
    run = subprocess.run([sys.executable, "book/build.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return HTML


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser
