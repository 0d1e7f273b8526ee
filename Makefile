# Works with GNU make 3.81, which macOS has. Measurements never run in parallel.
.NOTPARALLEL:
.DEFAULT_GOAL := help

override ENV := .venv
override PY  := $(ENV)/bin/python
PYTHON  ?=
EXTRAS  ?=
TORCH   ?=
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
export POMOLOGY_EXTRAS = $(value EXTRAS)
export POMOLOGY_TORCH = $(value TORCH)
# Packages come from the environment and this checkout alone.
export PYTHONPATH := $(CURDIR)/lib
export PYTHONNOUSERSITE = 1
unexport PYTHONHOME PYTHONUSERBASE PYTHONSTARTUP
unexport PROFILE DEVICE ONLY RUN DATA REPEATS MINUTES VERSIONS RUNS WITH STORE NOTEBOOKS SCHEDULER HOSTS INSECURE PYTHON EXTRAS TORCH

# Makes .venv where it is missing, and does nothing where it is what the lock says.
ENVIRONMENT := sh setup/environment.sh
ready:
	@$(ENVIRONMENT) $(if $(findstring ://,$(value STORE)),store) $$POMOLOGY_EXTRAS
dev:
	@$(ENVIRONMENT) dev $$POMOLOGY_EXTRAS

help:  ## this list
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -e 's/:.*## /	/' | expand -t 12
	@echo "variables: PROFILE=smoke|quick|article DEVICE=auto|cpu|gpu|cuda|mps ONLY='names or globs' RUN=name"
	@echo "           DATA=auto|real|stand-in REPEATS=n MINUTES=n STORE=address"
	@echo "           PYTHON=path EXTRAS='fleet store cuda' TORCH=cpu"

reproduce: ready  ## run every notebook on this machine and build the page of results
	@$(PY) -m pomology reproduce --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" --only="$$POMOLOGY_ONLY" \
	  --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA" --repeats="$${POMOLOGY_REPEATS:-1}" \
	  --minutes="$${POMOLOGY_MINUTES:-0}" --store="$$POMOLOGY_STORE"

test: dev  ## run all tests
	@$(PY) -m pytest -n auto --dist=loadfile

lab: ready  ## explore the notebooks in JupyterLab
	@$(PY) lab/prepare.py
	@echo "JupyterLab opens in your browser; Ctrl-C, twice, ends it"
	@JUPYTER_NO_CONFIG=1 TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR=1 \
	  $(PY) -m jupyterlab --config=lab/jupyter_lab_config.py

env:  ## make the environment in .venv, with EXTRAS="fleet store cuda"
	@$(ENVIRONMENT) $$POMOLOGY_EXTRAS

lint: dev  ## check style, layers, notebooks, parameter files and workflows
	@$(ENV)/bin/ruff check .
	@$(ENV)/bin/ruff format --check .
	@$(ENV)/bin/nbstripout --verify --keep-id notebooks/*.ipynb notebooks/*/*.ipynb
	@$(ENV)/bin/lint-imports --no-cache --no-logo
	@$(ENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(ENV)/bin/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@if command -v actionlint >/dev/null; then actionlint; else echo "actionlint is not installed: skipped"; fi
	@$(PY) -m pomology check

docs: ready  ## write the generated tables of docs/
	@$(PY) setup/docs.py

bench: dev  ## measure what the clock itself costs a step
	@$(PY) tests/bench.py

report: ready  ## build the page of a run again: RUN=name, beside other people's: WITH="b.zip 'c d.zip'"
	@$(PY) -m pomology report --store="$$POMOLOGY_STORE" --with="$$POMOLOGY_WITH" -- "$$POMOLOGY_RUN"

share: ready  ## pack a run into a zip for others, without what names you: RUN=name, with rendered notebooks NOTEBOOKS=1
	@$(PY) -m pomology share $(if $(filter 1,$(value NOTEBOOKS)),--notebooks) -- "$$POMOLOGY_RUN"

compare: ready  ## compare runs and shared zips, side by side: RUNS="a b.zip 'c d.zip'"
	@$(PY) -m pomology compare --runs="$$POMOLOGY_RUNS" --store="$$POMOLOGY_STORE"

fleet:  ## run on many machines: SCHEDULER=tls://host:port or HOSTS="user@a user@b", and what reproduce takes
	@$(ENVIRONMENT) fleet store
	@$(PY) -m pomology fleet --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" --only="$$POMOLOGY_ONLY" \
	  --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA" --repeats="$${POMOLOGY_REPEATS:-1}" \
	  --scheduler="$$POMOLOGY_SCHEDULER" --hosts="$$POMOLOGY_HOSTS" --store="$$POMOLOGY_STORE" $(if $(filter 1,$(value INSECURE)),--insecure)

matrix: ready  ## compare versions, measured in turn: VERSIONS="torch==2.13.0 torch==2.14.1" ONLY="vae" REPEATS=5
	@$(PY) -m pomology matrix --versions="$$POMOLOGY_VERSIONS" --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" \
	  --only="$$POMOLOGY_ONLY" --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA" --repeats="$${POMOLOGY_REPEATS:-5}"

lock:  ## resolve the dependencies again and write requirements.txt (needs uv)
	@uv run --quiet --no-project --python '>=3.11' --with packaging python setup/lock.py

audit:  ## look the lock up among known vulnerabilities (needs uv, and the network)
	@command -v uv >/dev/null || { echo "make audit: needs uv, which is not installed"; exit 1; }
	@said=$$(uv tool run pip-audit --strict --disable-pip --require-hashes -r requirements.txt 2>&1); status=$$?; \
	case "$$said" in \
	  *"known vulnerabilit"*) printf '%s\n' "$$said" ;; \
	  *) echo "make audit: could not be looked up: $$(printf '%s\n' "$$said" | tail -n 1)" ;; \
	esac; exit $$status

clean:  ## remove the environments and unfinished notebooks; results stay
	rm -rf $(ENV) .venv-uv .venv-matrix outputs/*/.partial

.PHONY: help ready dev reproduce test lab env lint docs bench report share compare fleet matrix lock audit clean
