# make quickstart: a priced sweep on real data.   make test: the whole suite.   make help: the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) >/dev/null 2>&1 && $(p) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED := 0
QUICK := jobs/adult_logistic_clip.yaml

.PHONY: help quickstart test venv lint bench bench-quick bench-many bench-gpu acceptance clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "sweeper needs Python 3.11 or newer with the venv module; none was found. Try: make PYTHON=/path/to/python3.11"; exit 2; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing sweeper and what it needs (about a minute with a warm pip cache)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the test extras"
	@$(PIP) -e '.[test]'
	@touch $@

venv: $(VENV)/.installed-test ## install the package and the test extras, then stop

quickstart: $(VENV)/.installed ## install, price and run a sweep on Adult, show the best setting with its whole bill
	@$(BIN)/sweeper data fetch adult
	@$(BIN)/sweeper ledger --json | grep -q '"data_set": "adult"' || $(BIN)/sweeper ledger set-budget adult --epsilon 8 --delta 1e-4
	@echo; $(BIN)/sweeper plan $(QUICK); echo
	@if $(BIN)/sweeper status adult-clip >/dev/null 2>&1; then $(BIN)/sweeper resume adult-clip; else $(BIN)/sweeper run $(QUICK); fi

test: $(VENV)/.installed-test ## the whole test suite, in two processes
	@$(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed-test ## ruff, mypy --strict on privacy and spec, import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.installed-test ## speed, as ratios to peers in the same run (about twelve minutes)
	@$(BIN)/python tests/bench/bench.py

bench-quick: $(VENV)/.installed-test ## the same without whole sweeps, in under two minutes
	@$(BIN)/python tests/bench/bench.py --quick

bench-many: $(VENV)/.installed-test ## one sweep of 10,000 tiny trials: time, and memory beside a quarter of them (about four minutes)
	@$(BIN)/python tests/bench/bench.py --only many

bench-gpu: $(VENV)/.installed-test ## packs of trials on the GPU that is here, or on the CPU (under a minute)
	@$(BIN)/python tests/bench/gpu_packs.py

acceptance: $(VENV)/.installed-test ## accuracy figures: quickstart sweeps, and every policy beside a broken twin (about five minutes)
	@$(BIN)/python tests/acceptance/acceptance.py
	@$(BIN)/python tests/acceptance/policies.py
	@$(BIN)/python tests/acceptance/fashion_networks.py

clean: ## remove what make and the tools made; keeps .sweeper, where your results and your ledger are
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
