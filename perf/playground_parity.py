"""Compare the two back-ends of `playground/<Name>`, and write the table of docs/PLAYGROUND.md.

    python perf/playground_parity.py [NAME ...] [--jax NAME ...] [--episodes N] [--write PAGE]

Each env is played with uniformly random actions, every episode to its end. On envpool: all names
given, or all 54. On JAX: the names after `--jax` (each compiles for up to a minute, and stepping
is slow on a CPU). The sizes of every DM Control name are compared in any case, which needs no
compilation. Results of names played before are kept in results/playground_parity.json.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from slm_lab.env import EnvError, make_env
from slm_lab.env.playground import TASKS
from slm_lab.spec.env import EnvSpec
from slm_lab.types import on_host

RESULTS = Path(__file__).parent / "results" / "playground_parity.json"
BEGIN, END = "<!-- parity: begin -->", "<!-- parity: end -->"


@dataclass(frozen=True)
class Played:
    """Results of an env under uniformly random actions."""

    obs: int
    privileged: int
    action: int
    longest: int
    episodes: int
    mean: float
    std: float
    column_mean: list[float]
    column_std: list[float]


def play(name: str, backend: str, episodes: int) -> Played:
    keys = {"name": f"playground/{name}", "num_envs": episodes, "max_frame": 1}
    spec = EnvSpec.model_validate({**keys, "backend": backend, "privileged": True})
    env = make_env(spec, seed=0)
    env.reset()
    returns, lengths = np.zeros(episodes), np.zeros(episodes, int)
    running = np.ones(episodes, bool)
    rows = []
    while running.any():
        step = env.step(env.sample_action())
        returns += step.reward * running
        lengths += running
        rows.append(on_host(step.next_obs)[running].astype(np.float64))
        running &= ~step.episode_end
    env.close()
    seen = np.concatenate(rows)[:, : env.spaces.policy_obs_shape[0]]
    return Played(
        obs=env.spaces.policy_obs_shape[0],
        privileged=env.spaces.privileged,
        action=env.spaces.action_sizes[0],
        longest=int(lengths.max()),
        episodes=episodes,
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)),
        column_mean=seen.mean(0).round(4).tolist(),
        column_std=seen.std(0).round(4).tolist(),
    )


def sizes_in_playground(name: str) -> list[int] | None:
    """[observation, action] of a DM Control env, without compiling; None if it cannot be made."""
    keys = {"name": f"playground/{name}", "max_frame": 1, "backend": "playground"}
    try:
        env = make_env(EnvSpec.model_validate(keys), seed=0)
    except EnvError as error:
        print(error)
        return None
    return [env.spaces.obs_shape[0], env.spaces.action_sizes[0]]


def columns_apart(ours: Played, theirs: Played) -> list[int]:
    """Columns that differ in mean or spread, which hints at another meaning or order."""
    found = []
    for i, (a, b) in enumerate(zip(ours.column_std, theirs.column_std, strict=True)):
        gap = abs(ours.column_mean[i] - theirs.column_mean[i])
        spread = max(a, b, 1e-3)
        if gap > spread or min(a, b) < spread / 3:
            found.append(i)
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    header = (
        "| env | observation | privileged | action | decisions | random return, envpool "
        "| random return, JAX | columns apart |\n|---|---|---|---|---|---|---|---|\n"
    )
    return header + "".join(row(name, results[name]) for name in TASKS if name in results)


def row(name: str, result: dict[str, Any]) -> str:
    pool = Played(**result["envpool"])
    jax_return, apart = "", ""
    if "jax" in result:
        real = Played(**result["jax"])
        error = math.sqrt(pool.std**2 / pool.episodes + real.std**2 / real.episodes)
        gap = abs(pool.mean - real.mean)
        verdict = "alike" if gap <= 3 * error + 1e-6 else "**apart**"
        jax_return = f"{real.mean:.2f} ± {real.std:.2f} ({verdict})"
        apart = ", ".join(map(str, columns_apart(pool, real))) or "none"
    sizes = result.get("sizes")
    same = "" if sizes is None else (" =" if sizes == [pool.obs, pool.action] else f" ≠ {sizes}")
    return (
        f"| {name} | {pool.obs}{same} | {pool.privileged or ''} | {pool.action} | {pool.longest} "
        f"| {pool.mean:.2f} ± {pool.std:.2f} | {jax_return} | {apart} |\n"
    )


def write_into(page: Path, text: str) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="names to play on envpool; none: all 54")
    parser.add_argument("--jax", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    parser.add_argument("--table-only", action="store_true", help="play nothing")
    options = parser.parse_args()
    logger.disable("slm_lab")
    results: dict[str, dict[str, Any]] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text())
    for name in [] if options.table_only else options.names or list(TASKS):
        result = results.setdefault(name, {})
        result["envpool"] = asdict(play(name, "envpool", options.episodes))
        if not TASKS[name].needs_menagerie:
            result["sizes"] = sizes_in_playground(name)
        RESULTS.write_text(json.dumps(results, indent=1))
        print(row(name, result), end="", flush=True)
    for name in options.jax:
        results[name]["jax"] = asdict(play(name, "playground", options.episodes))
        RESULTS.write_text(json.dumps(results, indent=1))
        print(row(name, results[name]), end="", flush=True)
    if options.write:
        write_into(options.write, table(results))


if __name__ == "__main__":
    main()
