"""Requests for a simulation: when they arrive, how long their prompts and answers are."""

import random
from pathlib import Path

import numpy as np
import pandas as pd

from nanoengine.errors import NanoengineError

COLUMNS = ["arrival_s", "prompt_tokens", "output_tokens"]


def headline_workload() -> pd.DataFrame:
    """The 256 requests of nano-vLLM's published benchmark, all there at once (its bench.py, commit bb823b3).

    Python's random, seeded with 0: for each prompt a length from 100 to 1,024 and then that many token ids, which
    matter here only because they advance the generator; after all prompts, 256 output lengths from 100 to 1,024.
    """
    rng = random.Random(0)
    prompts = []
    for _ in range(256):
        prompts.append(rng.randint(100, 1024))
        for _ in range(prompts[-1]):
            rng.randint(0, 10000)
    outputs = [rng.randint(100, 1024) for _ in range(256)]
    return pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": prompts, "output_tokens": outputs})


def poisson_workload(
    requests: int,
    requests_per_s: float,
    prompt_tokens: int | tuple[int, int],
    output_tokens: int | tuple[int, int],
    seed: int = 0,
) -> pd.DataFrame:
    """Requests that arrive independently at a mean rate; a length is a number, or a range drawn from uniformly.

    An infinite rate lets all arrive at once. Raises NanoengineError for numbers that are not positive.
    """
    if requests < 1 or not requests_per_s > 0:
        raise NanoengineError("A workload needs at least one request and a rate above zero.")
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / requests_per_s, requests) if np.isfinite(requests_per_s) else np.zeros(requests)
    lengths = {}
    for name, given in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)):
        low, high = (given, given) if np.isscalar(given) else given
        if not 1 <= low <= high:
            raise NanoengineError(f"{name} must be at least 1, and a range must not fall; it is {given}.")
        lengths[name] = rng.integers(low, high + 1, requests)
    return pd.DataFrame({"arrival_s": np.cumsum(gaps), **lengths})


def read_workload(path: str | Path) -> pd.DataFrame:
    """A trace CSV with the columns arrival_s, prompt_tokens, output_tokens; others are ignored.

    Raises NanoengineError naming the line and column of what is missing or impossible.
    """
    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise NanoengineError(f"There is no file {path}.") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise NanoengineError(f"{path} is not a readable CSV ({str(error).strip()}).") from None
    if missing := [column for column in COLUMNS if column not in frame]:
        raise NanoengineError(f"{path} needs the columns {', '.join(COLUMNS)}; {', '.join(missing)} is missing.")
    return checked_workload(frame, f"{path}, line", first=2)


def checked_workload(frame: pd.DataFrame, where: str = "Request", first: int = 1) -> pd.DataFrame:
    """The three columns as numbers, sorted by arrival; raises NanoengineError naming the row of a bad value."""
    if frame.empty:
        raise NanoengineError("The workload has no requests.")
    checked = {}
    for column in COLUMNS:
        values = pd.to_numeric(frame[column], errors="coerce")
        bad = ~np.isfinite(values) | (values < (0 if column == "arrival_s" else 1))
        if column != "arrival_s":
            bad |= values % 1 != 0
        if bad.any():
            row = int(bad.to_numpy().argmax())
            meaning = "seconds from 0 on" if column == "arrival_s" else "a whole number of tokens, at least 1"
            given = frame[column].tolist()[row]
            raise NanoengineError(f"{where} {row + first}: {column} is {given!r}, but must be {meaning}.")
        checked[column] = values.to_numpy(float if column == "arrival_s" else int)
    return pd.DataFrame(checked).sort_values("arrival_s", kind="stable", ignore_index=True)
