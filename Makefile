# make demo    set up, then make a clip with the demo model on 4 CPU ranks
# make test    set up, then run the tests
# make test-fast   the tests of rules, words and files, which need no torch
# make test-properties   random requests and files, every suggestion, the fit of the planner: minutes without torch
# make check   what CI runs: lint, the order of the rooms, spelling, types, tests
# make coverage   which lines the tests run
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIP := demo-clip.mp4

.PHONY: demo test test-fast test-properties test-ranks check lint types coverage clean

# Dependencies are installed again only when their lists change.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV), once, in a few minutes: 1.6 GB with a CPU build of torch, several GB with PyPI's"
	@echo "build, which brings CUDA. For the CPU build install torch 2.13.0 into $(VENV) first, as pytorch.org says."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/hybridgen run --model demo -p "a red circle moves right" --cfg 2 --ulysses 2 --vae 2 \
		--out $(CLIP) --preview $(CLIP:.mp4=.png) --overwrite
	@echo "The video is $(CURDIR)/$(CLIP), ten of its frames are in $(CURDIR)/$(CLIP:.mp4=.png)"

test: test-fast test-properties test-ranks

test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/arithmetic

test-properties: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/properties

test-ranks: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/ranks

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

types: $(VENV)/.installed
	$(BIN)/mypy

check: lint types test

coverage: $(VENV)/.installed
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
