# Commands, each doing all of its own set-up:  make demo [ARGS="..."]   make test   make repeats   make soak [ARGS="..."]
# Needs Linux, Python 3.11 or newer and a C++ compiler (vLLM asks for one); everything else is installed
# into .venv here. PYTHON=... chooses the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
STAMP := $(VENV)/.installed
NATIVE := hatch_build.py kernels/memdecay_kernels/native/build.py $(wildcard kernels/memdecay_kernels/native/src/*)

# Where pip is told of a folder of wheels, that folder holds the CPU build of torch; uv is told the same.
# Elsewhere torch comes from the PyTorch CPU index named in pyproject.toml.
ifdef PIP_FIND_LINKS
UV_SOURCES := --no-sources --find-links "$(PIP_FIND_LINKS)"
endif

# Half the engine's threads would wait for a core that is not there; vLLM reads this before it starts.
export OMP_NUM_THREADS ?= $(shell nproc)

.PHONY: demo test repeats soak setup lint types unit clean

demo: setup
	$(BIN)/memdecay demo $(ARGS)

# Two test processes with an engine of one thread each: faster than one engine of two threads. The core's own tests
# cover it; the rest runs without the cost of counting lines.
test: setup lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/core \
		--cov --cov-report=term:skip-covered --cov-fail-under=95 $(PYTEST_ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/core $(PYTEST_ARGS)

# The same behaviours at further sizes.
repeats: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m repeat $(PYTEST_ARGS)

# Minutes of random operations on a real engine with a seeded small model; the figures go to soak.json.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.engine.soak $(ARGS)

setup: $(STAMP)

$(STAMP): pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(UV_SOURCES) -e '.[cpu,dev]'
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -m "not engine and not repeat" $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
