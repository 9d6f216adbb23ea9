# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format docs pages dist minima bench clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/noshadow demo

test: lint
	$(BIN)/python -m pytest --numprocesses logical --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, with warnings as errors and every link within it followed. `make test` does the same.
docs: $(STAMP)
	$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs docs/_build/html
	$(BIN)/python tools/check_links.py docs/_build/html README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md
	@echo "open docs/_build/html/index.html"

# A wheel and a source distribution, installed into an empty environment away from the source tree, and used there.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist
	$(BIN)/python tools/try_wheel.py dist

# The lowest versions that pyproject.toml claims, in an environment of their own, with the tests of the mathematics, but
# for long simulations, which no version of a library changes.
MINIMA := .venv-min
$(MINIMA)/.installed: pyproject.toml constraints-min.txt
	test -x $(MINIMA)/bin/python || $(PYTHON) -m venv $(MINIMA)
	$(MINIMA)/bin/python -m pip install --quiet --constraint constraints-min.txt --editable . "pytest>=8" "hypothesis>=6.100" \
		"statsmodels>=0.14.2" "mpmath>=1.3"
	touch $@

minima: $(MINIMA)/.installed
	$(MINIMA)/bin/python -m pytest tests/truth tests/heads tests/attacks tests/theory tests/sources tests/test_audit.py \
		tests/test_tables.py tests/test_cli.py --ignore=tests/attacks/test_null.py --ignore=tests/attacks/test_convergence.py

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
	rm -rf $(VENV) .venv-bench .venv-min dist docs/_build .mypy_cache .ruff_cache .pytest_cache
