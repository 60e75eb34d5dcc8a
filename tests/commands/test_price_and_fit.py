"""`nanoengine price` and `nanoengine fit` as a user types them."""

import json
import subprocess
import sys

import pytest

from nanoengine.cli import main


def run(capsys, *arguments):
    status = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_price_as_a_table_json_and_csv(capsys):
    arguments = ("price", "qwen3-0.6b", "--device", "rtx-4070", "--batch", 1, 8, "--history", 768)
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and "114,688 B per token" in out and "weights" in out
    rows = [json.loads(line) for line in run(capsys, *arguments, "--json")[1].splitlines()]
    assert [row["batch"] for row in rows] == [1, 8] and rows[0]["kv_bytes"] == 768 * 114_688
    assert run(capsys, *arguments, "--csv")[1].splitlines()[0].startswith("batch,history,weight_bytes")


def test_price_says_what_moves_with_batch_and_history(capsys):
    out = run(capsys, "price", "gpt-oss-20b", "--device", "h100-sxm", "--batch", 1, "--history", 1000)[1]
    assert "growing with the batch" in out and "less where a layer has a window" in out


def test_price_never_cuts_a_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = run(capsys, "price", "llama-3.1-70b", "--device", "h100-sxm", "--batch", 64, "--history", 100_000)[1]
    assert "…" not in out and "100000" in out


def test_price_on_a_device_changed_on_the_command_line(capsys):
    arguments = ("price", "qwen3-0.6b", "--device", "gb10", "--batch", 1, "--history", 1000)
    changes = ("--bandwidth", 236.5, "--tflop-per-s", 60)
    named = json.loads(run(capsys, *arguments, "--json")[1])
    changed = json.loads(run(capsys, *arguments, *changes, "--json")[1])
    assert changed["weight_ms"] / named["weight_ms"] == pytest.approx(273 / 236.5)
    assert named["compute_ms"] is None and changed["compute_ms"] > 0
    assert "changed on the command" in run(capsys, *arguments, *changes)[1].replace("\n", " ")


def test_accuracy_as_a_table_and_as_rows(capsys):
    status, out, _ = run(capsys, "price", "--accuracy")
    assert status == 0 and "median error" in out and "dgx-spark" in out and "93.41" in out
    rows = [json.loads(line) for line in run(capsys, "price", "--accuracy", "--json")[1].splitlines()]
    assert len(rows) > 100 and {"measured_ms", "predicted_ms", "ratio"} <= set(rows[0])


def test_price_lists_names(capsys):
    out = run(capsys, "price", "--list")[1]
    assert "qwen3-0.6b" in out and "gb10" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["price"], "Name a model"),
        (["price", "qwen3-0.6b"], "either --device or --bandwidth"),
        (["price", "qwen3-0.6b", "--device", "abacus"], "There is no device 'abacus'"),
        (["price", "qwen9", "--device", "gb10"], "There is no model 'qwen9'"),
        (["price", "qwen3-0.6b", "--device", "gb10", "--batch", "0"], "batch must be positive"),
        (["price", "qwen3-0.6b", "--device", "gb10", "--weight-dtype", "int3"], "the dtype 'int3'"),
        (["fit", "nowhere.csv"], "There is no file nowhere.csv"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, says):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and says in err and err.count("\n") == 1


GOOD = "batch,history,step_ms\n1,1000,10\n1,2000,11.1\n4,1000,13.2\n4,2000,17\n8,2000,25\n"


def test_fit_prints_both_fits_and_gives_json(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(GOOD)
    status, out, _ = run(capsys, "fit", path, "--kv-bytes-per-token", 100_000, "--weight-bytes", 1e9)
    assert status == 0 and "two terms" in out and "three terms" in out and "lower bound" in out
    record = json.loads(run(capsys, "fit", path, "--kv-bytes-per-token", 100_000, "--json")[1])
    assert record["two terms"]["n"] == 5 and record["three terms"]["r_squared"] > 0.9


def test_fit_names_rows_above_the_data_sheet(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(GOOD + "8,4000,2\n")
    arguments = ("fit", path, "--kv-bytes-per-token", 100_000, "--device", "gb10")
    out = run(capsys, *arguments)[1]
    assert "above the data sheet of gb10: 1 rows (kept" in out and "lines 7" in out
    record = json.loads(run(capsys, *arguments, "--drop-impossible", "--json")[1])
    assert record["two terms"]["n"] == 5 and record["impossible_lines"] == [7]


def test_fit_says_what_is_not_settled_and_gives_its_points(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    header, *rows = GOOD.splitlines()
    path.write_text(
        "\n".join([f"order,{header}", *(f"{at},{row}" for at, row in zip([3, 0, 2, 4, 1], rows, strict=True))])
    )
    arguments = ("fit", path, "--kv-bytes-per-token", 100_000)
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and "what these data do not settle" in out and "batch 4:" in out and "without one point" in out
    lines = run(capsys, *arguments, "--csv")[1].splitlines()
    assert "cooks_distance" in lines[0] and len(lines) == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kv_bytes,step_ms\n0.2,1\n0.9,2\n3.5,3\n", "kv_bytes counts bytes"),
        ("", "not a readable CSV"),
        ("kv_bytes,time\n1,2\n", "no column step_ms"),
        ("kv_bytes,step_ms\n1,2\n3,fast\n", "line 3: step_ms is 'fast'"),
        ("kv_bytes,step_ms\n1,2\n,3\n5,6\n", "line 3: kv_bytes is"),
        ("kv_bytes,kv_gib,step_ms\n1,1,2\n", "both kv_bytes and kv_gib"),
        ("batch,history,step_ms\n1,1,2\n", "neither kv_bytes nor kv_gib"),
        ("kv_bytes,step_ms\n1,2\n2,3\n", "2 points"),
    ],
)
def test_bad_files_are_one_sentence(capsys, tmp_path, text, says):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    status, _, err = run(capsys, "fit", path)
    assert status == 2 and says in err and err.count("\n") == 1


def test_help_waits_for_no_pandas():
    code = "import sys; from nanoengine.cli import build_parser; build_parser(); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
