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

demo: .venv/demo  ## fine-tune a real model, compare ways to prune its heads, save a smaller one
	@echo "1 of 4: fine-tuning MiniLM on movie reviews (once; it stays in demo/tuned)"
	$(BIN)/espalier train minilm --task demo --epochs 2 --rate 1e-4 --output demo/tuned
	@echo "2 of 4: Greedy-Gnorm beside its baselines, from 72 heads to none"
	$(BIN)/espalier compare demo/tuned --task demo --output demo/run \
	  --by gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,random:5 \
	  --every 12 --step 6 --calibrate 64 --validate 250 --test 400
	@echo "3 of 4: the smaller model, as far as validation accuracy stays within a point"
	$(BIN)/espalier prune demo/tuned --task demo --by gnorm --within 0.01 --from demo/run \
	  --calibrate 64 --validate 250 --test 400 --output demo/small
	@echo "4 of 4: loaded again by plain transformers"
	$(BIN)/python examples/use_a_pruned_model.py demo/small

test: .venv/dev  ## every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: .venv/dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev  ## the support tables, made from the architectures
	$(BIN)/python -m espalier.architectures.support docs/support.md README.md

bench: .venv/dev  ## the benchmarks; they print tables and write benchmarks/results
	$(BIN)/python benchmarks/greedy_speed.py
	$(BIN)/python benchmarks/greedy_scaling.py
	$(BIN)/python benchmarks/cut.py
	$(BIN)/python benchmarks/encodings.py
	$(BIN)/python -m benchmarks.torch_pruning
	$(BIN)/python benchmarks/lottery.py

clean:  ## remove what make made
	rm -rf .venv demo
