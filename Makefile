# The doors of the project. `make` alone lists them; CONTRIBUTING.md says more.
# Another interpreter: make test PYTHON=python3.12. Another folder: make test VENV=/tmp/venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install -qq --disable-pip-version-check -c constraints.txt
PEERS := .venv-peers

.PHONY: help demo test check format bench-ppo bench-off-policy bench-pong bench-checkpoint bench-playground clean
.DELETE_ON_ERROR:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## set up, then train PPO on CartPole and show its score and curve
	$(BIN)/slm-lab run

test: $(VENV)/.installed-dev ## set up, then run every test
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev ## format, lint, types and the fast tests: run before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m "not slow"

format: $(VENV)/.installed-dev ## rewrite the files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-ppo: $(VENV)/.installed $(PEERS)/.installed ## PPO CartPole: our frames per second beside SB3 and SBX
	$(BIN)/python benchmarks/side_by_side.py ppo_cartpole --peer-python $(PEERS)/bin/python

bench-off-policy: $(VENV)/.installed $(PEERS)/.installed ## DQN, SAC and CrossQ: the same comparison
	$(BIN)/python benchmarks/side_by_side.py dqn_cartpole sac_pendulum crossq_pendulum --peer-python $(PEERS)/bin/python

bench-pong: $(VENV)/.installed-dev $(PEERS)/.installed ## PPO on Atari Pong: beside SB3 and the physical limit
	$(BIN)/python benchmarks/side_by_side.py ppo_pong --peer-python $(PEERS)/bin/python

bench-checkpoint: $(VENV)/.installed-dev ## share of the training time that checkpoints take
	$(BIN)/python benchmarks/checkpoint_cost.py

bench-playground: $(VENV)/.installed-dev ## MuJoCo Playground: frames per second against the number of envs
	$(BIN)/python benchmarks/playground_speed.py CartpoleBalance CheetahRun --train ppo_playground

clean: ## remove environments and caches; results in data/ stay
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: a set-up step runs again only when what it installs from has changed.

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing slm-lab into $(VENV): one to several minutes the first time, mostly PyTorch."
	@$(BIN)/python $(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing slm-lab and its test tools into $(VENV): one to several minutes the first time, mostly PyTorch."
	@$(BIN)/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(PEERS)/.installed: benchmarks/peers.txt constraints.txt | $(PEERS)/bin/python
	@echo "Installing the peers (Stable-Baselines3, SBX) into $(PEERS): one to several minutes the first time."
	@$(PEERS)/bin/python $(PIP_INSTALL) -r benchmarks/peers.txt
	@touch $@

$(BIN)/python $(PEERS)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)' here. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed, '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Creating the virtual environment $(@:/bin/python=)."
	@$(PYTHON) -m venv $(@:/bin/python=)
