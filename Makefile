# Tidemill. `make` alone lists what there is. Everything it installs goes into .venv and .cache of this folder.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV := .venv
BIN := $(VENV)/bin
LISTEN ?= 127.0.0.1:9092
DATA ?= data
WORKLOADS ?=
PURE ?=
SIMULATION ?=
SEEDS ?= 10000
SEED ?=
SPARK_PORT ?= 7077

# The fastest Python on the machine that is new enough; a candidate counts only if it really runs. Two builds of the
# same version differ by a third: distributions optimise theirs with a profile, a plain `./configure && make` does not.
# Tried in turns, five times each: whatever else the machine does for a moment must not choose.
PROBE = import sys, timeit, venv, ensurepip; \
	sys.exit(1) if sys.version_info < (3, 11) else print(min(timeit.repeat( \
	"for i in range(50000): f(i, i)", "f = lambda a, b: [a, (b, a)]", number=1, repeat=9)))
FIND_PYTHON = for round in 1 2 3 4 5; do for candidate in $$(type -aP python3.13 python3.12 python3.11 python3); do \
	seconds=$$("$$candidate" -c '$(PROBE)' 2>/dev/null) && echo "$$seconds $$candidate" || true; \
	done; done | sort -n | sed -n '1s/^[^ ]* //p' | grep . || { \
	echo 'Tidemill needs Python 3.11 or newer with its venv module, and found none on this machine (on Debian: apt-get install python3-venv).' >&2; exit 1; }

# One set-up at a time, even when several make commands run in this folder.
ONE_AT_A_TIME = mkdir -p .cache; if command -v flock >/dev/null; then exec 9>.cache/set-up.lock; flock 9; fi

# $(call install,STAMP,WHAT): make .venv when it is missing, install WHAT, remember it in STAMP.
define install
	@$(ONE_AT_A_TIME); \
	if [ $(1) -nt pyproject.toml ]; then exit 0; fi; \
	if ! $(BIN)/python -c '' 2>/dev/null; then \
		python=$$($(FIND_PYTHON)); \
		echo "setting up $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV); \
	fi; \
	echo 'installing $(2)'; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '$(2)'; \
	touch $(1)
endef

.PHONY: help run test check lint bench interop faults simulate spark-cluster clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

$(VENV)/.run: pyproject.toml
	$(call install,$@,.)

$(VENV)/.dev: pyproject.toml
	$(call install,$@,.[dev])

$(VENV)/.bench: pyproject.toml
	$(call install,$@,.[dev$(comma)bench])

comma := ,

run: $(VENV)/.run  ## start a broker on 127.0.0.1:9092 that keeps its data in ./data
	@exec $(BIN)/tidemill start --data-dir $(DATA) --listen $(LISTEN)

test: $(VENV)/.dev  ## check the style, the types and the layers, then run all tests
	@$(MAKE) --no-print-directory check
	$(BIN)/pytest --ignore=tests/interop --numprocesses=2 --dist=loadfile --no-loadscope-reorder

check: $(VENV)/.dev  ## check the style, the types and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint: $(VENV)/.dev  ## repair the style where a tool can, then check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(MAKE) --no-print-directory check

interop: $(VENV)/.dev  ## run against Apache Kafka's own tools, kcat and franz-go
	$(BIN)/python tests/support/kafka_jars.py javac kcat go
	$(BIN)/python tests/support/native_build.py
	$(BIN)/pytest tests/interop

faults: $(VENV)/.dev  ## kill, stall and tear for some minutes longer than make test does
	TIDEMILL_FAULTS=long $(BIN)/pytest tests/faults

simulate: $(VENV)/.dev  ## 10,000 seeds of every simulation (SIMULATION=transactions, SEEDS=100000, SEED=42)
	@$(BIN)/python tests/support/simulate.py $(SIMULATION) --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

spark-cluster: $(VENV)/.dev  ## start a standalone Spark cluster (a master, two workers) on this machine
	@exec $(BIN)/tidemill pipeline cluster --workers 2 --port $(SPARK_PORT)

# The broker runs on compiled modules, or with PURE=1 on the sources as they are; the Spark part has none to compile.
BROKER_WORKLOADS = $(filter-out W12,$(or $(WORKLOADS),all))
bench: $(VENV)/.bench  ## measure side by side with Apache Kafka (WORKLOADS="W1 W4", PURE=1, OPTIONS=--quick)
	$(BIN)/python tests/support/kafka_jars.py
	$(if $(BROKER_WORKLOADS),$(if $(PURE),,$(BIN)/python tests/support/native_build.py))
	$(if $(BROKER_WORKLOADS),$(if $(PURE),,PYTHONPATH=.cache/native) $(BIN)/python -m bench $(filter-out W12,$(WORKLOADS)) $(OPTIONS))
	$(if $(filter W12,$(or $(WORKLOADS),W12)),$(BIN)/python tests/support/official_connector.py)
	$(if $(filter W12,$(or $(WORKLOADS),W12)),$(BIN)/python -m bench.spark $(OPTIONS))

clean:  ## remove what was installed and cached
	rm -rf $(VENV) .cache
