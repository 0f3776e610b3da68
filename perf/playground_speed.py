"""Measure frames per second of `playground/<Name>` against the number of envs, on either back-end.

    python perf/playground_speed.py [NAME ...] [--num-envs N ...] [--threads N]
                                          [--backends envpool playground] [--train SPEC_NAME]

The collector steps with random actions, without an agent. `--train` adds the shipped PPO spec of
that name: act, step, observe and update, after the first update, in which everything is compiled.
Nothing else should run on the machine. Points are added to results/playground_speed.json, from
which performance_page.py makes its table and its curves.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab import make_agent, make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.spec import Spec, SpecWarning, load_spec
from slm_lab.training.loop import Loop
from slm_lab.training.options import RunOptions
from slm_lab.training.threads import set_threads

SPEC_FILE = "slm_lab/spec/benchmark_arc/ppo/ppo_playground.yaml"
SECONDS = 3.0
RESULTS = Path(__file__).parent / "results" / "playground_speed.json"

Point = dict[str, Any]


def spec_of(name: str, num_envs: int, backend: str, threads: int, spec_name: str) -> Spec:
    # The budget of a real run, which decides what is worth compiling.
    sets = [f"env=playground/{name}", "max_frame=1e8", f"env.num_envs={num_envs}"]
    sets += [f"env.backend={backend}", f"env.num_threads={threads}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # of minibatches cut to few envs
        return load_spec(SPEC_FILE, spec_name, sets)


def collector_speed(env: VectorEnv) -> float:
    env.reset()
    for _ in range(3):  # compiles, and touches every buffer
        env.step(env.sample_action())
    action = env.sample_action()
    frames, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < SECONDS:
        env.step(action)
        frames += env.num_envs
    return frames / seconds


def training_speed(spec: Spec, env: VectorEnv) -> float:
    agent = make_agent(spec, env.spaces, seed=0)
    loop = Loop(agent, env, max_frame=spec.env.max_frame)

    def train(updates: int) -> float:
        """Seconds that a number of further updates takes."""
        began, target = loop.clock.seconds, loop.clock.updates + updates
        loop.run(lambda: None, 10**12, lambda: loop.clock.updates >= target)
        return loop.clock.seconds - began

    train(1)
    frame = loop.clock.frame
    seconds = train(1)
    while seconds < SECONDS:
        seconds += train(1)
    return (loop.clock.frame - frame) / seconds


def points(options: argparse.Namespace) -> Iterator[Point]:
    for name, backend, num_envs in product(options.names, options.backends, options.num_envs):
        spec_name = options.train or "ppo_playground"
        spec = spec_of(name, num_envs, backend, options.threads, spec_name)
        set_threads(spec, RunOptions())
        env = make_env(spec.env, seed=0)
        point: Point = {"env": name, "backend": backend, "num_envs": num_envs}
        point["threads"] = options.threads if backend == "envpool" else None
        point["collect"] = collector_speed(env)
        if options.train:
            point |= {"spec": options.train, "train": training_speed(spec, env)}
        env.close()
        yield point


def keep(point: Point) -> None:
    """Save a point in place of an older one of the same setting."""
    saved: dict[str, Any] = {"cores": os.cpu_count(), "points": []}
    if RESULTS.exists():
        saved = json.loads(RESULTS.read_text())
    same = ("env", "backend", "num_envs", "threads")
    others = [p for p in saved["points"] if any(p[key] != point[key] for key in same)]
    saved["points"] = sorted([*others, point], key=lambda p: [str(p[key]).zfill(5) for key in same])
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=["CartpoleBalance", "CheetahRun"])
    parser.add_argument("--num-envs", nargs="*", type=int, default=[16, 128, 1024, 2048, 4096])
    parser.add_argument("--backends", nargs="*", default=["envpool"])
    parser.add_argument("--threads", type=int, default=1, help="of envpool; learning has one")
    parser.add_argument("--train", metavar="SPEC_NAME")
    options = parser.parse_args()
    logger.disable("slm_lab")
    print(f"{os.cpu_count()} cores, envpool on {options.threads} thread(s)\n")
    for point in points(options):
        keep(point)
        trained = f", training {point['train']:,.0f}" if "train" in point else ""
        what = f"{point['env']} on {point['backend']}, {point['num_envs']:,} envs"
        print(f"{what}: collector {point['collect']:,.0f} frames/s{trained}", flush=True)


if __name__ == "__main__":
    main()
