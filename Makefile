# Everything a newcomer needs: `make demo` and `make test` work on a machine with Python, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format clean

demo: $(VENV)/demo
	$(BIN)/resemblance demo

test: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

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
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis resemblance-demo
