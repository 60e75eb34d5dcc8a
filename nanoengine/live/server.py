"""Starts Jupyter's own server with the book on it, on this machine only."""

import secrets
import socket
from pathlib import Path

from nanoengine.errors import NanoengineError
from nanoengine.live.extension import BOOK_FOLDER

HOST = "127.0.0.1"
IDLE_KERNEL_S = 1200  # kernels outlive the page that started them


def check(root: Path, port: int) -> None:
    """Raise NanoengineError where no server could start: no built book, or the port is taken."""
    if not (root / BOOK_FOLDER / "index.html").exists():
        raise NanoengineError(
            f"there is no built book in {root / BOOK_FOLDER}: run make book there first, or name --root"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise NanoengineError(f"port {port} cannot be used ({reason}); choose another one with --port") from None


def serve(root: Path, port: int) -> None:
    """Serve the book of `root` until Ctrl-C; prints one line with its address once it answers."""
    from jupyter_server.serverapp import ServerApp
    from traitlets.config import Config

    check(root, port)
    config = Config()
    config.ServerApp.ip, config.ServerApp.port, config.ServerApp.port_retries = HOST, port, 0
    config.ServerApp.root_dir = str(root)
    config.ServerApp.open_browser = False
    config.ServerApp.answer_yes = True  # Ctrl-C ends it, with no question asked
    config.ServerApp.allow_root = True
    config.ServerApp.log_level = "ERROR"
    config.ServerApp.default_url = "/book/index.html"
    config.ServerApp.jpserver_extensions = {"jupyterlab": True, "nanoengine.live": True}
    config.ServerApp.tornado_settings = {"compress_response": True}
    config.LabApp.log_level = "ERROR"
    config.MappingKernelManager.cull_idle_timeout = IDLE_KERNEL_S
    # A token of our own: for one that it made itself, the server would print its address a second time.
    config.IdentityProvider.token = token = secrets.token_hex(24)
    app = ServerApp.instance(config=config)
    app.initialize(argv=[])
    address = f"http://{HOST}:{app.port}/book/index.html?token={token}"
    app.io_loop.add_callback(print, f"the book is live at {address} (Ctrl-C stops it)", flush=True)
    app.start()
