# Each target creates .venv first. The stamps depend on pyproject.toml and on the sources of the
# explorer's page, so a change to these installs clew again.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo
BENCH  := $(VENV)/.installed-bench
SITE   := $(VENV)/.installed-site
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
PAGE   := hatch_build.py tools/build_explorer.py $(wildcard frontend/*.json frontend/*.mjs frontend/*.html) \
          $(shell find frontend/src)

.DEFAULT_GOAL := help
.PHONY: help setup demo lint check-types check-others test test-all fuzz bench site clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml $(PAGE) | $(BIN)/python
	$(PIP) install --editable '.[test,models]'
	@touch $@

# A small environment, without torch and the tools of the tests.
$(DEMO): pyproject.toml $(PAGE) | $(BIN)/python
	$(PIP) install --editable '.[demo]'
	@touch $@

$(BENCH): pyproject.toml $(PAGE) $(STAMP)
	$(PIP) install --editable '.[bench]'
	@touch $@

setup: $(STAMP) ## create .venv and install clew with its test dependencies

$(SITE): pyproject.toml $(PAGE) $(STAMP)
	$(PIP) install --editable '.[site]'
	@touch $@

demo: $(DEMO) ## compile two real networks, compare them with ONNX Runtime, trace one layer
	$(BIN)/python tools/demo.py

# The type check takes as long as all other checks together, so they run beside it.
lint: $(STAMP) ## format, lint, types, import directions and cycles, file access, thresholds; the page's types and tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(MAKE) --no-print-directory --jobs=2 check-types check-others

check-types:
	$(BIN)/mypy

check-others:
	$(BIN)/lint-imports
	$(BIN)/python tools/file_access.py
	$(BIN)/python tools/thresholds.py
	$(BIN)/python tools/import_circles.py
	$(BIN)/python tools/build_explorer.py --check

test: lint ## all checks, then all tests, the fastest first
	$(BIN)/pytest --quiet tests/test_smoke.py
	$(BIN)/pytest --quiet -n 2 --dist worksteal -m "not exhaustive"

test-all: lint ## all checks, then all tests, exhaustive ones, too
	$(BIN)/pytest --quiet -n 2 --dist worksteal

# MINUTES=60 WORKERS=2: counts and failures are in .cache/fuzz, where the next run continues.
MINUTES ?= 1
WORKERS ?= 1
fuzz: $(STAMP) ## random graphs on all engines for MINUTES with WORKERS, until two disagree
	$(BIN)/python -m fuzz run --minutes $(MINUTES) --workers $(WORKERS)

bench: $(BENCH) ## benchmark clew and its peers, interleaved, on this machine
	$(BIN)/python benchmarks/peers.py

site: $(SITE) ## build the documentation site into build/site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file site/mkdocs.yml

clean: ## remove .venv, caches and exported models
	rm -rf $(VENV) .cache src/clew/static frontend/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
