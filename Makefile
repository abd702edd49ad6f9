# Two commands are enough: `make demo` and `make test`. Both set up .venv on first use and reuse it afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test format lint types unit clean

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

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Reinstalls only when what is to be installed has changed.
$(STAMP): pyproject.toml constraints.txt src/atmc/samplers/step.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
