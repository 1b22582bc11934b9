# Everything starts here: `make demo` and `make test` set up what they need by themselves.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PACKAGE := $(VENV)/.installed
DEV     := $(VENV)/.installed-dev
PEERS   := .venv-peers
PIP      = -m pip install --quiet --disable-pip-version-check
QUICK   := not slow and not flower and not gpu and not browser
PYTEST   = $(BIN)/python -m pytest
# Whole files per worker: the tests of a real Flower federation share one deployment.
# One worker more than cores: those tests wait much of their time.
MANY    := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')
BY_FILE := -n $(MANY) --dist loadfile --no-loadscope-reorder

# Parallel tests share the cores: threads of torch within each would wait for one another.
test test-all coverage: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo docs notebooks check format test test-all test-gpu browser coverage dist bench peers clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(DEV) ## Make the environment with the development tools (again only when the pins change)

$(PACKAGE): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsift needs Python 3.11 or newer; set PYTHON=")'
	@echo "Installing fedsift with torch, numpy and matplotlib into $(VENV): a few minutes, because torch is large."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) -c constraints.txt setuptools
	@$(BIN)/python $(PIP) -c constraints.txt --no-build-isolation -e .
	@touch $@

$(DEV): $(PACKAGE)
	@echo "Installing the development tools into $(VENV): pytest, ruff, mypy and Flower; about a minute."
	@$(BIN)/python $(PIP) -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(PACKAGE) ## Twenty clients learn from soft labels, beside FedAvg (half a minute after set-up, no download of data)
	$(BIN)/fedsift demo

check: $(DEV) ## Check format, lint, types and the links in Markdown
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/check_links.py

format: $(DEV) ## Put the code into the agreed format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV) ## Build the documentation into site/, warnings as errors
	$(BIN)/python tools/build_site.py

notebooks: $(DEV) ## Run the notebooks again and write their outputs into them
	$(BIN)/python tools/run_notebooks.py

test: $(DEV) ## The quick tests, in parallel
	$(PYTEST) -n auto -m "$(QUICK)"

test-all: $(DEV) ## All tests that need no GPU, in parallel: real trainings and real Flower federations too
	$(PYTEST) $(BY_FILE) -m "not gpu"

test-gpu: $(DEV) ## The tests that need a CUDA device
	$(PYTEST) -m gpu

browser: ## Install Debian's chromium, for the tests of pages (as root; without it they are skipped)
	@command -v chromium >/dev/null || (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium) >/dev/null 2>&1 \
		|| echo "WARNING: chromium cannot be installed here; the tests of pages are skipped" >&2

coverage: $(DEV) ## The lines and branches that the quick tests reach
	$(PYTEST) -n auto -m "$(QUICK)" --cov --cov-report=term:skip-covered --cov-report=html

dist: $(DEV) ## Build wheel and sdist into dist/; prove that the wheel alone runs the demo
	rm -rf dist build
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python tools/check_wheel.py dist

bench: $(PACKAGE) ## Measure index codes and the engines on this machine
	$(BIN)/python benchmarks/bench.py

peers: $(PEERS)/.installed ## The same round in Flower, pfl-research, BlazeFL, FedJAX, a plain loop and fedsift: four cases (an hour or more)
	$(PEERS)/bin/python benchmarks/peers.py --all

$(PEERS)/.installed: benchmarks/peers-constraints.txt
	rm -rf $(PEERS)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) -c benchmarks/peers-constraints.txt setuptools
	$(PEERS)/bin/python $(PIP) -c benchmarks/peers-constraints.txt --no-build-isolation -e . 'flwr[simulation]' pfl fedjax
	$(PEERS)/bin/python $(PIP) -c benchmarks/peers-constraints.txt --no-deps --ignore-requires-python blazefl
	touch $@

clean: ## Remove the environments, caches and built packages; runs/ is left alone
	rm -rf $(VENV) $(PEERS) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
