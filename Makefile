# Everything here stays inside this folder: the environment is .venv, and pip keeps no cache.

PYTHON ?= python3
SEEDS ?= 2000
FIRST_SEED ?= 0
INPUTS ?= 200000

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK_VENV := .venv-lock
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

export PIP_NO_CACHE_DIR := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/matplotlib

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check test test-full demo bench soak format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv with everything the project needs

check: $(STAMP) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests of one `xdist_group` run in one process, and the largest groups begin first: the tests that share a Spark
# session keep one process busy for long, while the other runs what is left.
test: check ## check, then the tests
	$(PYTEST)

test-full: check ## check, then all tests, the slow ones too
	$(PYTEST) -m ""

demo: $(STAMP) ## four acts on local clusters: moves under fire, a policy, topics that follow players, channels on Spark
	$(BIN)/nearcast demo

bench: $(STAMP) ## client, logs, plans, flow simulator, gateways' balancing, feeds, channels and telemetry on this machine
	$(BIN)/nearcast bench client
	$(BIN)/nearcast bench log
	$(BIN)/nearcast bench plan
	$(BIN)/nearcast bench flow
	$(BIN)/nearcast bench multistage
	$(BIN)/nearcast bench ingest
	$(BIN)/nearcast bench channels
	$(BIN)/nearcast bench telemetry

soak: $(STAMP) ## many seeds of the protocol simulator (SEEDS=2000 FIRST_SEED=0), then hostile inputs (INPUTS=200000)
	$(BIN)/nearcast simulate protocol --seeds $(SEEDS) --first-seed $(FIRST_SEED)
	NEARCAST_FUZZ_INPUTS=$(INPUTS) NEARCAST_FUZZ_SEED=$(FIRST_SEED) $(BIN)/pytest -s -p no:logging tests/pipeline/service/test_fuzz.py

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lock: ## resolve the newest versions anew into requirements.lock
	$(require_python)
	@rm -rf $(LOCK_VENV)
	$(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/pip install -qq --editable '.[all]'
	@{ echo '# All packages of nearcast[all] with the versions the project is tested with.'; \
	   echo '# Made by `make lock`, which installs .[all] into a fresh environment and freezes it.'; \
	   echo '# Run it again to refresh; do not edit by hand.'; \
	   $(LOCK_VENV)/bin/pip freeze --exclude-editable | LC_ALL=C sort -f; } > requirements.lock.new
	@if grep -Ev '^(#|[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+$$)' requirements.lock.new; then \
	   echo 'error: the lines above are not name==version; requirements.lock is unchanged' >&2; \
	   rm -rf requirements.lock.new $(LOCK_VENV); exit 1; fi
	@mv requirements.lock.new requirements.lock
	@rm -rf $(LOCK_VENV)

clean: ## remove everything that was built
	rm -rf $(VENV) $(LOCK_VENV) build dist src/nearcast.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock
	$(require_python)
	@test -x $(BIN)/pip || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	$(BIN)/pip install -qq --requirement requirements.lock
	$(BIN)/pip install -qq --no-deps --editable .
	@touch $@

define require_python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo 'error: $(PYTHON) is missing or older than 3.11; name a newer one: make setup PYTHON=python3.12' >&2; \
	exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	echo 'error: $(PYTHON) cannot create environments, its module ensurepip or venv is missing.' >&2; \
	echo '       Install it (on Debian and Ubuntu: the package python3-venv) or name another Python:' >&2; \
	echo '       make setup PYTHON=/path/to/python3' >&2; \
	exit 1; }
endef
