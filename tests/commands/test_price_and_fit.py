"""`nanoengine price` and `nanoengine fit` as a user types them."""

import json

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


@pytest.mark.parametrize(
    ("text", "says"),
    [
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
