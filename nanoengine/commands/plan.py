"""Plan a service: from model, card, request lengths and a promise to users to batch, context, cards and cost.

Batch and context come from prices, the sustained rate from a simulation with random arrivals. Floors, unless
--efficiency, --compute-efficiency and --overhead-ms say what a real engine loses.

examples:
  nanoengine plan llama-3.1-8b --device h100-sxm --prompt 1000 --output 200 --itl-ms 30 --ttft-ms 500
  nanoengine plan llama-3.1-70b --device h100-sxm --prompt 2000 --output 500 --itl-ms 50 --rate 20 --usd-per-hour 2.5
  nanoengine plan qwen2.5-7b --device l4 --prompt 500 --output 200 --frontier --csv
"""

HELP = "plan batch, context, cards and cost for a promise to users"

_PLAN = {
    "cards": ("cards", "d"),
    "batch": ("batch", "d"),
    "context_limit": ("context", ",d"),
    "requests_per_s": ("requests/s", ".2f"),
    "output_tokens_per_s": ("tokens/s", ",.0f"),
    "ttft_ms": ("TTFT ms", ".1f"),
    "itl_ms": ("ITL ms", ".2f"),
    "replicas": ("replicas", "g"),
    "total_cards": ("all cards", "g"),
    "usd_per_million_tokens": ("$ per million", ".3f"),
}
_FRONTIER = {
    "batch": ("batch", "d"),
    "step_ms": ("step ms", ".2f"),
    "itl_ms": ("ITL ms", ".2f"),
    "ttft_ms": ("TTFT ms", ".1f"),
    "output_tokens_per_s": ("tokens/s", ",.0f"),
    "output_tokens_per_s_per_user": ("per user", ".1f"),
    "usd_per_million_tokens": ("$ per million", ".3f"),
}


def add_arguments(parser):
    from nanoengine.costmodel.arguments import add_formats, add_losses, add_model_and_device

    add_model_and_device(parser)
    parser.add_argument("--prompt", type=int, required=True, metavar="TOKENS")
    parser.add_argument("--output", type=int, required=True, metavar="TOKENS")
    parser.add_argument("--ttft-ms", type=float, default=float("inf"), help="promise: time to the first token")
    parser.add_argument("--itl-ms", type=float, default=float("inf"), help="promise: time between tokens")
    parser.add_argument("--percent", type=float, default=95.0, help="for how many of them it holds (default: 95)")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2, 4, 8], help="to a replica (default: 1 2 4 8)")
    parser.add_argument("--rate", type=float, metavar="R", help="requests per second to serve in all")
    parser.add_argument("--usd-per-hour", type=float, metavar="USD", help="price of a card")
    parser.add_argument("--frontier", action="store_true", help="every batch size instead, always full, no promise")
    add_losses(parser)
    add_formats(parser)


def run(args):
    from nanoengine.costmodel.arguments import print_frame, print_machine_readable, read_device, read_model
    from nanoengine.costmodel.plan import Service, ServiceLevel, frontier, plan
    from nanoengine.errors import NanoengineError

    for name in ("rate", "usd_per_hour"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            raise NanoengineError(f"--{name.replace('_', '-')} must be above zero, not {getattr(args, name)}.")
    service = Service(
        read_model(args),
        read_device(args),
        args.prompt,
        args.output,
        efficiency=args.efficiency,
        compute_efficiency=args.compute_efficiency,
        overhead_ms=args.overhead_ms,
        **({"cards": args.cards[0]} if args.frontier else {}),
    )
    if args.frontier:
        table, titles, title = (
            frontier(service, args.usd_per_hour),
            _FRONTIER,
            f"Always full, on {service.machine.name}",
        )
    else:
        level = ServiceLevel(args.ttft_ms, args.itl_ms, args.percent)
        table, titles = plan(service, level, tuple(args.cards), args.rate, args.usd_per_hour), _PLAN
        title = f"Replicas that keep the promise for {level.percent:g} %, simulated with random arrivals"
    if print_machine_readable(table, args):
        return
    shown = {name: style for name, style in titles.items() if table[name].notna().any()}
    print(f"{service.model.name} in {service.model.weight_dtype} on {service.device.name}: {args.prompt:,} prompt and "
          f"{args.output:,} output tokens")  # fmt: skip
    print_frame(table, shown, title)
