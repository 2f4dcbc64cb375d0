PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock
PEER ?=
BEFORE ?=
SLICE ?=
TURNS ?= --by-turns
HANGS := -o faulthandler_exit_on_timeout=true --max-worker-restart=0  # a hang ends the run, named
INSTALLED := pyproject.toml requirements.lock hatch_build.py node/store/native.h node/store/log_native.c node/broker/plain_native.c rocketbed/world/sync_native.c

.PHONY: demo test test-all test-slow test-peer check bench bench-spark clean

demo: $(VENV)/.demo  ## set up; a cluster under kills, checked and reported
	$(BIN)/rocketbed demo $(DEMO)

test: $(VENV)/.test  ## set up; what needs only Python, of the longer tests a third (docs/testing.md)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(HANGS) --durations=40 --durations-min=5 -m "not slow and not peer" $(TURNS)

test-all:  ## all of that, and what takes long
	$(MAKE) test TURNS=
	$(MAKE) test-slow

test-slow: $(VENV)/.test  ## what takes long, alone; SLICE=OPTIONS runs a part (docs/testing.md)
	$(BIN)/python -m pytest -q -m "slow and not peer" $(SLICE)

test-peer: $(VENV)/.test  ## beside a real RocketMQ (Java 17, Maven, npm, Docker)
	$(BIN)/python -m pytest -q -m peer $(SLICE)

check: $(VENV)/.lint  ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(VENV)/.test  ## measure; PEER=DIR (RocketMQ's jars) or BEFORE=DIR (a checkout) compares
	$(BIN)/python -m bench $(if $(PEER),--peer $(PEER)) $(if $(BEFORE),--before $(BEFORE))

bench-spark: $(VENV)/.test  ## measure the pipeline on Spark
	$(BIN)/python -m bench.spark

clean:  ## remove what the targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .peer .docker out

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[chaos]'
	touch $@

$(VENV)/.test: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[chaos,spark,connect,test]'
	touch $@ $(VENV)/.demo

$(VENV)/.lint: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[chaos,spark,connect,test,lint]'
	touch $@ $(VENV)/.demo $(VENV)/.test
