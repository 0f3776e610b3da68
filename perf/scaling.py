"""Measure how speed and memory grow with envs, with the batch, with sessions and with the replay.

    python -m perf.scaling [envs] [batch] [sessions] [replay]

Writes results/scaling.json, from which performance_page.py makes docs/PERFORMANCE.md.

- envs: frames per second of acting alone and of training, PPO on CartPole, 1 to 4,096 envs
- batch: seconds of one SAC update per batch size, 256x256 nets
- sessions: frames per second of all sessions together, 1 to 4 sessions at once
- replay: peak memory of a process that holds a full replay, per number of rows
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perf.peak_memory import peak_mb
from slm_lab import load_spec, make_agent, make_env
from slm_lab.training.loop import Loop

HERE = Path(__file__).parent
SPECS = HERE.parent / "slm_lab" / "spec" / "benchmark"
PPO = (SPECS / "ppo" / "ppo_cartpole.json", "ppo_cartpole")
SAC = (HERE / "specs.json", "sac_pendulum")

Point = dict[str, float]


def envs() -> list[Point]:
    return [_envs(4**power) for power in range(7)]


def _envs(num_envs: int) -> Point:
    """Measure frames per second of acting alone and of training with `num_envs` envs.

    The horizon shrinks as envs grow, so that an update has as many frames, or one step of each env.
    """
    horizon = max(1, 4096 // num_envs)
    sets = [f"env.num_envs={num_envs}", f"agent.algorithm.time_horizon={horizon}"]
    sets += [f"agent.algorithm.minibatch_size={horizon * num_envs // 8}"]
    sets += ["env.max_frame=100000000", "meta.compile=on", "agent.algorithm.training_epoch=4"]
    spec = load_spec(*PPO, sets=sets)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    obs = env.reset()
    steps = max(20, 20_000 // num_envs)
    for step in range(3 + steps):
        if step == 3:  # acting is compiled where there are many envs
            start = time.perf_counter()
        obs = env.step(agent.env_action(agent.act(obs, frame=0))).obs
    collect = steps * num_envs / (time.perf_counter() - start)
    loop = Loop(agent, env, 10**9)
    frames = 2 * horizon * num_envs
    _advance(loop, frames)  # compiles
    start = time.perf_counter()
    _advance(loop, 5 * frames)
    return {"x": num_envs, "collect": collect, "train": 4 * frames / (time.perf_counter() - start)}


def _advance(loop: Loop, until: int) -> None:
    loop.run(lambda: None, 10**12, lambda: False, until=until)


def batch() -> list[Point]:
    return [_batch(2**power) for power in range(5, 12)]


def _batch(size: int) -> Point:
    sets = [f"agent.memory.batch_size={size}", "meta.compile=on", "env.max_frame=100000"]
    spec = load_spec(*SAC, sets=sets)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    loop = Loop(agent, env, 10**9)
    while loop.clock.opt_step < 8:  # compiles
        _advance(loop, loop.clock.frame + 4)
    opt_steps, start = loop.clock.opt_step, time.perf_counter()
    _advance(loop, loop.clock.frame + 40)
    took = time.perf_counter() - start
    return {"x": size, "ms": 1e3 * took / (loop.clock.opt_step - opt_steps)}


def sessions() -> list[Point]:
    _sessions(1)  # fills the compile cache
    return [_sessions(count) for count in (1, 2, 4)]


def _sessions(count: int) -> Point:
    """Measure the whole command with `count` sessions at once, start-up included."""
    frames = 100_000
    command = [str(Path(sys.executable).parent / "slm-lab"), "run", str(PPO[0].resolve()), PPO[1]]
    command += ["train", "-s", f"meta.max_session={count}", "-s", f"env.max_frame={frames}"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return {"x": count, "fps": count * frames / (time.perf_counter() - start)}


def replay() -> list[Point]:
    """Measure the peak memory per size of a full replay, each in a process of its own."""
    points = []
    for rows in (0, 100_000, 200_000, 400_000, 800_000):
        command = [sys.executable, "-m", "perf.scaling", "--fill", str(rows)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        points.append({"x": rows, "mb": float(output.splitlines()[-1])})
    return points


def fill(rows: int) -> None:
    """A replay of HalfCheetah rows in which every row is written."""
    size = max(rows, 1_000)
    # A replay holds no more rows than there are frames to come.
    sets = ["env=HalfCheetah-v5", f"agent.memory.max_size={size}", f"env.max_frame={size}"]
    spec = load_spec(HERE / "specs.json", "sac_mujoco", sets=sets)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    obs = env.reset()
    action = env.sample_action()
    transition = env.step(action)
    for _ in range(rows // env.num_envs):
        agent.observe(obs, action, transition)
    print(peak_mb())


MEASURES: dict[str, Callable[[], list[Point]]] = {
    "envs": envs,
    "batch": batch,
    "sessions": sessions,
    "replay": replay,
}


def main() -> None:
    if sys.argv[1:2] == ["--fill"]:
        return fill(int(sys.argv[2]))
    torch.set_num_threads(1)
    path = HERE / "results" / "scaling.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found["machine"] = {"cores": os.cpu_count()}
    for name in sys.argv[1:] or MEASURES:
        found[name] = MEASURES[name]()
        for point in found[name]:
            print(name, {key: round(value, 3) for key, value in point.items()}, flush=True)
        path.write_text(json.dumps(found, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
