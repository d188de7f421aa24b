# `make demo` and `make test` need Linux, Python 3.11 or newer, and make; all else is put into .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
# Tests start hundreds of processes; without bytecode each compiles the package anew, for a second.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait about as long as they compute, so two cores have four processes. tests/schedule.py says which files each takes.
PROCESSES := 4
CLASSES := $(VENV)/.spark-classes.jsa
PYTEST := $(BIN)/pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: demo test quick most check lint types docs bench clean

demo: $(STAMP)
	$(BIN)/hopyard demo

test: $(CLASSES)
	$(PYTEST)

quick: $(STAMP)
	$(PYTEST) -m 'not spark and not tensorflow and not slow'

most: $(CLASSES)
	$(PYTEST) -m 'not long and not campaign'

check: lint types most

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs docs/_build/html

bench: $(STAMP)
	$(BIN)/python benchmarks/all.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(CLASSES): $(STAMP) tests/light_java.py
	-$(BIN)/python tests/light_java.py  # without Java there is none, and no test of Spark

clean:
	rm -rf docs/_build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
