# Each target sets up what it needs in .venv; nothing outside this folder is changed.
PYTHON ?= python3
PROMPT ?= Tell me a story about a fox and a lantern.
# as it was typed: neither make nor the shell may read quotes and dollars of a prompt
override PROMPT := $(value PROMPT)
export PROMPT
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
STAMP := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup run test lint docs bench wheels clean

help: ## show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 16

setup: $(STAMP) ## make .venv with the core, its plugins and the test tools

$(STAMP): pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(PLUGINS))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "DeepInfer needs Python 3.11 or newer; $(PYTHON) is older. Try: make setup PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt "torch==2.13.0" "setuptools>=77" wheel
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e ".[dev]" $(addprefix -e ./,$(PLUGINS))
	@touch $(STAMP)

run: $(STAMP) ## answer PROMPT="..." with the embedded tiny model on this machine's CPU
	@$(BIN)/deepinfer run --platform reference --model tiny --max-tokens 160 --temperature 0 -- "$$PROMPT"

lint: $(STAMP) ## style and types
	$(BIN)/ruff check deepinfer tests tools bench examples
	$(BIN)/mypy

test: lint ## everything: style, types, tests (no network, no accelerator)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(STAMP) ## write the generated pages again
	$(BIN)/python tools/operators_page.py

bench: $(STAMP) ## what a call of the operator table costs
	$(BIN)/python bench/dispatch.py

wheels: $(STAMP) ## build the core and every plugin into dist/
	@mkdir -p dist
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist . $(addprefix ./,$(PLUGINS))
	@ls dist

clean: ## remove what these targets made
	rm -rf $(VENV) dist build *.egg-info
