# Works with GNU make 3.81, which macOS has. Measurements never run in parallel.
.NOTPARALLEL:
.DEFAULT_GOAL := help

ifndef PYTHON
PYTHON  := $(shell command -v python3.11 2>/dev/null || command -v python3 2>/dev/null)
endif
override ENV := .venv
override PY  := $(ENV)/bin/python
PROFILE ?= quick
DEVICE  ?= auto
ONLY    ?=
RUN     ?=
DATA    ?= auto
REPEATS ?=
MINUTES ?=
RUNS    ?=
VERSIONS ?=
WITH    ?=
STORE   ?=
NOTEBOOKS ?=
SCHEDULER ?=
HOSTS   ?=
INSECURE ?=

# Programs get these by the environment, as they were typed: a shell, or make, would run commands in them.
export POMOLOGY_PROFILE = $(value PROFILE)
export POMOLOGY_DEVICE = $(value DEVICE)
export POMOLOGY_ONLY = $(value ONLY)
export POMOLOGY_RUN = $(value RUN)
export POMOLOGY_DATA = $(value DATA)
export POMOLOGY_REPEATS = $(value REPEATS)
export POMOLOGY_VERSIONS = $(value VERSIONS)
export POMOLOGY_MINUTES = $(value MINUTES)
export POMOLOGY_RUNS = $(value RUNS)
export POMOLOGY_WITH = $(value WITH)
export POMOLOGY_STORE = $(value STORE)
export POMOLOGY_SCHEDULER = $(value SCHEDULER)
export POMOLOGY_HOSTS = $(value HOSTS)
export POMOLOGY_PYTHON = $(value PYTHON)
unexport PROFILE DEVICE ONLY RUN DATA REPEATS MINUTES VERSIONS RUNS WITH STORE NOTEBOOKS SCHEDULER HOSTS INSECURE PYTHON

help:  ## this list
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -e 's/:.*## /	/' | expand -t 12
	@echo "variables: PROFILE=smoke|quick|article DEVICE=auto|cpu|gpu|cuda|mps ONLY='names or globs' RUN=name"
	@echo "           DATA=auto|real|stand-in REPEATS=n MINUTES=n STORE=address"

reproduce: $(ENV)/.ready  ## run every notebook on this machine and build the page of results
	@$(PY) -m pomology reproduce --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" --only="$$POMOLOGY_ONLY" \
	  --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA" --repeats="$${POMOLOGY_REPEATS:-1}" \
	  --minutes="$$POMOLOGY_MINUTES" --store="$$POMOLOGY_STORE"

test: $(ENV)/.ready  ## run all tests
	@$(PY) -m pytest -n auto --dist=loadfile

lab: $(ENV)/.ready  ## explore the notebooks in JupyterLab
	@$(PY) lab/prepare.py
	@echo "JupyterLab opens in your browser; Ctrl-C, twice, ends it"
	@JUPYTER_NO_CONFIG=1 TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR=1 \
	  $(PY) -m jupyterlab --config=lab/jupyter_lab_config.py

env: $(ENV)/.ready  ## make the environment in .venv

lint: $(ENV)/.ready  ## check style, floors, words, notebooks and parameter files
	@$(ENV)/bin/ruff check .
	@$(ENV)/bin/ruff format --check .
	@$(ENV)/bin/nbstripout --verify --keep-id notebooks/*.ipynb notebooks/*/*.ipynb
	@$(ENV)/bin/lint-imports --no-cache --no-logo
	@$(PY) tests/house.py
	@$(PY) -m pomology check

bench: $(ENV)/.ready  ## measure the measuring, against independent ways to measure
	@$(PY) tests/bench.py

report: $(ENV)/.ready  ## build the page of a run again: RUN=name, beside other people's: WITH="b.zip 'c d.zip'"
	@$(PY) -m pomology report --store="$$POMOLOGY_STORE" --with="$$POMOLOGY_WITH" -- "$$POMOLOGY_RUN"

share: $(ENV)/.ready  ## pack a run into a zip for others, without what names you: RUN=name, with rendered notebooks NOTEBOOKS=1
	@$(PY) -m pomology share $(if $(filter 1,$(value NOTEBOOKS)),--notebooks) -- "$$POMOLOGY_RUN"

compare: $(ENV)/.ready  ## compare runs and shared zips, side by side: RUNS="a b.zip 'c d.zip'"
	@$(PY) -m pomology compare --runs="$$POMOLOGY_RUNS" --store="$$POMOLOGY_STORE"

fleet: $(ENV)/.ready  ## run on many machines: SCHEDULER=tls://host:port or HOSTS="user@a user@b", and what reproduce takes
	@$(PY) -m pomology fleet --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" --only="$$POMOLOGY_ONLY" \
	  --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA" --repeats="$${POMOLOGY_REPEATS:-1}" \
	  --scheduler="$$POMOLOGY_SCHEDULER" --hosts="$$POMOLOGY_HOSTS" --store="$$POMOLOGY_STORE" $(if $(filter 1,$(value INSECURE)),--insecure)

matrix: $(ENV)/.ready  ## compare versions, measured in turn: VERSIONS="torch==2.13.0 torch==2.14.1" ONLY="vae" REPEATS=5
	@$(PY) -m pomology matrix --versions="$$POMOLOGY_VERSIONS" --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" \
	  --only="$$POMOLOGY_ONLY" --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA" --repeats="$${POMOLOGY_REPEATS:-5}"

lock: pyproject.toml  ## resolve the dependencies again (needs uv): constraints.txt, their hashes.txt and wheels-macos.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --extra dev --extra offload --no-header --no-annotate --no-emit-index-url -o constraints.txt
	@"$$POMOLOGY_PYTHON" tests/wheels.py

audit:  ## look the lock up among known vulnerabilities (needs uv, and the network)
	@command -v uv >/dev/null || { echo "make audit: needs uv, which is not installed"; exit 1; }
	@said=$$(uv tool run pip-audit --strict --disable-pip --require-hashes -r hashes.txt 2>&1); status=$$?; \
	case "$$said" in \
	  *"known vulnerabilit"*) printf '%s\n' "$$said" ;; \
	  *) echo "make audit: could not be looked up: $$(printf '%s\n' "$$said" | tail -n 1)" ;; \
	esac; exit $$status

clean:  ## remove the environments and unfinished notebooks; results stay
	rm -rf $(ENV) .venv-matrix outputs/*/.partial

# First what has hashes, by its hashes: on a Mac all of it. Then the rest, with the lock as constraints, which asks for
# nothing that is not needed: on Linux PyTorch, of which a build for CPUs only has other hashes than PyPI's, and its CUDA.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
$(ENV)/.ready: pyproject.toml constraints.txt hashes.txt
	@test -n "$$POMOLOGY_PYTHON" && "$$POMOLOGY_PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "pomology needs Python 3.11; say where it is: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	@echo "making the environment in $(ENV): a few minutes, 4 GB"
	@"$$POMOLOGY_PYTHON" -m venv $(ENV)
	@$(PIP) --no-deps --require-hashes -r hashes.txt
	@$(PIP) --no-build-isolation -e '.[dev]' -c constraints.txt
	@touch $@

.PHONY: help reproduce test lab env lint bench report share compare fleet matrix lock audit clean
