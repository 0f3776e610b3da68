"""PPO on CartPole-v1, one core: frames per second of slm_lab beside Stable-Baselines3 and SBX.

    make bench-ppo

The peers get the batch sizes, nets and coefficients of our shipped spec. Runs are interleaved
(ours, SB3, SBX, ours, ...), so that a busy spell of the machine touches all of them, and ratios are
taken within a round. Each run is a process of its own, pinned to one core with one thread.
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
from typing import Any, Self

HERE = Path(__file__).parent
SPEC_FILE = HERE.parent / "slm_lab" / "spec" / "benchmark" / "ppo" / "ppo_cartpole.json"
SPEC_NAME = "ppo_cartpole"
CONTESTANTS = ("slm_lab", "sb3", "sbx")
# Compilation is over well before this share of the frames; what follows is the steady state.
WARM_UP = 0.3


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the work per frame and the score, in words all three libraries share."""

    frames: int
    num_envs: int
    horizon: int
    minibatch: int
    epochs: int
    hidden: list[int]
    lr: float
    lr_to_zero: bool
    gamma: float
    gae_lambda: float
    clip_eps: float
    entropy_coef: float
    value_coef: float
    max_grad_norm: float

    @classmethod
    def from_spec(cls, spec: dict[str, Any], frames: int | None) -> Self:
        """Read straight from the file, so that a renamed key fails here and not in silence."""
        env, algorithm, net = spec["env"], spec["agent"]["algorithm"], spec["agent"]["net"]
        optimizer = net["actor_optim_spec"] if "actor_optim_spec" in net else net["optim_spec"]
        scheduler = net.get("lr_scheduler_spec") or {}
        return cls(
            frames=frames or int(env["max_frame"]),
            num_envs=env["num_envs"],
            horizon=algorithm["time_horizon"],
            minibatch=algorithm["minibatch_size"],
            epochs=algorithm["training_epoch"],
            hidden=net["hid_layers"],
            lr=optimizer["lr"],
            lr_to_zero=scheduler.get("name") == "LinearToZero",
            gamma=algorithm["gamma"],
            gae_lambda=algorithm["lam"],
            clip_eps=algorithm["clip_eps_spec"]["start_val"],
            entropy_coef=algorithm["entropy_coef_spec"]["start_val"],
            value_coef=algorithm["val_loss_coef"],
            max_grad_norm=net["clip_grad_val"],
        )


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


def run_once(contestant: str, settings: Settings, seed: int, args: argparse.Namespace) -> Result:
    if contestant == "slm_lab":
        script = [sys.executable, str(HERE / "contestant_slm_lab.py")]
        options = [str(args.spec_file), args.spec_name, str(settings.frames), str(seed)]
    else:
        script = [str(args.peer_python), str(HERE / "contestant_peers.py"), contestant]
        options = [json.dumps(asdict(settings)), str(seed)]
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
    parser.add_argument("--peer-python", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--spec-file", type=Path, default=SPEC_FILE)
    parser.add_argument("--spec-name", default=SPEC_NAME)
    parser.add_argument("--frames", type=int, help="default: env.max_frame of the spec")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=0, help="the core every run is pinned to")
    parser.add_argument(
        "--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, metavar="LIBRARY"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results" / "ppo_cartpole.json")
    args = parser.parse_args()
    if {"sb3", "sbx"} & set(args.only) and not args.peer_python.exists():
        parser.error(f"--peer-python: no {args.peer_python}. Run `make bench-ppo`, which makes it.")
    return args


def main() -> None:
    args = parse_args()
    spec = json.loads(args.spec_file.read_text())[args.spec_name]
    settings = Settings.from_spec(spec, args.frames)
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "pinned": pin_to_one_core(args.core),
    }
    print(f"Machine: {machine}\nSettings: {asdict(settings)}", flush=True)
    if os.getloadavg()[0] > 0.5:
        print("The machine is busy: trust the ratios more than the speeds, or come back later.")

    results: list[Result] = []
    for seed in range(args.repeats):
        for contestant in args.only:
            result = run_once(contestant, settings, seed, args)
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
    for contestant in args.only:
        versions = next(r.versions for r in results if r.contestant == contestant)
        print(f"{contestant}: " + ", ".join(f"{name} {v}" for name, v in versions.items()))

    report = {
        "machine": machine,
        "settings": asdict(settings),
        "results": [asdict(result) for result in results],
        "ratios": compared,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
