#!/bin/sh
# Every test there is: style, the package, the built book in a browser, and the notebooks. `make test` calls this.
set -eu
cd "$(dirname "$0")/.."
bin=.venv/bin

# The browser tests drive Debian's Chromium. Where it cannot be installed they say why they skip.
if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium for the browser tests"
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1 ||
        echo "chromium could not be installed; the browser tests will be skipped"
fi

# Threads that wait by spinning take the cores from the browser and the kernels that the tests start.
export OMP_WAIT_POLICY=passive

$bin/ruff check .
$bin/ruff format --check .
$bin/python -m pytest tests
$bin/python -m pytest --nbval --nbval-sanitize-with tests/nbval.cfg chapters
