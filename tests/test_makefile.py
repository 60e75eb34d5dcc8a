"""What `make` says on a machine that cannot do what it is asked."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on this machine")


def make(tmp_path, *arguments):
    """Run make with its .venv elsewhere, so that nothing is installed here."""
    command = ["make", "--no-print-directory", f"VENV={tmp_path / 'venv'}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def python_that_fails_at(tmp_path, words):
    """A stand-in for a Python whose one-line checks fail where they mention `words`."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\ncase "$2" in *{words}*) exit 1;; esac\nexit 0\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("words", "says"),
    [("version_info", "Python 3.11 or newer is needed"), ("ensurepip", "lacks its venv module")],
)
def test_a_python_that_will_not_do(tmp_path, words, says):
    run = make(tmp_path, f"PYTHON={python_that_fails_at(tmp_path, words)}", "install")
    assert run.returncode
    sentences = [line for line in run.stdout.splitlines() if line.startswith("make: ")]
    assert len(sentences) == 1 and says in sentences[0]
    assert not (tmp_path / "venv").exists()


def test_no_python_at_all(tmp_path):
    run = make(tmp_path, "PYTHON=/nowhere/python3", "install")
    assert run.returncode and "no /nowhere/python3 found" in run.stdout


def test_make_alone_lists_the_commands(tmp_path):
    run = make(tmp_path)
    assert run.returncode == 0
    for command in ("make live", "make book", "make test", "make bench", "make clean"):
        assert command in run.stdout
