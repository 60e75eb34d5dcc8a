"""Price a decode step of a model on a device: weights, KV, arithmetic, and what binds.

Prices are floors: bytes over peak bandwidth. --efficiency and --overhead-ms bring them to a real engine.
--accuracy shows how far from the floor the stored public measurements are.

examples:
  nanoengine price qwen3-0.6b --device rtx-4070
  nanoengine price qwen2.5-7b --device gb10 --batch 1 4 16 --history 4096 16384 --json
  nanoengine price path/to/config.json --bandwidth 3350 --kv-dtype float8
  nanoengine price llama-3.1-70b --device h100-sxm --weight-dtype int4:128,head=bf16
  nanoengine price --accuracy
  nanoengine price --list
"""

HELP = "price a decode step of a model on a device"

_COLUMNS = {
    "batch": ("batch", "g"),
    "history": ("history", "g"),
    "kv_gb": ("KV GB", ".3f"),
    "weight_ms": ("weights ms", ".3f"),
    "kv_ms": ("KV ms", ".3f"),
    "compute_ms": ("compute ms", ".3f"),
    "step_ms": ("step ms", ".3f"),
    "per_token_ms": ("ms per token", ".3f"),
    "binds": ("binds", ""),
}
_ACCURACY = {
    "series": ("series", ""),
    "engine": ("engine", ""),
    "device": ("device", ""),
    "n": ("rows", "d"),
    "error": ("median error", ".1%"),
    "efficiency": ("efficiency", ".2f"),
    "error_with_efficiency": ("with it", ".1%"),
    "worst_with_efficiency": ("worst", ".1%"),
}
_END_TO_END = {
    "framework": ("framework", ""),
    "kv_pool_gb": ("KV pool GB", ".1f"),
    "measured_s": ("measured s", ".2f"),
    "predicted_s": ("predicted s", ".2f"),
    "ratio": ("ratio", ".3f"),
}


def add_arguments(parser):
    from nanoengine.costmodel.arguments import add_formats, add_model_and_device

    add_model_and_device(parser, model_nargs="?")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64], help="default: 1 8 64")
    parser.add_argument("--history", type=int, nargs="+", default=[1024, 8192], help="tokens (default: 1024 8192)")
    parser.add_argument("--overhead-ms", type=float, default=0.0)
    parser.add_argument("--efficiency", type=float, default=1.0, help="share of the bandwidth reached (default: 1)")
    add_formats(parser)
    parser.add_argument("--list", action="store_true", help="list the models and devices that have a name")
    parser.add_argument("--accuracy", action="store_true", help="predicted against every stored measurement")


def run(args):
    from itertools import product

    from rich.console import Console

    from nanoengine.costmodel.arguments import print_frame, print_machine_readable, read_device, read_model
    from nanoengine.costmodel.decode import price_step
    from nanoengine.costmodel.model import model_names
    from nanoengine.datasets import load_table
    from nanoengine.errors import NanoengineError

    if args.list:
        print("models: ", *model_names())
        print("devices:", *load_table("devices").device)
        return
    if args.accuracy:
        _print_accuracy(args)
        return
    if args.model is None:
        raise NanoengineError("Name a model, or use --list to see those that have a name.")
    device, model = read_device(args), read_model(args)
    batch, history = zip(*product(args.batch, args.history), strict=True)
    prices = price_step(model, device, batch, history, args.overhead_ms, args.efficiency)
    if print_machine_readable(prices, args):
        return
    per_batch = ", growing with the batch" if model.experts else ""
    windows = ", less where a layer has a window" if model.windows else ""
    Console().print(
        f"{model.name}: W = {model.weight_bytes / 1e9:.3f} GB in {model.weight_dtype}{per_batch}, "
        f"k = {model.kv_bytes_per_token:,} B per token in {model.kv_dtype}{windows}"
    )
    Console().print(f"{device.name}: {device.bandwidth_gb_per_s:g} GB/s ({device.source})")
    print_frame(prices.assign(kv_gb=prices.kv_bytes / 1e9), _COLUMNS)


def _print_accuracy(args):
    from nanoengine.costmodel.accuracy import accuracy_table, end_to_end, predictions
    from nanoengine.costmodel.arguments import print_frame, print_machine_readable

    rows = predictions()
    if print_machine_readable(rows, args):
        return
    print_frame(accuracy_table(rows), _ACCURACY, "Floors against stored decode measurements; then one factor for each")
    print_frame(end_to_end(), _END_TO_END, "The headline benchmark simulated, no fitted parameter")
