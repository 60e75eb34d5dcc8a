"""Simulate serving a workload with nanoengine's own scheduler, each step priced on paper: no GPU needed.

With no efficiency or overhead given the result is a floor for this schedule: nothing is fitted.

examples:
  nanoengine simulate --headline
  nanoengine simulate llama-3.1-8b --device h100-sxm --requests 500 --rate 20 --prompt 200 2000 --output 50 400
  nanoengine simulate qwen3-0.6b --device rtx-4070-laptop --trace mine.csv --kv-pool-gb 4 --efficiency 0.8 --json
  nanoengine simulate qwen2.5-7b --device gb10 --tflop-per-s 62 --requests 100 --rate 2 --csv > requests.csv
"""

HELP = "simulate serving a workload, without a GPU"

_CAUSES = {"cause": ("cause", ""), "seconds": ("seconds", ".2f"), "share": ("share", ".1%")}
_SENSITIVITY = {
    "varied": ("varied", ""),
    "value": ("value", ""),
    "total_s": ("total s", ".2f"),
    "change": ("change", "+.1%"),
}


def add_arguments(parser):
    from nanoengine.costmodel.arguments import add_losses, add_model_and_device

    add_model_and_device(parser, model_nargs="?")
    workload = parser.add_argument_group("workload")
    workload.add_argument("--headline", action="store_true", help="nano-vLLM's published benchmark, model and card too")
    workload.add_argument("--trace", metavar="CSV", help="arrival_s, prompt_tokens, output_tokens of each request")
    workload.add_argument("--requests", type=int, default=200, help="how many to draw (default: 200)")
    workload.add_argument("--rate", type=float, metavar="R", help="requests per second (default: all at once)")
    workload.add_argument("--prompt", type=int, nargs="+", default=[100, 1024], help="tokens, or a range of them")
    workload.add_argument("--output", type=int, nargs="+", default=[100, 1024], help="tokens, or a range of them")
    workload.add_argument("--seed", type=int, default=0)
    engine = parser.add_argument_group("engine")
    engine.add_argument("--kv-pool-gb", type=float, metavar="GB", help="default: what the weights leave of the memory")
    engine.add_argument("--block-size", type=int, help="default: 16 tokens")
    engine.add_argument("--max-num-seqs", type=int, help="default: 256")
    engine.add_argument("--max-num-batched-tokens", type=int, help="default: 8192")
    add_losses(parser)
    parser.add_argument("--json", action="store_true", help="summary and causes as one JSON object")
    parser.add_argument("--csv", action="store_true", help="one row per request")


def run(args):
    import json

    simulation, what = _headline(args) if args.headline else _simulate(args)
    if args.csv:
        print(simulation.requests.to_csv(), end="")
        return
    causes = simulation.causes()
    if args.json:
        seconds = dict(zip(causes.cause, causes.seconds, strict=True))
        print(json.dumps({**simulation.summary(), "seconds_by_cause": seconds}))
        return
    _print(simulation, causes, what, args)


def _simulate(args):
    from nanoengine.costmodel.arguments import read_device, read_model
    from nanoengine.costmodel.simulate import EngineSettings, simulate
    from nanoengine.costmodel.workload import poisson_workload, read_workload
    from nanoengine.errors import NanoengineError

    if args.model is None:
        raise NanoengineError("Name a model and a device, or use --headline.")
    device, model = read_device(args), read_model(args)
    if args.trace:
        workload = read_workload(args.trace)
    else:
        rate = float("inf") if args.rate is None else args.rate
        lengths = [_length(values) for values in (args.prompt, args.output)]
        workload = poisson_workload(args.requests, rate, *lengths, seed=args.seed)
    given = {
        name: getattr(args, name)
        for name in ("kv_pool_gb", "block_size", "max_num_seqs", "max_num_batched_tokens")
        if getattr(args, name) is not None
    }
    loss = (args.efficiency, args.compute_efficiency, args.overhead_ms)
    what = f"{model.name} in {model.weight_dtype} on {device.name}"
    return simulate(workload, model, device, EngineSettings(**given), *loss), what


def _headline(args):
    from nanoengine.costmodel.headline import simulate_headline

    given = {name: getattr(args, name) for name in ("kv_pool_gb", "block_size") if getattr(args, name) is not None}
    given |= {name: getattr(args, name) for name in ("efficiency", "compute_efficiency", "overhead_ms")}
    return simulate_headline(**given), "nano-vLLM's benchmark: Qwen3-0.6B on an RTX 4070 Laptop"


def _length(values: list[int]):
    from nanoengine.errors import NanoengineError

    if len(values) > 2:
        raise NanoengineError("A length is one number of tokens, or two for a range.")
    return values[0] if len(values) == 1 else tuple(values)


def _print(simulation, causes, what: str, args):
    from nanoengine.costmodel.arguments import print_frame

    summary = simulation.summary()
    print(f"{what}: {summary['requests']} requests, {summary['output_tokens']:,} output tokens")
    print(
        f"  {summary['total_s']:.2f} s, {summary['output_tokens_per_s']:,.1f} output tokens per second, "
        f"{summary['steps']:,} steps, mean batch {summary['mean_batch']:.1f}"
    )
    print(f"  KV pool full to {summary['peak_kv_share']:.0%} at most, {summary['preemptions']} preemptions")
    for name, title in (("ttft", "time to first token"), ("itl", "time between tokens")):
        if f"{name}_p50_ms" in summary:
            p50, p95, p99 = (summary[f"{name}_p{percent}_ms"] for percent in (50, 95, 99))
            print(f"  {title}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms")
    print_frame(causes, _CAUSES, "Where the seconds went")
    if args.headline:
        from nanoengine.costmodel.headline import headline_sensitivity

        moved = headline_sensitivity()
        moved["value"] = ["" if value != value else f"{value:g}" for value in moved.value]
        print_frame(moved, _SENSITIVITY, "What moves it, from 4 GB and nothing lost")
