import os
import re
import signal
import subprocess
import sys
import time

import pytest

from nanoengine import cli
from nanoengine.sweep import bandwidth as bandwidth_module
from nanoengine.sweep.store import read_samples

CELLS = "1x8,1x60,1x200,2x100,4x30,4x200"


@pytest.fixture
def tiny(monkeypatch, tiny_config):
    """`nanoengine sweep` on a model of a few thousand parameters, its bandwidth measured in two short reads."""
    from nanoengine import LLM
    from nanoengine.sweep import backends
    from nanoengine.sweep.backends.nanoengine import NanoengineBackend

    measure = bandwidth_module.measure_bandwidth
    monkeypatch.setattr(bandwidth_module, "last_level_cache_bytes", lambda: 2**20)
    monkeypatch.setattr(bandwidth_module, "measure_bandwidth", lambda *a: measure(*a, repeats=2, buffer_bytes=2**28))
    monkeypatch.setattr(
        backends, "load_backend", lambda name, **settings: NanoengineBackend(llm=LLM(tiny_config, num_kv_blocks=200))
    )


def sweep(out, *arguments):
    return cli.main(["sweep", "--out", str(out), "--samples", "2", "--visits", "2", *arguments])


def test_card_table_fits_and_file(tiny, tmp_path, capsys):
    out = tmp_path / "sweep.csv"
    assert sweep(out, "--grid", CELLS) == 0
    shown = capsys.readouterr().out
    card, _, report = shown.partition("one decode step")
    assert "weights read by a step" in card and "KV of one token" in card and "quartiles" in card
    assert re.search(r"│\s+4 │\s+200 │\s+4 │", report) or re.search(r"│\s+4 │\s+200 │\s+6 │", report)
    assert "The first cell" in report and "Read bandwidth was" in report
    assert "Two terms" in report and "Three terms" in report
    assert re.search(r"1/slope: ([\d.]+ GB/s, \d+% of the [\d.]+ GB/s measured here|no rate)", report)
    samples = read_samples(out)
    assert len(samples) == (2 * 6 + 1) * 2
    assert f"{len(samples)} samples are in {out}" in report


def test_the_weight_rate_never_comes_without_its_caveat(tiny, tmp_path, capsys):
    assert sweep(tmp_path / "sweep.csv", "--grid", CELLS) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "intercept" in report and "overhead" in report


def test_the_same_command_again_runs_nothing(tiny, tmp_path, capsys):
    out = tmp_path / "sweep.csv"
    sweep(out, "--grid", CELLS)
    before = out.read_bytes()
    capsys.readouterr()
    assert sweep(out, "--grid", CELLS) == 0
    assert "already holds 13 of 13 visits" in capsys.readouterr().out
    assert out.read_bytes() == before


def test_too_few_cells_for_a_fit_are_said_so(tiny, tmp_path, capsys):
    assert sweep(tmp_path / "sweep.csv", "--grid", "1x8,1x60") == 0
    assert "2 points cannot show how well" in capsys.readouterr().out


def test_cells_beyond_the_model_are_left_out_aloud(tiny, tmp_path, capsys):
    assert sweep(tmp_path / "sweep.csv", "--grid", "1x8,1x60,1x900") == 0
    assert "Scaled down: left out 1 x 900" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "1y2"], "neither a preset"),
        (["--grid", "1x8", "--visits", "0"], "at least 1 visit"),
        (["--grid", "1x900"], "No cell fits"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(tiny, tmp_path, capsys, arguments, message):
    assert sweep(tmp_path / "sweep.csv", *arguments) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1 and message in errors[0] and errors[0].startswith("nanoengine sweep: ")


def test_an_unknown_model_or_backend_is_one_sentence(tmp_path, capsys):
    assert sweep(tmp_path / "sweep.csv", "--model", "no/such/model") == 2
    assert "There is no model 'no/such/model'" in capsys.readouterr().err
    assert sweep(tmp_path / "sweep.csv", "--backend", "sglang") == 2
    assert "choose one of nanoengine, transformers" in capsys.readouterr().err


def test_a_file_of_something_else_is_refused_untouched(tiny, tmp_path, capsys):
    out = tmp_path / "notes.txt"
    out.write_text("my notes\n")
    assert sweep(out, "--grid", CELLS) == 2
    assert "choose another file" in capsys.readouterr().err
    assert out.read_text() == "my notes\n"


def test_ctrl_c_on_smollm2_keeps_whole_lines_and_the_next_run_goes_on(smollm2_path, tmp_path):
    """The real command in its own process, on the real model."""
    out = tmp_path / "sweep.csv"
    command = [sys.executable, "-m", "nanoengine.cli", "sweep", "--grid", "1x64,1x512,2x256,4x64", "--out", str(out)]
    process = subprocess.Popen([*command, "--visits", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out.exists() and out.read_bytes().count(b"\n") > 8):
        assert process.poll() is None and time.monotonic() < deadline, "the sweep must still run when it is stopped"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.strip().endswith("nanoengine sweep: stopped; what was written so far is kept")
    kept = read_samples(out)
    assert len(kept) > 5 and out.read_bytes().endswith(b"\n")

    visits = str(kept.visit.max() + 1)
    done = subprocess.run([*command, "--visits", visits], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    samples = read_samples(out)
    assert samples.iloc[: len(kept)].equals(kept)
    assert not samples.duplicated(["batch", "target_history", "visit", "sample"]).any()
    assert set(samples.model) == {"smollm2"}
    assert samples.weight_bytes.iloc[0] == pytest.approx(134_515_008 * 4, rel=1e-6)
    assert samples.kv_bytes_per_token.iloc[0] == 2 * 23_040
