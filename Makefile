# Two words do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test check fix docs bench clean
.DEFAULT_GOAL := help

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 8

.venv/python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo: .venv/python pyproject.toml constraints.txt
	@echo "installing espalier and a real model into .venv (once)"
	$(PIP) --editable '.[demo]'
	@touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	@echo "installing espalier and its tools into .venv (once)"
	$(PIP) --editable '.[dev]'
	@touch $@

demo: .venv/demo  ## cut a real model, save it, load it, say what came of it
	$(BIN)/python examples/cut_and_reload.py

test: .venv/dev  ## every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: .venv/dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev  ## the support tables, made from the anatomies
	$(BIN)/python -m espalier.support docs/support.md README.md

bench: .venv/dev  ## the benchmarks; they print tables and write benchmarks/results
	$(BIN)/python benchmarks/cut.py
	$(BIN)/python -m benchmarks.torch_pruning

clean:  ## remove what make made
	rm -rf .venv demo-model
