# The two commands of the README: `make demo` and `make test`. Both do everything from nothing.
#
# Variables:
#   PYTHON=python3.12   the interpreter to build .venv with (default: the first of 3.11, 3.12 that runs)
#   PIP_EXTRA=...       further options for pip (default: PyTorch's public index of CPU builds, where it can be
#                       reached; without it pip would fetch the CUDA build of torch; `PIP_EXTRA=` turns it off)
#   TESTS=tests/wire    what `make test` and `make fuzz` run (default: everything);  PYTEST="-x -k kill": further options
#                       of `make test`
#   MINUTES=10          how long `make fuzz` searches and `make mutants` tries
#   BUGS="one two"      what `make zoo` plants (default: every bug)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# A cluster is a dozen processes: each would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install protos released stubs demo test zoo late fuzz mutants clients lint lock clean

VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
STUBS := dunlin/v1/.made
PROTOS := $(wildcard proto/dunlin/v1/*.proto)
KERNELS := $(wildcard dunlin/engine/*/native/*.cpp dunlin/engine/*/native/*.h)
CODE := $(wildcard cli dunlin services simulator tests benchmarks examples deploy hatch_build.py)
TYPED := $(wildcard cli dunlin services simulator tests benchmarks examples deploy)

CPU_INDEX := https://download.pytorch.org/whl/cpu
# Asked once and only when something is to be installed: pip itself would retry an unreachable index for minutes.
REACHES_CPU_INDEX = $(PY) -c 'import urllib.request as r; r.urlopen("$(CPU_INDEX)/torch/", timeout=10)' 2>/dev/null
PIP_EXTRA ?= $(shell $(REACHES_CPU_INDEX) && echo --extra-index-url $(CPU_INDEX))
# What CI checks it checks once: a sixth of the time would go into a cache.
MYPY_CACHE = $(if $(CI),--cache-dir=/dev/null)
TESTS ?= tests
PYTEST ?=
MINUTES ?= 10
BUGS ?=

# A name on PATH may be a stub that only prints an error, so each candidate is run.
find_python = $(shell for p in $(PYTHON) python3.11 python3.12 python3 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1 \
	&& { echo "$$p"; break; }; done)

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | expand -t 10

install: $(INSTALLED) $(STUBS) ## .venv with the locked dependencies, the stubs and the dunlin command

$(PY):
	@python="$(find_python)"; \
	test -n "$$python" || { echo "make: no Python 3.11 or 3.12 with venv found on PATH; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	echo "creating $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

# pip would compile 14,000 modules for a minute, of which a tenth is ever imported: those are compiled then. It takes one
# core, so the kernels are built beside it.
$(INSTALLED): requirements/ci.lock pyproject.toml hatch_build.py | $(PY)
	$(PY) hatch_build.py kernels & kernels=$$!; \
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_EXTRA) -r requirements/ci.lock; \
	wait $$kernels
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	$(PY) -c 'import torch, transformers, grpc, aiohttp, openai'
	@touch $@

protos: $(INSTALLED) ## the .proto files of the messages (dunlin/messages), and the stubs
	$(PY) -m dunlin.wire.protos
	$(PY) hatch_build.py
	@touch $(STUBS)

# etcd.proto is etcd's.
released: protos ## at a release: keep what is on the wire now, for the compatibility test to compare with
	$(PY) -m grpc_tools.protoc --proto_path=proto --descriptor_set_out=proto/released.binpb \
	    $(filter-out %/etcd.proto,$(PROTOS))

stubs: $(STUBS) ## the protobuf stubs in dunlin/v1, and the C++ kernels where there is a compiler

$(STUBS): $(PROTOS) $(KERNELS) hatch_build.py | $(INSTALLED)
	$(PY) hatch_build.py
	@touch $@

demo: install ## a small cluster at work: chats, a burst of load, kills, a drain, an explanation
	$(PY) examples/demo.py

# Three processes, on two cores: tests that wait for clusters in one, all others in two, for they wait for engines and
# other processes a third of the time (tests/conftest.py says which go where).
test: install ## every test, in three processes (PYTEST="-n 0": in one)
	PYTHONHASHSEED=0 $(PY) -m pytest -n 3 --dist loadfile $(PYTEST) $(TESTS)

zoo: install ## plant bugs in the cores, one at a time; the campaign must catch each (BUGS="leaked-slots": these alone)
	$(PY) -m tests.zoo $(BUGS)

# What a thread does to others: each fifth such call of it returns 20 ms late, its third first. Outside pytest, so that
# the processes which tests start are late too.
LATE = write,writev,sendmsg,sendto,kill,rename,connect,unlink
late: install ## tests whose system calls come late, and those of what they start: finds what holds by luck (needs strace)
	strace -f -qq --seccomp-bpf -o /dev/null -e trace=$(LATE) -e inject=$(LATE):delay_exit=20000:when=3+5 \
	    $(PY) -m pytest -n 2 --dist loadfile $(PYTEST) $(TESTS)

fuzz: install ## random search of the property tests and state machines, for MINUTES; says what to replay
	$(PY) -m benchmarks.fuzzing.properties --minutes $(MINUTES) $(TESTS)

mutants: install ## small changes of the code, for MINUTES: does a test notice? Goes on where the last run ended
	$(PY) -m benchmarks.mutation.mutants --minutes $(MINUTES)

clients: install ## real clients against a cluster: a table of what was served, refused, broken (4 GB of environments)
	$(PY) -m benchmarks.clients.compatibility

lint: install ## ruff and mypy --strict
	$(PY) -m ruff check $(CODE)
	$(PY) -m mypy --strict $(MYPY_CACHE) $(TYPED)

lock: $(PY) ## write requirements/ci.lock anew from the newest versions that pyproject.toml allows
	$(PY) requirements/lock.py $(PIP_EXTRA)

clean: ## remove everything that make made
	rm -rf $(VENV) dunlin/v1 build dist .mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis
