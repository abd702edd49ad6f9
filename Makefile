# `make demo`, `make test` and `make docs` set up .venv on first use and reuse it afterwards.
# Another Python gets an environment of its own: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test docs format lint types unit lock oldest clean

demo: $(STAMP)
	$(BIN)/atmc demo

test: $(STAMP) lint types unit

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

# A file's tests stay together, since they share runs; more than four processes gain little.
unit: $(STAMP)
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

# Into site/, without asking anybody on the network; every warning is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Reinstalls only when what is to be installed has changed. Everything is pinned and checked by its hash, but for torch:
# which build of it is right depends on the machine, so it is pinned alone. The last line may then ask for nothing more.
$(STAMP): pyproject.toml constraints.txt requirements.lock src/atmc/samplers/step.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# With the oldest versions that pyproject.toml allows, in an environment of its own. uv finds them; pip cannot.
# PYTHON=python3.13 for another Python. Fetches gigabytes where there is no torch of that version for CPUs.
oldest:
	test -x .venv-oldest/bin/uv || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-oldest/bin/uv pip install --quiet --native-tls --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-oldest/bin/pytest -n auto --maxprocesses 4 --dist loadfile

# After a change to constraints.txt or to the dependencies in pyproject.toml.
lock:
	$(PYTHON) .ci/lock.py

clean:
	rm -rf $(VENV) .venv-oldest site .mypy_cache .ruff_cache .pytest_cache
