"""Starts `nanoengine live` for a test, and ends it."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager


def free_port() -> int:
    """A port that nothing uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(root, port=None):
    """A server on the book of `root`; yields the address that it prints, token included."""
    port = port or free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "nanoengine.cli", "live", "--port", str(port), "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed = ""
        for line in server.stdout:
            printed += line
            if found := re.search(r"the book is live at (http://\S+)", line):
                break
        else:
            raise AssertionError(f"the server ended, saying: {printed}")
        yield found.group(1)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
