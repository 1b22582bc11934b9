# Everything starts here: `make demo` and `make test` set up what they need by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .venv-peers

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test bench peers clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(STAMP) ## Make the virtual environment (again only when the pins change)

$(STAMP): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsift needs Python 3.11 or newer; set PYTHON=")'
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

demo: setup ## Twenty clients learn from soft labels, beside FedAvg (a quarter of a minute after set-up, no download of data)
	$(BIN)/fedsift demo

check: setup ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## Put the code into the agreed format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup ## All tests (a few minutes on two cores)
	$(BIN)/python -m pytest

bench: setup ## Measure index codes and the engines on this machine
	$(BIN)/python benchmarks/bench.py

peers: $(PEERS)/.installed ## The same round in Flower, pfl-research, a plain loop and fedsift (a quarter of an hour)
	$(PEERS)/bin/python benchmarks/peers.py

$(PEERS)/.installed: benchmarks/peers-constraints.txt
	rm -rf $(PEERS)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c benchmarks/peers-constraints.txt setuptools
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c benchmarks/peers-constraints.txt --no-build-isolation -e . 'flwr[simulation]' pfl
	touch $@

clean: ## Remove the environments and caches; runs/ is left alone
	rm -rf $(VENV) $(PEERS) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
