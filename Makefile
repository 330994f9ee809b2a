# `make run` and `make test` set up a virtual environment in .venv first. For CUDA, see the README.
PYTHON ?= python3
BIN := .venv/bin

PAPER := results/paper
RATIOS := 0.01 0.02 0.05 0.1 0.2 0.4 0.8
comma := ,
empty :=
COSTS := $(PAPER)/costs.toml$(subst $(empty) ,,$(foreach r,$(RATIOS),$(comma)$(PAPER)/costs.toml@$(r)))

STANDIN := results/standin
LIMIT ?= 4

.PHONY: run test check paper figures standin setup clean

run: setup
	$(BIN)/python run_bench.py --method sd,entropy,pacer --task gsm8k

test: setup
	$(BIN)/python -m pytest

# Whether a method has become slower, or its output another, since results/baselines/ was written.
check: setup
	$(BIN)/python run_bench.py check --baseline results/baselines/smollm2-135m.json

# Everything that figures/ shows, measured anew: a wall-clock run of every method, traces, costs, replays; then `figures`.
paper: setup
	$(BIN)/python run_bench.py costs --out $(PAPER)/costs.toml
	$(BIN)/python run_bench.py sweep bench/sweeps/methods.toml --out $(PAPER)
	$(BIN)/python run_bench.py collect --split test --limit 100 --max-prompt-tokens 1024 --out $(PAPER)/traces
	$(BIN)/python run_bench.py replay bench/sweeps/methods.toml --costs $(COSTS) --traces $(PAPER)/traces --out $(PAPER) > $(PAPER)/replay.txt
	$(BIN)/python run_bench.py replay bench/sweeps/ablations.toml --costs $(PAPER)/costs.toml --traces $(PAPER)/traces --out $(PAPER) > $(PAPER)/ablations.txt
	$(BIN)/python run_bench.py replay bench/sweeps/sensitivity.toml --costs $(PAPER)/costs.toml --traces $(PAPER)/traces --out $(PAPER) > $(PAPER)/sensitivity.txt
	$(MAKE) figures

# Every method on the stand-in for two CPU cores, beside what a replay says of the same prompts. LIMIT: prompts per task.
standin: setup
	$(BIN)/python run_bench.py costs --pair standin:1b/small --repeats 6 --out $(STANDIN)/costs.toml
	$(BIN)/python run_bench.py sweep bench/sweeps/standin.toml --limit $(LIMIT) --out $(STANDIN)
	$(BIN)/python run_bench.py collect --task gsm8k,humaneval --split test --limit $(LIMIT) --max-new-tokens 48 --out $(STANDIN)/traces
	$(BIN)/python run_bench.py replay bench/sweeps/standin.toml --costs $(STANDIN)/costs.toml --traces $(STANDIN)/traces --out $(STANDIN) > $(STANDIN)/replay.txt
	$(BIN)/python run_bench.py table $(STANDIN) --only main,time,predicted

# Tables, figures and the report from what `paper` measured.
figures: setup
	$(BIN)/python run_bench.py table $(PAPER) --out figures/tables
	$(BIN)/python run_bench.py plot $(PAPER) --out figures
	$(BIN)/python run_bench.py report $(PAPER) --out $(PAPER)/report.html

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
