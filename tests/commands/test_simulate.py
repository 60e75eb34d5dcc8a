"""`nanoengine simulate` as a user types it."""

import json

import pytest

from nanoengine.cli import main

SMALL = ("qwen3-0.6b", "--device", "rtx-4070", "--requests", 5, "--rate", 10, "--prompt", 20, 50, "--output", 10)


def run(capsys, *arguments):
    status = main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_headline(capsys):
    status, out, _ = run(capsys, "--headline", "--kv-pool-gb", 5)
    assert status == 0 and "133,966 output tokens" in out and "KV read" in out and "published: nano-vllm" in out


def test_a_drawn_workload_as_text_json_and_csv(capsys):
    status, out, _ = run(capsys, *SMALL)
    assert status == 0 and "5 requests, 50 output tokens" in out and "idle" in out
    record = json.loads(run(capsys, *SMALL, "--json")[1])
    assert record["requests"] == 5
    assert sum(record["seconds_by_cause"].values()) == pytest.approx(record["total_s"])
    lines = run(capsys, *SMALL, "--csv")[1].splitlines()
    assert lines[0].startswith("request,arrival_s,prompt_tokens") and len(lines) == 6


def test_a_trace_and_a_device_of_unknown_rate(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,50,5\n")
    status, out, _ = run(capsys, "qwen3-0.6b", "--device", "gb10", "--tflop-per-s", 60, "--trace", path)
    assert status == 0 and "2 requests, 15 output tokens" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Name a model and a device"),
        (["qwen3-0.6b"], "either --device or --bandwidth"),
        (["qwen3-0.6b", "--device", "gb10"], "not published"),
        (["qwen3-0.6b", "--bandwidth", 100, "--tflop-per-s", 10], "memory size of 100 GB/s is not known"),
        (["qwen3-0.6b", "--device", "rtx-4070", "--tflop-per-s", -1], "must be positive"),
        (["qwen3-0.6b", "--device", "rtx-4070", "--prompt", 1, 2, 3], "two for a range"),
        (["qwen3-0.6b", "--device", "rtx-4070", "--rate", 0], "rate above zero"),
        (["qwen3-0.6b", "--device", "rtx-4070", "--trace", "nowhere.csv"], "There is no file"),
        (["qwen3-0.6b", "--device", "rtx-4070", "--max-num-seqs", 9000], "max_num_batched_tokens"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, says):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and says in err and err.count("\n") == 1
