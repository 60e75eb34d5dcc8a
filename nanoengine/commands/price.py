"""Price a decode step of a model on a device: weights, KV, arithmetic, and what binds.

Prices are floors: bytes over peak bandwidth. --efficiency and --overhead-ms bring them to a real engine.

examples:
  nanoengine price qwen3-0.6b --device rtx-4070
  nanoengine price qwen2.5-7b --device gb10 --batch 1 4 16 --history 4096 16384 --json
  nanoengine price path/to/config.json --bandwidth 3350 --kv-dtype float8
  nanoengine price --list
"""

HELP = "price a decode step of a model on a device"

_COLUMNS = {
    "batch": "batch",
    "history": "history",
    "kv_bytes": "KV GB",
    "weight_ms": "weights ms",
    "kv_ms": "KV ms",
    "compute_ms": "compute ms",
    "step_ms": "step ms",
    "per_token_ms": "ms per token",
    "binds": "binds",
}


def add_arguments(parser):
    parser.add_argument("model", nargs="?", help="name in data/models/, config.json, or a folder that holds one")
    parser.add_argument("--device", help="name in data/devices.csv")
    parser.add_argument("--bandwidth", type=float, metavar="GB/s", help="price on this memory bandwidth instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64], help="default: 1 8 64")
    parser.add_argument("--history", type=int, nargs="+", default=[1024, 8192], help="tokens (default: 1024 8192)")
    parser.add_argument("--overhead-ms", type=float, default=0.0)
    parser.add_argument("--efficiency", type=float, default=1.0, help="share of the bandwidth reached (default: 1)")
    parser.add_argument("--weight-dtype", help="float32, bfloat16, float16, float8 or int8 (default: the model's)")
    parser.add_argument("--kv-dtype", help="default: that of the weights")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--csv", action="store_true")
    parser.add_argument("--list", action="store_true", help="list the models and devices that have a name")


def run(args):
    from itertools import product

    from rich.console import Console

    from nanoengine.costmodel.decode import price_step
    from nanoengine.costmodel.device import DeviceSpec
    from nanoengine.costmodel.model import ModelSpec, model_names
    from nanoengine.datasets import load_table
    from nanoengine.errors import NanoengineError

    if args.list:
        print("models: ", *model_names())
        print("devices:", *load_table("devices").device)
        return
    if args.model is None:
        raise NanoengineError("Name a model, or use --list to see those that have a name.")
    if (args.device is None) == (args.bandwidth is None):
        raise NanoengineError("Give either --device or --bandwidth; --list shows the devices.")
    model = ModelSpec.from_config(args.model, args.weight_dtype, args.kv_dtype)
    if args.device:
        device = DeviceSpec.named(args.device)
    else:
        device = DeviceSpec(f"{args.bandwidth:g} GB/s", args.bandwidth, source="the command line")
    batch, history = zip(*product(args.batch, args.history), strict=True)
    prices = price_step(model, device, batch, history, args.overhead_ms, args.efficiency)
    if args.json:
        print(prices.to_json(orient="records", lines=True), end="")
    elif args.csv:
        print(prices.to_csv(index=False), end="")
    else:
        console = Console()
        console.print(
            f"{model.name}: W = {model.weight_bytes / 1e9:.3f} GB in {model.weight_dtype}, "
            f"k = {model.kv_bytes_per_token:,} B per token in {model.kv_dtype}"
        )
        console.print(f"{device.name}: {device.bandwidth_gb_per_s:g} GB/s ({device.source})")
        console.print(_table(prices))


def _table(prices):
    from rich.table import Table

    table = Table()
    for title in _COLUMNS.values():
        table.add_column(title, justify="right", min_width=7 if title == "binds" else None)
    for row in prices[list(_COLUMNS)].assign(kv_bytes=prices.kv_bytes / 1e9).itertuples(index=False):
        batch, history, *figures, binds = row
        table.add_row(f"{batch:g}", f"{history:g}", *(f"{x:.3f}" if x == x else "unknown" for x in figures), binds)
    return table
