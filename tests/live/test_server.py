"""`nanoengine live` as a stranger on the network, a careless user and another web page would meet it."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.live.server import free_port, running

COMMAND = [sys.executable, "-m", "nanoengine.cli", "live"]


def ask(url, path, method="GET", **headers):
    """(status, headers, body) of one request, with no cookie and no token unless given; the path is sent as it is."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode(errors="replace")


@pytest.fixture(scope="module")
def url(built_book):
    with running(built_book.parents[1]) as url:
        yield url


@pytest.fixture(scope="module")
def token(url):
    return re.search(r"token=(\w+)", url).group(1)


def test_it_prints_one_line_with_one_address(built_book):
    port = free_port()
    server = subprocess.Popen(
        [*COMMAND, "--port", str(port), "--root", str(built_book.parents[1])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    line = server.stdout.readline()
    server.send_signal(signal.SIGTERM)
    rest = server.stdout.read()
    server.wait(30)
    assert re.fullmatch(
        rf"the book is live at http://127\.0\.0\.1:{port}/book/index\.html\?token=\w{{48}} \(Ctrl-C stops it\)\n", line
    )
    assert "http" not in rest and len(rest.splitlines()) <= 1, "at most a word on the signal that ended it"


def test_it_listens_on_this_machine_only(url):
    port = urlsplit(url).port
    listening = Path("/proc/net/tcp").read_text() if Path("/proc/net/tcp").exists() else None
    if listening is None:
        pytest.skip("only Linux shows who listens where in /proc")
    hosts = re.findall(rf"^\s*\d+: ([0-9A-F]{{8}}):{port:04X} 00000000:0000 0A", listening, re.M)
    assert hosts == ["0100007F"]


@pytest.mark.parametrize("path", ["/book/index.html", "/book/_static/live.js", "/api/status", "/api/kernels", "/lab"])
def test_nothing_is_shown_without_the_token(url, path):
    status, headers, body = ask(url, path)
    assert status in (302, 403)
    assert "Price of a Token" not in body
    if status == 302:
        assert "/login" in headers["Location"]


def test_a_wrong_token_opens_nothing(url):
    assert ask(url, "/book/index.html?token=" + "0" * 48)[0] == 302
    assert ask(url, "/api/kernels", Authorization="token " + "0" * 48)[0] == 403


def test_the_token_opens_the_book_and_no_page_repeats_it(url, token):
    status, headers, body = ask(url, "/book/index.html", Authorization=f"token {token}")
    assert status == 200
    assert "The Price of a Token" in body
    assert token not in body
    assert "sandbox" not in headers.get("Content-Security-Policy", "")


@pytest.mark.parametrize(
    "path", ["/book/../README.md", "/book/%2e%2e/%2e%2e/README.md", "/book/..%2f..%2fREADME.md", "/book//etc/passwd"]
)
def test_no_path_leads_out_of_the_book(url, token, path):
    status, _, body = ask(url, path, Authorization=f"token {token}")
    assert status in (403, 404)
    assert "root:" not in body and "make live" not in body


def test_a_page_that_is_not_there_says_so(url, token):
    status, _, body = ask(url, "/book/none.html", Authorization=f"token {token}")
    assert (status, body) == (404, "404: no such page in this book\n")


def test_another_host_name_is_refused(url, token):
    """A page elsewhere whose name was made to point at this machine sends its own Host."""
    assert ask(url, "/api/kernels", Authorization=f"token {token}", Host="evil.example")[0] == 403


def test_another_page_of_the_reader_s_browser_can_do_nothing(url):
    """It has the browser's cookies, but neither the token nor the value that must be echoed to change something."""
    _, headers, _ = ask(url, urlsplit(url).path + "?" + urlsplit(url).query)
    cookies = "; ".join(cookie.split(";")[0] for cookie in headers.get_all("Set-Cookie"))
    assert ask(url, "/api/kernels", Cookie=cookies)[0] == 200, "the cookies are good"
    foreign = {"Cookie": cookies, "Origin": "http://evil.example", "Referer": "http://evil.example/"}
    status, headers, _ = ask(url, "/api/kernels", **foreign)
    assert status in (403, 404) or "Access-Control-Allow-Origin" not in headers
    assert ask(url, "/api/kernels", method="POST", **foreign)[0] in (403, 404)
    assert ask(url, "/api/kernels", method="POST", Cookie=cookies)[0] == 403


def test_pages_are_compressed(url, token):
    _, headers, _ = ask(
        url, "/book/_static/vendor/tex-svg.js", Authorization=f"token {token}", **{"Accept-Encoding": "gzip"}
    )
    assert headers["Content-Encoding"] == "gzip"


def test_a_port_in_use_is_one_sentence(built_book):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [*COMMAND, "--port", str(port), "--root", str(built_book.parents[1])],
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 2
    assert run.stderr.startswith(f"nanoengine live: port {port} cannot be used")
    assert len(run.stderr.splitlines()) == 1


def test_a_port_that_is_none_is_one_sentence(built_book):
    run = subprocess.run(
        [*COMMAND, "--port", "99999", "--root", str(built_book.parents[1])], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1


def test_a_missing_book_is_one_sentence(tmp_path):
    run = subprocess.run([*COMMAND, "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "run make book" in run.stderr and len(run.stderr.splitlines()) == 1


def test_ended_it_answers_no_more(built_book):
    with running(built_book.parents[1]) as url:
        pass
    time.sleep(0.5)
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/book/index.html")
