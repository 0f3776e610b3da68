"""Frames per second of slm_lab beside Stable-Baselines3 and SBX, on one core, with equal work.

    make bench-ppo            PPO on CartPole-v1
    make bench-off-policy     DQN on CartPole-v1, SAC and CrossQ on Pendulum-v1
    make bench-pong           PPO on ALE/Pong-v5, beside SB3 and the physical limit

The peers get the batch sizes, nets, update-to-data ratio and coefficients of our spec. Runs are
interleaved (ours, SB3, SBX, ours, ...), so that a busy spell of the machine touches all of them,
and ratios are taken within a round. Each run is a process of its own, pinned to one core, one
thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "slm_lab" / "spec" / "benchmark"
CONTESTANTS = ("slm_lab", "sb3", "sbx")
# Compilation is over well before this share of the frames; what follows is the steady state.
WARM_UP = 0.3


@dataclass(frozen=True, slots=True)
class Workload:
    spec_file: Path
    spec_name: str
    frames: int
    contestants: tuple[str, ...] = CONTESTANTS
    sets: tuple[str, ...] = ()  # `-s` assignments of our run
    limit: str | None = None  # script that measures what no library can beat


WORKLOADS = {
    "ppo_cartpole": Workload(SHIPPED / "ppo" / "ppo_cartpole.json", "ppo_cartpole", 200_000),
    "ppo_pong": Workload(
        SHIPPED / "ppo" / "ppo_pong.json",
        "ppo_pong",
        32_768,
        contestants=("slm_lab", "sb3"),
        # A run of usual length is compiled; the steady column is what it comes down to.
        sets=("meta.compile=on", "meta.log_frequency=2048"),
        limit="pong_limit.py",
    ),
    "dqn_cartpole": Workload(HERE / "off_policy.json", "dqn_cartpole", 60_000),
    "sac_pendulum": Workload(HERE / "off_policy.json", "sac_pendulum", 12_000),
    "crossq_pendulum": Workload(HERE / "off_policy.json", "crossq_pendulum", 12_000),
}


def settings_of(spec: dict[str, Any], frames: int) -> dict[str, Any]:
    """What decides the work per frame, in words that all libraries share.

    Read straight from the file, so that a renamed key fails here and not in silence.
    """
    env, algorithm, net = spec["env"], spec["agent"]["algorithm"], spec["agent"]["net"]
    common = {
        "algorithm": algorithm["name"],
        "env": env["name"],
        "net": net["type"],
        "frames": frames,
        "num_envs": env["num_envs"],
        "hidden": net.get("hid_layers"),
        "lr": net["optim_spec"]["lr"],
        "lr_to_zero": (net.get("lr_scheduler_spec") or {}).get("name") == "LinearToZero",
        "gamma": algorithm["gamma"],
        "max_grad_norm": net["clip_grad_val"],
    }
    if algorithm["name"] == "PPO":
        return common | {
            "horizon": algorithm["time_horizon"],
            "minibatch": algorithm["minibatch_size"],
            "epochs": algorithm["training_epoch"],
            "gae_lambda": algorithm["lam"],
            "clip_eps": algorithm["clip_eps_spec"]["start_val"],
            "entropy_coef": algorithm["entropy_coef_spec"]["start_val"],
            "value_coef": algorithm["val_loss_coef"],
        }
    assert algorithm["training_frequency"] == env["num_envs"], "one update per vector step"
    return common | {
        "batch_size": spec["agent"]["memory"]["batch_size"],
        "buffer_size": spec["agent"]["memory"]["max_size"],
        "learning_starts": algorithm["training_start_step"],
        "gradient_steps": algorithm["training_iter"],
        "policy_delay": algorithm.get("policy_delay", 1),
    }


@dataclass(frozen=True, slots=True)
class Result:
    """One run: frames per second over all of training, and after the warm-up."""

    contestant: str
    seed: int
    fps: float
    steady_fps: float
    score: float
    seconds: float
    call_seconds: float | None
    load: float  # of the machine when the run started; about 1 is our own previous run
    versions: dict[str, str]


def speeds(curve: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(overall, steady) frames per second of a curve of (frame, seconds since the start)."""
    last_frame, last_seconds = curve[-1]
    warm = [point for point in curve if point[0] <= WARM_UP * last_frame]
    frame, seconds = warm[-1] if warm else (0.0, 0.0)
    return last_frame / last_seconds, (last_frame - frame) / (last_seconds - seconds)


