"""Arguments that the subcommands price, simulate and plan share: a model, a device, and what an engine loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoengine.errors import NanoengineError

if TYPE_CHECKING:  # every subcommand's parser is built for --help, which must not wait for pandas
    from nanoengine.costmodel.device import DeviceSpec
    from nanoengine.costmodel.model import ModelSpec


def add_model_and_device(parser, model_nargs=None) -> None:
    parser.add_argument(
        "model", nargs=model_nargs, help="name in data/models/, config.json, or a folder that holds one"
    )
    parser.add_argument("--device", help="name in data/devices.csv (see price --list)")
    parser.add_argument("--bandwidth", type=float, metavar="GB/s", help="memory bandwidth, instead of the device's")
    parser.add_argument("--tflop-per-s", type=float, metavar="T", help="dense BF16 rate, instead of the device's")
    parser.add_argument("--memory-gb", type=float, metavar="GB", help="memory size, instead of the device's")
    parser.add_argument(
        "--weight-dtype", help="such as bf16, fp8, int4:128 or int4:128,head=bf16 (default: the model's)"
    )
    parser.add_argument("--kv-dtype", help="default: that of the weights, or 16 bit under narrower weights")


def add_losses(parser) -> None:
    parser.add_argument("--efficiency", type=float, default=1.0, help="share of the bandwidth reached (default: 1)")
    parser.add_argument("--compute-efficiency", type=float, default=1.0, help="share of the rate reached (default: 1)")
    parser.add_argument("--overhead-ms", type=float, default=0.0, help="added to each step (default: 0)")


def read_model(args) -> ModelSpec:
    from nanoengine.costmodel.model import ModelSpec

    return ModelSpec.from_config(args.model, args.weight_dtype, args.kv_dtype)


def read_device(args) -> DeviceSpec:
    """The named device with what the arguments say otherwise, or one that only they describe."""
    from nanoengine.costmodel.device import DeviceSpec

    given = {
        "bandwidth_gb_per_s": args.bandwidth,
        "bf16_tflop_per_s": args.tflop_per_s,
        "memory_gb": args.memory_gb,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if not value > 0:
            raise NanoengineError(f"{name} must be positive, not {value}.")
    if args.device is None:
        if args.bandwidth is None:
            raise NanoengineError("Give either --device or --bandwidth; price --list shows the devices.")
        return DeviceSpec(f"{args.bandwidth:g} GB/s", source="the command line", **given)
    device = DeviceSpec.named(args.device)
    if given:
        fields = {"memory_gb": device.memory_gb, "bf16_tflop_per_s": device.bf16_tflop_per_s}
        fields |= {"bandwidth_gb_per_s": device.bandwidth_gb_per_s} | given
        return DeviceSpec(device.name, source=f"{device.source}; changed on the command line", **fields)
    return device


def print_frame(frame, titles: dict[str, tuple[str, str]], title: str | None = None) -> None:
    """A rich table of the columns in `titles`, each with its title and format; NaN prints as "unknown".

    As wide as its figures need: a table that is cut off, or wraps, must not change a number.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name, _ in titles.values():
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame[list(titles)].itertuples(index=False):
        cells = []
        for value, (_, style) in zip(row, titles.values(), strict=True):
            missing = value is None or value != value
            cells.append("unknown" if missing else format(value, style) if style else str(value))
        table.add_row(*cells)
    console = Console()
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    Console(width=max(console.width, needed)).print(table)


def print_machine_readable(frame, args) -> bool:
    """Print `frame` as JSON lines or CSV where --json or --csv ask for it; whether one did."""
    if args.json:
        print(frame.to_json(orient="records", lines=True), end="")
    elif args.csv:
        print(frame.to_csv(index=False), end="")
    return args.json or args.csv


def add_formats(parser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--csv", action="store_true")
