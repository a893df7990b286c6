# `make` alone lists the targets. Each target does its own set-up; a set-up that is complete takes no time.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-failover test test-deep lint bench envelope lock clean

PYTHON := .venv/bin/python
# What needs root (the sandbox of an emulation) goes through sudo for everybody else; results stay the user's (SUDO_UID).
# Root must not leave compiled files in a user's folders.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E env PYTHONDONTWRITEBYTECODE=1)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup:  ## install what is missing: Debian packages and .venv (says first what it will do)
	@bash vagrant/setup.sh

demo: setup  ## the main job: ZCube against ROFT, emulated, with a report
	$(AS_ROOT) .venv/bin/zcube compare --demo

demo-failover: setup  ## a cable fails under load on ROFT and on ZCube: timeline of the repair
	$(AS_ROOT) .venv/bin/zcube failover

# Each worker loads every file it is given, so those that need root get theirs alone.
ROOT_TESTS = $(shell grep -l "mark\.root" tests/test_*.py)
PYTEST = $(AS_ROOT) $(PYTHON) -B -m pytest -q -p no:cacheprovider --durations=15 $(DEEP)

test:  ## set-up with the test tools, then all checks and all tests (those marked root too)
	@bash vagrant/setup.sh --dev
	@$(MAKE) --no-print-directory lint
	$(PYTEST) -m "not root" -n auto --dist worksteal
	$(PYTEST) -m "root and not alone" -n 4 --dist loadscope --no-loadscope-reorder $(ROOT_TESTS)
	$(PYTEST) -m "root and alone" $(ROOT_TESTS)

test-deep:  ## the same with the tests that are left out as others cover them, and more examples of each property
	@$(MAKE) --no-print-directory test DEEP=--deep

lint:  ## ruff, mypy, import-linter
	@bash vagrant/setup.sh --dev
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

bench: setup  ## what this machine can carry: 16,384-GPU fabrics and simulations, traces, controller, packet budget, links
	$(PYTHON) -m topologies.bench
	$(PYTHON) -m traffic.bench
	$(PYTHON) -m simulation.bench
	$(AS_ROOT) $(PYTHON) -m emulation.bench_controller
	$(AS_ROOT) $(PYTHON) -m emulation.bench
	$(AS_ROOT) $(PYTHON) -m emulation.envelope --kinds zcube --most-steps 4

envelope: setup  ## up to which load this machine is faithful: ZCube and ROFT at 32 and 64 GPUs, about 40 minutes
	$(AS_ROOT) $(PYTHON) -m emulation.envelope --gpus 32 64

lock:  ## make the lock files anew after a change in pyproject.toml
	@bash vagrant/lock.sh

clean:  ## remove .venv and caches, never results
	rm -rf .venv .venv.stale .pytest_cache .ruff_cache .mypy_cache .import_linter_cache *.egg-info build
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
