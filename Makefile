# Each target makes its own .venv first; the stamps depend on pyproject.toml and on what the explorer's page is
# built from, so it is done again when these change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo
BENCH  := $(VENV)/.installed-bench
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
PAGE   := hatch_build.py tools/build_explorer.py $(wildcard frontend/*.json frontend/*.mjs frontend/*.html) \
          $(shell find frontend/src)

.DEFAULT_GOAL := help
.PHONY: help setup demo lint test fuzz bench clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml $(PAGE) | $(BIN)/python
	$(PIP) install --editable '.[test,models]'
	@touch $@

# Light: neither torch nor the tools of the tests. Nothing to do where these are there.
$(DEMO): pyproject.toml $(PAGE) | $(BIN)/python
	$(PIP) install --editable '.[demo]'
	@touch $@

$(BENCH): pyproject.toml $(PAGE) $(STAMP)
	$(PIP) install --editable '.[bench]'
	@touch $@

setup: $(STAMP) ## make .venv and install clew with what its tests need

demo: $(DEMO) ## compile two real networks, compare them with ONNX Runtime, follow one layer down
	$(BIN)/python tools/demo.py

lint: $(STAMP) ## format, lint, types, directions and circles of import, access to files; types and tests of the page
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/file_access.py
	$(BIN)/python tools/import_circles.py
	$(BIN)/python tools/build_explorer.py --check

test: lint ## all checks, then all tests, the quickest first
	$(BIN)/pytest --quiet tests/test_smoke.py
	$(BIN)/pytest --quiet -n 2 --dist worksteal

# MINUTES=60 WORKERS=2: the counts and what failed are in .cache/fuzz, and the next run goes on there.
MINUTES ?= 1
WORKERS ?= 1
fuzz: $(STAMP) ## random graphs on all engines for MINUTES with WORKERS, until two disagree
	$(BIN)/python -m fuzz run --minutes $(MINUTES) --workers $(WORKERS)

bench: $(BENCH) ## time clew against its peers, interleaved, on this machine
	$(BIN)/python benchmarks/peers.py

clean: ## remove .venv, caches and exported models
	rm -rf $(VENV) .cache src/clew/static frontend/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
