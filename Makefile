# Works with GNU make 3.81, the version of macOS. Measurements never run in parallel.
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

# Programs get these from the environment as typed: a shell, or make, would run commands in them.
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
# Packages come from .venv and this checkout only.
export PYTHONPATH := $(CURDIR)/lib
export PYTHONNOUSERSITE = 1
unexport PYTHONHOME PYTHONUSERBASE PYTHONSTARTUP PYTHONOPTIMIZE PYTHONSAFEPATH PYTHONWARNINGS
unexport PYTHONINSPECT PYTHONVERBOSE PYTHONDEBUG MPLBACKEND
# Each kernel imports thousands of modules. Without their bytecode it compiles all of them.
unexport PYTHONDONTWRITEBYTECODE
unexport PROFILE DEVICE ONLY RUN DATA REPEATS MINUTES VERSIONS RUNS WITH STORE NOTEBOOKS
unexport SCHEDULER HOSTS INSECURE PYTHON EXTRAS TORCH

# Creates or updates .venv, which is a link where an active environment has what is needed; does
# nothing if it matches requirements.txt.
ENVIRONMENT := sh setup/environment.sh
ready:
	@$(ENVIRONMENT) $(if $(findstring ://,$(value STORE)),store) $$POMOLOGY_EXTRAS
dev:
	@$(ENVIRONMENT) dev $$POMOLOGY_EXTRAS

help:  ## list the targets and variables
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -e 's/:.*## /	/' | expand -t 12
	@echo "variables:  PROFILE=smoke|quick|article DEVICE=auto|cpu|gpu|cuda|mps ONLY='names or globs'"
	@echo "            RUN=name DATA=auto|real|synthetic REPEATS=n MINUTES=n STORE=address"
	@echo "            PYTHON=path EXTRAS='fleet store cuda' TORCH=cpu"

override SELECTION = --profile="$$POMOLOGY_PROFILE" --device="$$POMOLOGY_DEVICE" \
  --only="$$POMOLOGY_ONLY" --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA"

reproduce: ready  ## run all notebooks on this machine and build the report
	@$(PY) -P -m pomology reproduce $(SELECTION) --repeats="$${POMOLOGY_REPEATS:-1}" \
	  --minutes="$${POMOLOGY_MINUTES:-0}" --store="$$POMOLOGY_STORE"

quickcheck: ready  ## three minutes that the collection of runs accepts: RUN=name
	@$(PY) -P -m pomology reproduce --only="instrument_check peaks vae gpt2_small" \
	  --device="$$POMOLOGY_DEVICE" --run="$$POMOLOGY_RUN" --data="$$POMOLOGY_DATA"

test: dev  ## run the tests, in a few minutes
	@$(PY) -P -m pytest -n auto --dist=loadfile -m "not long and not machines"

test-all: dev  ## run the long sweeps that `make test` leaves out
	@$(PY) -P -m pytest -n auto --dist=loadfile -m long

test-machines: dev  ## run all notebooks as on a Mac and an NVIDIA machine, in half an hour
	@$(PY) -P -m pytest -n auto --dist=loadfile -m machines

lab: ready  ## open the notebooks in JupyterLab
	@$(PY) -P lab/prepare.py
	@echo "JupyterLab opens in your browser; press Ctrl-C twice to stop it"
	@JUPYTER_NO_CONFIG=1 TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR=1 \
	  $(PY) -P -m jupyterlab --config=lab/jupyter_lab_config.py

env:  ## install the environment into .venv: EXTRAS="fleet store cuda"
	@$(ENVIRONMENT) $$POMOLOGY_EXTRAS

lint: dev  ## check style, import layers, notebooks, parameter files and workflows
	@$(ENV)/bin/ruff check .
	@$(ENV)/bin/ruff format --check .
	@$(ENV)/bin/nbstripout --verify --keep-id notebooks/*.ipynb notebooks/*/*.ipynb
	@$(ENV)/bin/lint-imports --no-cache --no-logo
	@$(ENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows \
	  .github/workflows/*.yml
	@$(ENV)/bin/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@$(ENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms \
	  .github/ISSUE_TEMPLATE/run.yml
	@$(ENV)/bin/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	@$(ENV)/bin/zizmor --offline --quiet .github
	@$(PY) -P -m pomology check

docs: ready  ## write the generated tables of docs/
	@PYTHONPATH=setup $(PY) -P setup/docs.py

site: dev  ## build the site: docs, example report, notebooks and pages of devices
	@$(PY) -P setup/site.py

bench: dev  ## measure the overhead of the timer per step
	@$(PY) -P tests/bench.py

report: ready  ## rebuild the report of a run: RUN=name, next to other runs: WITH="b.zip 'c d.zip'"
	@$(PY) -P -m pomology report --store="$$POMOLOGY_STORE" --with="$$POMOLOGY_WITH" -- "$$POMOLOGY_RUN"

share: ready  ## export a run as an anonymized zip: RUN=name, with rendered notebooks: NOTEBOOKS=1
	@$(PY) -P -m pomology share $(if $(filter 1,$(value NOTEBOOKS)),--notebooks) -- "$$POMOLOGY_RUN"

collect: ready  ## check the zips in collection/ and build its page
	@$(PY) -P -m pomology collect

compare: ready  ## compare runs and shared zips: RUNS="a b.zip 'c d.zip'"
	@$(PY) -P -m pomology compare --runs="$$POMOLOGY_RUNS" --store="$$POMOLOGY_STORE"

fleet:  ## run on several machines: SCHEDULER=tls://host:port or HOSTS="user@a user@b"
	@$(ENVIRONMENT) fleet store
	@$(PY) -P -m pomology fleet $(SELECTION) --repeats="$${POMOLOGY_REPEATS:-1}" \
	  --scheduler="$$POMOLOGY_SCHEDULER" --hosts="$$POMOLOGY_HOSTS" --store="$$POMOLOGY_STORE" \
	  $(if $(filter 1,$(value INSECURE)),--insecure)

matrix: ready  ## benchmark versions, interleaved: VERSIONS="torch==2.13.0 torch==2.14.1" ONLY=vae
	@$(PY) -P -m pomology matrix --versions="$$POMOLOGY_VERSIONS" $(SELECTION) \
	  --repeats="$${POMOLOGY_REPEATS:-5}"

lock:  ## resolve the dependencies and write requirements.txt (needs uv)
	@uv run --quiet --no-project --python '>=3.11' --with packaging python setup/lock.py

audit:  ## check requirements.txt for known vulnerabilities (needs uv and the network)
	@command -v uv >/dev/null || { echo "make audit: uv is not installed"; exit 1; }
	@said=$$(uv tool run pip-audit --strict --disable-pip --require-hashes \
	  -r requirements.txt 2>&1); status=$$?; \
	case "$$said" in \
	  *"known vulnerabilit"*) printf '%s\n' "$$said" ;; \
	  *) echo "make audit: pip-audit failed: $$(printf '%s\n' "$$said" | tail -n 1)" ;; \
	esac; exit $$status

clean:  ## remove the environments, the site and unfinished notebooks, but no results
	rm -rf site build collection/.checked $(ENV) .venv-uv .venv-tmp .venv-matrix outputs/*/.partial

.PHONY: help ready dev reproduce quickcheck test test-all test-machines lab env lint docs site bench report share collect compare fleet matrix
.PHONY: lock audit clean
