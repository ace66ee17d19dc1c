# make run: watch the engine.  make test: everything that must be green.  Both set up what they need.
# make test WORKERS=4: in so many processes, instead of one for each core.
PYTHON ?= python3
VENV := .venv
WORKERS ?= auto
INSTALLED := $(VENV)/.installed

.PHONY: run test check format clean

run: $(INSTALLED)
	@$(VENV)/bin/nanoviz $(ARGS)

test: check
	$(VENV)/bin/pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal

check: $(INSTALLED)
	$(VENV)/bin/ruff format --check app engine tests
	$(VENV)/bin/ruff check app engine tests
	$(VENV)/bin/mypy

format: $(INSTALLED)
	$(VENV)/bin/ruff format app engine tests
	$(VENV)/bin/ruff check --fix app engine tests

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nanoviz needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
