PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock
PEER ?=
BEFORE ?=
SECONDS ?= 600
MUTANTS ?= planted
PYTEST = $(BIN)/python -m pytest -q $(HANGS) --durations=40 --durations-min=5
HANGS := -o faulthandler_exit_on_timeout=true --max-worker-restart=0  # a hang ends the run, named
INSTALLED := pyproject.toml requirements.lock hatch_build.py rocketbed/__init__.py node/store/native.h node/store/log_native.c node/broker/plain_native.c rocketbed/world/sync_native.c

.PHONY: demo test test-all test-slow test-peer test-slow-ci test-peer-ci coverage fuzz mutants check dist bench bench-spark clean

demo: $(VENV)/.demo  ## set up; a cluster under kills, checked and reported
	$(BIN)/rocketbed demo $(DEMO)

test: $(VENV)/.test  ## set up; the same quick tests at every commit
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not peer"

test-all: test test-slow  ## that, and what takes long or needs a system's tools

test-slow: $(VENV)/.test  ## what takes long, alone
	$(PYTEST) -m "slow and not peer"

test-peer: $(VENV)/.test  ## beside a real RocketMQ (Java 17, Maven, npm, Go, Docker)
	$(PYTEST) -m peer

test-slow-ci test-peer-ci: $(VENV)/.test  ## of those two, the part that .ci/run runs
	$(PYTEST) -m "ci and $(if $(findstring peer,$@),peer,not peer)"

coverage: $(VENV)/.test  ## lines and branches that `make test` runs, with its child processes
	rm -rf out/coverage && mkdir -p out/coverage
	$(BIN)/coverage run -m pytest -q $(HANGS) -n 2 --dist loadfile -m "not slow and not peer"
	$(BIN)/coverage combine -q
	$(BIN)/coverage html -q
	$(BIN)/coverage report --format=total

fuzz: $(VENV)/.test  ## fresh seeds for SECONDS; keeps what they find in out/fuzz, never fails
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

mutants: $(VENV)/.test  ## planted bugs: does the testbed find them? MUTANTS=generated, --help
	$(BIN)/python -m tests.mutation $(MUTANTS)

check: $(VENV)/.lint  ## format, lint, types, import directions, workflow files, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.dist  ## build sdist and wheels into dist/; each is installed and runs a client
	$(BIN)/python -m tools.dist

bench: $(VENV)/.test  ## measure; PEER=DIR (RocketMQ's jars) or BEFORE=DIR (a checkout) compares
	$(BIN)/python -m bench $(if $(PEER),--peer $(PEER)) $(if $(BEFORE),--before $(BEFORE))

bench-spark: $(VENV)/.test  ## measure the pipeline on Spark
	$(BIN)/python -m bench.spark

clean:  ## remove what the targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .peer .docker dist out

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[chaos]'
	touch $@

$(VENV)/.test: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[chaos,spark,connect,test,dist]'
	touch $@ $(VENV)/.demo $(VENV)/.dist

$(VENV)/.dist: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[dist]'
	touch $@

$(VENV)/.lint: $(INSTALLED) | $(VENV)/bin/python
	$(PIP) --editable '.[chaos,spark,connect,test,dist,lint,docs]'
	touch $@ $(VENV)/.demo $(VENV)/.dist $(VENV)/.test
