# `make run` and `make test` set up a virtual environment in .venv first. For CUDA, see the README.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test setup clean

run: setup
	$(BIN)/python run_bench.py --method sd,entropy,pacer --task gsm8k

test: setup
	$(BIN)/python -m pytest

setup: .venv/installed

.venv/installed: pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@echo "Setting up .venv; this takes a minute or two."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e '.[test]'
	@touch $@

clean:
	rm -rf .venv
