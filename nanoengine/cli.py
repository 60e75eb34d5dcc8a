"""The `nanoengine` command: finds the subcommand, prints its errors in one sentence."""

import argparse
import importlib
import pkgutil
import sys

from nanoengine import __version__, commands
from nanoengine.errors import NanoengineError


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand; imports no torch, so that `--help` is instant.

    A subcommand is a module of nanoengine.commands with HELP, add_arguments(parser) and run(args) -> exit status.
    """
    parser = argparse.ArgumentParser(prog="nanoengine", description="What a token costs, priced and measured.")
    parser.add_argument("--version", action="version", version=f"nanoengine {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for _, name, _ in pkgutil.iter_modules(commands.__path__):
        module = importlib.import_module(f"{commands.__name__}.{name}")
        sub = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns its exit status (2 for bad input, 130 for Ctrl-C)."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except NanoengineError as error:
        print(f"nanoengine {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"nanoengine {args.command}: stopped; what was written so far is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
