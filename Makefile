# `make demo`, `make test` and `make docs` set up .venv on first use and reuse it afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test docs format lint types unit clean

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
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Reinstalls only when what is to be installed has changed.
$(STAMP): pyproject.toml constraints.txt src/atmc/samplers/step.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache
