# Everything a newcomer needs: `make demo` and `make test` work on a machine with Python, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow coverage docs site check format hooks package floors clean

demo: $(VENV)/demo
	$(BIN)/resemblance demo

# Bytecode is cached whatever the environment says: many tests start processes of their own.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: $(VENV)/ready
	$(PYTEST) -n 2 -m "not slow"

# The tests that take more than about ten seconds each.
slow: $(VENV)/ready
	$(PYTEST) -n 2 -m slow

coverage: $(VENV)/ready
	$(PYTEST) -n 2 --cov=resemblance --cov-report=term-missing:skip-covered

docs: $(VENV)/ready
	$(PYTEST) tests/test_docs.py tests/test_site.py

# The documentation as a site, in site/. A link that leads nowhere is an error.
site: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Lint, format and types before every commit.
hooks: $(VENV)/ready
	$(BIN)/pre-commit install

# The wheel and the sdist, in dist/, once what they hold and weigh has been checked.
package: $(VENV)/ready
	$(PYTEST) tests/test_package.py
	rm -rf dist
	$(BIN)/python -m hatchling build

# The oldest versions that pyproject.toml allows, in an environment of their own (several GB).
floors: $(VENV)/ready
	$(BIN)/python .ci/floors.py

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What the demo needs is small; the tests also need the libraries that the package works with.
$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[demo]"
	touch $@

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[dev]"
	touch $@ $(VENV)/demo

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage resemblance-demo
