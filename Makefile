# `make demo` and `make test` need Linux, Python 3.11 or newer, and make; all else is put into .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
# Tests start hundreds of processes; without bytecode each compiles the package anew, for a second.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait about as long as they compute, so two cores have four processes. Each test goes to the first that is free.
PROCESSES := 4
CLASSES := $(VENV)/.spark-classes.jsa
PYTEST := $(BIN)/pytest -n $(PROCESSES) --dist loadgroup
DEMO := $(VENV)/.demo
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# On all cores, where pip has one. Some packages have files that are no Python.
COMPILE := $(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib || true

.PHONY: demo test test-all quick check lint types docs bench clean

demo: $(DEMO)
	$(BIN)/hopyard demo

# Every behaviour once.
test: $(CLASSES)
	$(PYTEST) -m 'not long and not campaign'

# Variants, examples and pages too; no worker is a fork that tests share, and all writes are synced, as in use.
test-all: $(CLASSES)
	$(PYTEST) --sync --cold

quick: $(STAMP)
	$(PYTEST) -m 'not spark and not tensorflow and not slow'

# Side by side: mypy has one thread.
check: $(STAMP)
	$(MAKE) --jobs=2 lint types test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs docs/_build/html

bench: $(STAMP)
	$(BIN)/python benchmarks/all.py

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[demo]'
	$(COMPILE)
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	$(COMPILE)
	touch $(DEMO) $@

$(CLASSES): $(STAMP) tests/light_java.py
	-$(BIN)/python tests/light_java.py  # without Java there is none, and no test of Spark

clean:
	rm -rf docs/_build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
