"""Frames per second of slow envs in this process and in worker processes.

    python perf/subprocess_envs.py [--envs 8] [--workers 2 8] [--rounds 3] [--cases step reset]

Random actions, no agent. Three envs that are slow in a way of their own:

    step     pure Python for about 1 ms a step
    reset    waits 2 s for a simulator at each reset; all episodes end together, after 100 steps
    uneven   the same wait, after episodes of 50 to 150 steps

Prints the seconds of the first reset and the frames per second after it: the best of `rounds` for
`step`, and the only one for the others, whose time is spent waiting.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import gymnasium as gym
import numpy as np

from slm_lab.env import make_env
from slm_lab.spec import EnvSpec

STEP_SECONDS, RESET_SECONDS, LENGTH = 1e-3, 2.0, 100


class Slow(gym.Env[np.ndarray, Any]):
    """Computes at each step, waits at each reset."""

    observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, loops: int = 0, wait: float = 0.0, spread: int = 0) -> None:
        self.loops, self.wait, self.spread = loops, wait, spread
        self.left = 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        time.sleep(self.wait)
        self.left = LENGTH + int(self.np_random.integers(-self.spread, self.spread + 1))
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        compute(self.loops)
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left == 0, False, {}


def compute(loops: int) -> int:
    total = 0
    for i in range(loops):
        total += i * i % 7
    return total


def loops_of(seconds: float) -> int:
    """Loops of `compute` that take so long on an idle core: by the best of several tries."""
    tries = []
    for _ in range(20):
        began = time.perf_counter()
        compute(10_000)
        tries.append(time.perf_counter() - began)
    return round(seconds / min(tries) * 10_000)


def measure(spec: EnvSpec, steps: int, rounds: int) -> tuple[float, float]:
    """Seconds of the first reset, and the most frames per second of any round."""
    env = make_env(spec, seed=0)
    began = time.perf_counter()
    env.reset()
    reset = time.perf_counter() - began
    speeds = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(steps):
            env.step(env.sample_action())
        speeds.append(steps * spec.num_envs / (time.perf_counter() - began))
    env.close()
    return reset, max(speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=["step", "reset", "uneven"])
    options = parser.parse_args()
    gym.register("Slow-v0", lambda **keys: Slow(**keys))
    cases: dict[str, tuple[dict[str, Any], int, int]] = {
        "step": ({"loops": loops_of(STEP_SECONDS)}, 500, options.rounds),
        "reset": ({"wait": RESET_SECONDS}, 2 * LENGTH, 1),
        "uneven": ({"wait": RESET_SECONDS, "spread": LENGTH // 2}, 2 * LENGTH, 1),
    }
    load = os.getloadavg()[0]
    print(
        f"{options.envs} envs, {len(os.sched_getaffinity(0))} cores, load {load:.1f} at the start"
    )
    print(f"{'env':<8}{'back-end':<24}{'first reset, s':>15}{'frames/s':>10}{'ratio':>7}")
    for case in options.cases:
        kwargs, steps, rounds = cases[case]
        alone = 0.0
        for workers in (0, *options.workers):
            keys = {"name": "Slow-v0", "num_envs": options.envs, "max_frame": 1, **kwargs}
            if workers:
                keys |= {"backend": "subprocess", "num_threads": workers}
            reset, speed = measure(EnvSpec.model_validate(keys), steps, rounds)
            alone = alone or speed
            name = f"subprocess, {workers} workers" if workers else "gymnasium"
            print(f"{case:<8}{name:<24}{reset:>15.2f}{speed:>10,.0f}{speed / alone:>7.2f}")


if __name__ == "__main__":
    main()
