# Each target sets up the virtual environment it needs, from nothing, and only once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint imports format tables hashes hooks clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo-installed
	$(BIN)/treering demo

test: $(VENV)/dev-installed
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || echo "No Chromium is here: the page is not tested"
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --cov=treering --cov-fail-under=90 --cov-report=term:skip-covered

lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

imports: $(VENV)/dev-installed
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: $(VENV)/dev-installed
	$(BIN)/python benchmarks/table.py

# For constraints that have changed: the checksums of every package but PyTorch, whose file depends on the processor.
hashes:
	uv pip compile --quiet --universal --python-version 3.11 --no-deps --generate-hashes --no-annotate --no-header \
		--no-emit-package torch --output-file hashes.txt constraints.txt

hooks: $(VENV)/dev-installed
	$(INSTALL) pre-commit
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[demo]'
	touch $@

$(VENV)/dev-installed: pyproject.toml constraints.txt hashes.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement hashes.txt
	$(INSTALL) --no-build-isolation --editable '.[demo,report,photos,export,serve,dev]'
	touch $@
