"""`nanoengine plan` as a user types it."""

import json

import pytest

from nanoengine.cli import main

CHAT = ("llama-3.1-8b", "--device", "h100-sxm", "--prompt", 500, "--output", 50)


def run(capsys, *arguments):
    status = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_plan_as_text_and_json(capsys):
    promise = ("--itl-ms", 8, "--cards", 1, "--rate", 100, "--usd-per-hour", 2)
    status, out, _ = run(capsys, *CHAT, *promise)
    assert status == 0 and "keep the promise for 95 %" in out and "$ per million" in out
    row = json.loads(run(capsys, *CHAT, *promise, "--json")[1])
    assert row["itl_ms"] <= 8 and row["replicas"] * row["requests_per_s"] >= 100


def test_no_price_no_column(capsys):
    out = run(capsys, *CHAT, "--itl-ms", 6, "--cards", 1)[1]
    assert "$" not in out and "replicas" not in out and "requests/s" in out


def test_a_frontier(capsys):
    lines = run(capsys, *CHAT, "--frontier", "--csv")[1].splitlines()
    assert lines[0].startswith("batch,step_ms") and lines[1].startswith("1,")
    assert "Always full" in run(capsys, *CHAT, "--frontier")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*CHAT, "--itl-ms", 0.01], "No number of cards"),
        ([*CHAT, "--itl-ms", -1], "times above zero"),
        ([*CHAT, "--rate", 0], "--rate must be above zero"),
        (["llama-3.1-8b", "--device", "gb10", "--prompt", 10, "--output", 10], "not published"),
        (["llama-3.1-8b", "--device", "h100-sxm", "--prompt", 10**6, "--output", 10], "context"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, says):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and says in err and err.count("\n") == 1
