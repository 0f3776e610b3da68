"""Measure the share of the training time that checkpoints take, by a session's own clock.

    python perf/checkpoint_cost.py [ppo_cartpole | sac_halfcheetah] [--frames N] [--folder D]

PPO CartPole is the shipped spec. SAC has the observations and actions of HalfCheetah and a replay
of a million rows. The replay is filled before the clock starts, so that every checkpoint holds all
of it. The limits are 2 % and 5 %. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import numpy as np
import torch
from loguru import logger

from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec, load_spec, spec_from_dict
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session
from slm_lab.types import Transition

BARS = {"ppo_cartpole": 0.02, "sac_halfcheetah": 0.05}
FRAMES = {"ppo_cartpole": 200_000, "sac_halfcheetah": 60_000}
REPLAY_ROWS = 1_000_000


def sac_halfcheetah(frames: int) -> Spec:
    net = {
        "type": "MLPNet",
        "hid_layers": [256, 256],
        "hid_layers_activation": "relu",
        "optim_spec": {"name": "Adam", "lr": 3e-4},
        "update_type": "polyak",
        "polyak_coef": 0.005,
    }
    algorithm = {
        "name": "SoftActorCritic",
        "gamma": 0.99,
        "training_frequency": 1,
        "training_iter": 1,
        "training_start_step": 1000,
    }
    memory = {"name": "Replay", "batch_size": 256, "max_size": REPLAY_ROWS}
    tree = {
        "agent": {"name": "SAC", "algorithm": algorithm, "memory": memory, "net": net},
        # The budget bounds the replay: it must leave room for a million rows.
        "env": {"name": "HalfCheetah-v5", "num_envs": 1, "max_frame": REPLAY_ROWS + frames},
        "meta": {"log_frequency": 5000, "random_seed": 0},
    }
    return spec_from_dict(tree, "sac_halfcheetah")


def fill_replay(session: Session) -> None:
    """Fill the replay with arbitrary rows, because only their number matters."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((1, 17), dtype=np.float32)
    action = rng.uniform(-1, 1, (1, 6)).astype(np.float32)
    flag, reward = np.zeros(1, bool), np.ones(1, np.float32)
    step = Transition(obs, obs, reward, flag, flag, flag)
    for _ in range(REPLAY_ROWS):
        session._agent.experience.add(obs, action, step)


def measure(name: str, frames: int, root: str | None) -> float:
    if name == "ppo_cartpole":
        spec = load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole").with_values(
            {"meta.random_seed": 0, "env.max_frame": frames}
        )
    else:
        spec = sac_halfcheetah(frames)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        session = Session(
            spec, RunLayout.create(name, "now", folder), 0, 0, RunOptions(mode="train")
        )
        if name == "sac_halfcheetah":
            fill_replay(session)
        session.advance(frames)
        session.close()
        clock = session._loop.clock
    saves = session.saver.schedule
    # The last save comes after the clock stopped.
    seconds = clock.seconds + saves.last_seconds
    share = saves.seconds / seconds
    verdict = "within" if share <= BARS[name] else "OVER"
    print(
        f"{name}: {saves.saves} saves of {saves.bytes / 1e6:.1f} MB in "
        f"{saves.seconds:.2f} s of {seconds:.1f} s = {share:.2%}, {verdict} the bar of "
        f"{BARS[name]:.0%} ({clock.frame:,} frames, {os.cpu_count()} cores)"
    )
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", choices=[*BARS, []], help="what to measure; all")
    parser.add_argument("--frames", type=int, help="frames to train, instead of the usual number")
    parser.add_argument("--folder", help="where to write; the system's temporary folder")
    arguments = parser.parse_args()
    logger.remove()
    torch.set_num_threads(1)
    names = arguments.names or list(BARS)
    over = [
        n for n in names if measure(n, arguments.frames or FRAMES[n], arguments.folder) > BARS[n]
    ]
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