def run_once(
    contestant: str,
    workload: Workload,
    settings: dict[str, Any],
    seed: int,
    args: argparse.Namespace,
) -> Result:
    if contestant == "slm_lab":
        script = [sys.executable, str(HERE / "contestant_slm_lab.py")]
        frames = str(settings["frames"])
        options = [str(workload.spec_file), workload.spec_name, frames, str(seed), *workload.sets]
    else:
        script = [str(args.peer_python), str(HERE / "contestant_peers.py"), contestant]
        options = [json.dumps(settings), str(seed)]
    load = os.getloadavg()[0]
    process = subprocess.run([*script, *options], stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"{contestant}: the run ended with code {process.returncode}; its error is above.")
    answer = json.loads(process.stdout.splitlines()[-1])
    fps, steady_fps = speeds(answer["curve"])
    return Result(
        contestant=contestant,
        seed=seed,
        fps=fps,
        steady_fps=steady_fps,
        score=answer["score"],
        seconds=answer["curve"][-1][1],
        call_seconds=answer.get("call_seconds"),
        load=load,
        versions=answer["versions"],
    )


def measure_limit(script: str, settings: dict[str, Any]) -> dict[str, float]:
    """Frames per second if only the env and the matrix products took time, and its parts."""
    command = [sys.executable, str(HERE / script), json.dumps(settings)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    parts: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return parts


def table(results: Sequence[Result]) -> str:
    """A Markdown table, one row per run, in the order they ran."""
    lines = [
        "| library | seed | frames/s | frames/s, steady | training s | last-100 score |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.contestant} | {r.seed} | {r.fps:,.0f} | {r.steady_fps:,.0f} | {r.seconds:.1f} "
        f"| {r.score:.1f} |"
        for r in results
    ]
    return "\n".join(lines)


def ratios(results: Sequence[Result], peer: str) -> dict[str, list[float]]:
    """Our speed over the peer's, one value per round."""
    ours = {r.seed: r for r in results if r.contestant == "slm_lab"}
    theirs = {r.seed: r for r in results if r.contestant == peer}
    rounds = sorted(ours.keys() & theirs.keys())
    return {
        "fps": [ours[i].fps / theirs[i].fps for i in rounds],
        "steady_fps": [ours[i].steady_fps / theirs[i].steady_fps for i in rounds],
    }


def pin_to_one_core(core: int) -> str:
    """Children inherit both the core and the thread count."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned (this system cannot), one thread"
    os.sched_setaffinity(0, {core})
    return f"core {core}, one thread"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--peer-python", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--frames", type=int, help="default: as the workload says")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=0, help="the core every run is pinned to")
    parser.add_argument(
        "--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, metavar="LIBRARY"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results")
    args = parser.parse_args()
    if {"sb3", "sbx"} & set(args.only) and not args.peer_python.exists():
        parser.error(f"--peer-python: no {args.peer_python}. Run `make bench-ppo`, which makes it.")
    return args


def main() -> None:
    args = parse_args()
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "pinned": pin_to_one_core(args.core),
    }
    print(f"Machine: {machine}", flush=True)
    if os.getloadavg()[0] > 0.5:
        print("The machine is busy: trust the ratios more than the speeds, or come back later.")
    for name in args.workloads:
        compare(name, WORKLOADS[name], machine, args)


def compare(
    name: str, workload: Workload, machine: dict[str, Any], args: argparse.Namespace
) -> None:
    spec = json.loads(workload.spec_file.read_text())[workload.spec_name]
    settings = settings_of(spec, args.frames or workload.frames)
    print(f"\n## {name}\nSettings: {settings}", flush=True)
    contestants = [c for c in args.only if c in workload.contestants]
    results: list[Result] = []
    limits: list[dict[str, float]] = []
    for seed in range(args.repeats):
        if workload.limit is not None:
            limits.append(measure_limit(workload.limit, settings))
            print(f"  limit, round {seed}: {limits[-1]['fps']:,.0f} frames/s", flush=True)
        for contestant in contestants:
            result = run_once(contestant, workload, settings, seed, args)
            results.append(result)
            print(f"  {contestant} seed {seed}: {result.fps:,.0f} frames/s", flush=True)

    print(f"\n{table(results)}\n")
    compared = {peer: ratios(results, peer) for peer in ("sb3", "sbx")}
    for peer, values in compared.items():
        for kind, rounds in values.items():
            if rounds:
                middle = statistics.median(rounds)
                spread = f"{min(rounds):.2f} to {max(rounds):.2f}, {len(rounds)} rounds"
                print(f"slm_lab / {peer}, {kind}: {middle:.2f} ({spread})")
    for limit in limits:
        parts = ", ".join(f"{key} {value:,.2f}" for key, value in limit.items())
        print(f"limit: {parts}")
    for contestant in contestants:
        versions = next(r.versions for r in results if r.contestant == contestant)
        print(f"{contestant}: " + ", ".join(f"{name} {v}" for name, v in versions.items()))

    report = {
        "machine": machine,
        "settings": settings,
        "results": [asdict(result) for result in results],
        "ratios": compared,
        "limits": limits,
    }
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{name}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written: {path}")


if __name__ == "__main__":
    main()
