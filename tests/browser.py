"""What the browser tests share: the system's Chromium, and a record of what a page asks for and complains of."""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Hints of Vega-Lite about a chart's style, which no reader sees.
HARMLESS = ("WARN ",)


@contextmanager
def chromium():
    """A headless Chromium; skips the test, saying why, where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Record:
    """What a page did: the addresses it asked for, its errors, the bytes that came over the wire."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wire_bytes: int = 0

    def outside(self, *allowed: str) -> list[str]:
        """Requests to anything but `allowed` prefixes."""
        own = (*allowed, "data:", "blob:")
        return [url for url in self.requests if not url.startswith(own)]


def watch(page) -> Record:
    """Record what `page` does from now on."""
    record = Record()
    page.on("request", lambda request: record.requests.append(request.url))
    page.on("pageerror", lambda error: record.errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            record.errors.append(message.text)
            if message.type == "error" and not message.text.startswith(HARMLESS)
            else None
        ),
    )
    page.on(
        "response",
        lambda answer: record.errors.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None,
    )
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")

    def add(event):
        record.wire_bytes += int(event["encodedDataLength"])

    session.on("Network.loadingFinished", add)
    return record
