# Every target works in a fresh clone: it needs Python >= 3.11, make and a package index.
# Another interpreter: make run PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help run test test-data test-all test-slow test-device test-settings wheel lint format docs notebooks bench bench-solvers bench-adjoints bench-training \
	bench-digits bench-mnist clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' \
		| while IFS='|' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

# --- the environment: .venv/docs.stamp says that the extra [docs] is installed --------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "equilibria needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

# --- what a newcomer types -----------------------------------------------------------------------

# Continues an earlier run; one that cannot be continued is left alone, and the next name is taken.
run: $(VENV)/cli.stamp  ## train a deep equilibrium network on real images, draw its report
	@run=runs/digits; count=1; \
	while :; do \
		test -e $$run; new=$$?; \
		$(BIN)/equilibria train digits --out $$run --auto-resume; status=$$?; \
		if [ $$status -ne 1 ] || [ $$new -ne 0 ]; then break; fi; \
		count=$$((count + 1)); run=runs/digits-$$count; \
	done; \
	[ $$status -eq 0 ] || exit $$status; \
	$(BIN)/equilibria memory $$run && \
	$(BIN)/equilibria report $$run && \
	printf '\n  The page:       %s\n  The run folder: %s\n  What next:      %s\n\n' \
		$$run/report.html $$run "$(BIN)/equilibria doctor $$run"

test: $(VENV)/dev.stamp  ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --dist worksteal -m 'not slow'

test-data: $(VENV)/dev.stamp  ## run the tests that read real data sets, in EQUILIBRIA_DATA
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --dist worksteal -m 'data and not slow'

test-all: $(VENV)/dev.stamp  ## run the tests, those that take minutes too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --dist worksteal

test-slow: $(VENV)/dev.stamp  ## run those that take minutes alone
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --dist worksteal -m slow

test-device: $(VENV)/dev.stamp  ## run those that need a CUDA device
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "torch finds no CUDA device")'
	EQUILIBRIA_TEST_DEVICE=1 $(BIN)/python -m pytest -m 'device and not slow'

test-settings: $(VENV)/dev.stamp  ## numerical tests under settings of BLAS, torch and threads; TESTS=tests/solve
	$(BIN)/python tests/settings.py $(TESTS)

wheel: $(VENV)/dev.stamp  ## build the package, use it in an environment that has the core alone
	$(BIN)/python tests/wheel.py

lint: $(VENV)/dev.stamp  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/dev.stamp  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs.stamp  ## build the pages into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@printf '\n  The pages: %s\n\n' 'docs/_build/html/index.html'

notebooks: $(VENV)/notebooks.stamp  ## execute the notebooks, and save their outputs
	$(BIN)/python tests/notebooks.py --save

bench: bench-solvers bench-adjoints bench-training  ## measure solvers and gradients beside peers

bench-solvers: $(VENV)/bench.stamp  ## solvers beside torchdeq and SciPy, 10 minutes
	$(BIN)/equilibria reproduce bench/solvers

bench-adjoints: $(VENV)/bench.stamp  ## gradients beside the exact ones, 5 minutes
	$(BIN)/equilibria reproduce bench/adjoints

bench-training: $(VENV)/bench.stamp  ## training steps beside torchdeq's, 10 minutes
	$(BIN)/equilibria reproduce bench/training

bench-digits: $(VENV)/bench.stamp  ## digits with three seeds, 3 minutes
	$(BIN)/equilibria reproduce digits/training --only recipe=digits

bench-mnist: $(VENV)/bench.stamp  ## MNIST, 10 minutes
	$(BIN)/equilibria reproduce digits/training --only recipe=mnist

clean:  ## remove what the targets above made, runs/ excepted
	rm -rf $(VENV) docs/_build dist build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
