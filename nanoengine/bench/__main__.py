"""Measure this machine and the engine on it: read bandwidth, linear layers, decode steps beside transformers.

Everything runs interleaved, in shuffled rounds, so that drift of the machine falls on all alike. Close other programs.
"""

import argparse
import importlib.util
import sys
import time

from nanoengine.bench.linears import linear_table
from nanoengine.bench.steps import measure_steps, rate_table, step_table
from nanoengine.errors import NanoengineError
from nanoengine.sweep.backends import load_backend
from nanoengine.sweep.bandwidth import measure_bandwidth
from nanoengine.sweep.machine import this_machine

DTYPES = ("float32", "bfloat16")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nanoengine.bench", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="packaged name, .gguf file or Hugging Face folder")
    parser.add_argument("--threads", type=int, help="CPU threads (default: what torch chooses)")
    parser.add_argument("--rounds", type=int, default=3, help="visits of each cell (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        run(args.model, args.threads, args.rounds)
    except NanoengineError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def run(model: str, threads: int | None, rounds: int) -> None:
    """Print all tables; see the module's docstring."""
    from rich.console import Console

    console = Console()
    begin = time.perf_counter()
    machine = this_machine()
    device = "cuda" if machine.gpu else "cpu"
    before = measure_bandwidth(device, threads)
    console.print(f"{machine.label(device)}, {machine.versions}", highlight=False)
    console.print(f"read bandwidth: {before}\n", highlight=False)

    backends = {}
    for dtype in DTYPES:
        backends["nanoengine", dtype] = load_backend("nanoengine", model=model, dtype=dtype, threads=threads)
    if importlib.util.find_spec("transformers") is None:
        console.print("transformers is not installed, so it is not measured; run: pip install transformers\n")
    else:
        for dtype in DTYPES:
            backends["transformers", dtype] = load_backend("transformers", model=model, dtype=dtype, threads=threads)
    if device == "cpu":
        console.print(linear_table(model, DTYPES, rounds))
    samples = measure_steps(backends, rounds)
    for backend in backends.values():
        backend.close()
    after = measure_bandwidth(device, threads)
    console.print(step_table(samples))
    console.print(rate_table(samples, before, after))
    console.print(
        f"read bandwidth after all this: {after}\n"
        "A weight rate is a lower bound: the fixed cost of a step holds its overhead too, not only its weights.\n"
        f"Took {time.perf_counter() - begin:.0f} s.",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
