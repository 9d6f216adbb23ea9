# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format pages bench clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/noshadow demo

test: lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Every number and figure of the experiments in the docs and the README, from the committed results.
pages: $(STAMP)
	$(BIN)/noshadow bench --pages benchmarks/results/experiments --output docs --readme README.md
	$(BIN)/python benchmarks/docs.py

# Benchmarks have an environment of their own: the libraries that noshadow is compared with are not its dependencies.
BENCH := .venv-bench
$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable . -r benchmarks/requirements.txt
	# a torchvision of another build than torch fails on import, and nothing here needs one
	$(BENCH)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

bench: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/core.py

clean:
	rm -rf $(VENV) .venv-bench .mypy_cache .ruff_cache .pytest_cache
