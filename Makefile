# The commands of the project. `make` alone lists them; CONTRIBUTING.md says more.
# Another interpreter: make test PYTHON=python3.12. Another folder: make test VENV=/tmp/venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install -qq --disable-pip-version-check -c constraints.txt
PEERS := .venv-peers
TORCH_VENV := .venv-torch-$(TORCH)

.PHONY: help demo test test-long test-torch torture coverage check format docs bench bench-quick bench-ppo bench-off-policy bench-pong bench-checkpoint bench-dashboard bench-playground clean
.DELETE_ON_ERROR:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## set up, then train PPO on CartPole and show its score and curve
	$(BIN)/slm-lab run

test: $(VENV)/.installed-dev browser ## set up, then run every test
	$(BIN)/python -m pytest

test-long: $(VENV)/.installed-dev ## the tests that run on purpose only: searches, clusters, scores, every pair; hours
	$(BIN)/python -m pytest -m "asynchronous or cluster or compatibility or empty_install or long_learning or search_smoke"

test-torch: $(TORCH_VENV)/.installed ## the agent's tests with another torch, TORCH=2.15.0, in an environment of its own
	$(TORCH_VENV)/bin/python -c 'import torch; print("torch", torch.__version__)'
	$(TORCH_VENV)/bin/python -m pytest tests/agent

torture: $(VENV)/.installed-dev ## attack everything for an hour, TORTURE="--seconds 600 --seed 1 --only kills,specs"
	$(BIN)/python -m tests.torture $(TORTURE)

coverage: $(VENV)/.installed-dev browser ## lines of slm_lab/ that the tests run, goal 92 %: half an hour, or COVERAGE=tests/spec for a part
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(COVERAGE)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# For the tests of the dashboard, which are skipped without it: only where root may install it.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing chromium for the browser tests."; \
		(apt-get install -y chromium || { apt-get update && apt-get install -y chromium; }) >/dev/null 2>&1 \
			|| echo "It could not be installed; the browser tests will be skipped."; \
	fi

check: $(VENV)/.installed-dev ## format, lint, types and the fast tests: run before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m "not slow"

format: $(VENV)/.installed-dev ## rewrite the files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev ## build the documentation site into site/, strict about links
	PYTHONPATH=. $(BIN)/zensical build --strict --clean
	@echo "Open site/index.html in a browser."

SIDE_BY_SIDE := $(BIN)/python -m perf.side_by_side --peer-python $(PEERS)/bin/python

bench: $(VENV)/.installed-dev $(PEERS)/.installed ## every workload beside its peers and the machine's limit: an hour or two
	$(SIDE_BY_SIDE)
	$(BIN)/python perf/start_up.py
	$(BIN)/python -m perf.scaling
	$(BIN)/python -m perf.performance_page

bench-quick: $(VENV)/.installed-dev $(PEERS)/.installed ## four of them, briefly: a few minutes
	$(SIDE_BY_SIDE) --quick --output perf/results/quick

bench-ppo: $(VENV)/.installed-dev $(PEERS)/.installed ## PPO CartPole: our frames per second beside SB3 and SBX
	$(SIDE_BY_SIDE) ppo_cartpole

bench-off-policy: $(VENV)/.installed-dev $(PEERS)/.installed ## DQN, SAC and CrossQ: the same comparison
	$(SIDE_BY_SIDE) dqn_cartpole sac_pendulum crossq_pendulum

bench-pong: $(VENV)/.installed-dev $(PEERS)/.installed ## PPO on Atari Pong: beside SB3 and the machine's limit
	$(SIDE_BY_SIDE) ppo_pong ppo_pong_one_core

bench-checkpoint: $(VENV)/.installed-dev ## share of the training time that checkpoints take
	$(BIN)/python perf/checkpoint_cost.py

bench-dashboard: $(VENV)/.installed-dev ## how long the page takes with 300 runs
	$(BIN)/python -m perf.dashboard_load

bench-playground: $(VENV)/.installed-dev ## MuJoCo Playground: frames per second against the number of envs
	$(BIN)/python perf/playground_speed.py CartpoleBalance CheetahRun --train ppo_playground

clean: ## remove environments and caches; results in data/ stay
	rm -rf $(VENV) $(PEERS) .venv-torch-* build dist site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
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

$(PEERS)/.installed: perf/peers.txt constraints.txt | $(PEERS)/bin/python
	@echo "Installing the peers (Stable-Baselines3, SBX) into $(PEERS): one to several minutes the first time."
	@$(PEERS)/bin/python $(PIP_INSTALL) -r perf/peers.txt
	@touch $@

# Everything else as it is tested, but setuptools, of which some releases want an older one. From PyPI,
# torch brings what it needs for CUDA, too: some gigabytes.
$(TORCH_VENV)/.installed: pyproject.toml constraints.txt | $(TORCH_VENV)/bin/python
	@echo "Installing slm-lab with torch $(TORCH) into $(TORCH_VENV): several minutes the first time."
	@grep -vE '^(torch|setuptools)==' constraints.txt > $(TORCH_VENV)/constraints.txt
	@$(TORCH_VENV)/bin/python $(PIP_INSTALL:constraints.txt=$(TORCH_VENV)/constraints.txt) 'torch==$(TORCH)' -e '.[atari,box2d,mujoco]' pytest pytest-xdist hypothesis
	@touch $@

$(BIN)/python $(PEERS)/bin/python $(TORCH_VENV)/bin/python:
	@test -n '$(TORCH)' || test '$(@D)' != '$(TORCH_VENV)/bin' || { echo "make: which torch? Name a release: make test-torch TORCH=2.15.0" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)' here. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed, '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Creating the virtual environment $(@:/bin/python=)."
	@$(PYTHON) -m venv $(@:/bin/python=)
