"""`nanoengine live`: read the built book with live kernels, on this machine only."""

import argparse
from pathlib import Path

from nanoengine.extras import need

HELP = "serve the built book with live kernels on 127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--port", type=int, default=8888, help="default 8888")
    parser.add_argument("--root", type=Path, default=Path("."), help="the project's folder, with _build/html in it")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    need("jupyterlab", "live")
    from nanoengine.live.server import serve

    serve(args.root.resolve(), args.port)
    return 0
