"""Measure frames per second of slm_lab beside Stable-Baselines3 and SBX, with equal work.

    make bench                every workload; make bench-quick: four, in under five minutes
    make bench-ppo            PPO on CartPole-v1
    make bench-off-policy     DQN on CartPole-v1, SAC and CrossQ on Pendulum-v1
    make bench-pong           PPO on ALE/Pong-v5

The peers get the batch sizes, nets, update-to-data ratio and coefficients of our spec. Runs are
interleaved (ours, SB3, SBX, ours, ...), so that other load on the machine affects all of them, and
ratios are taken within a round. Each round begins with the measurement of the machine's limit
(limit.py). Each run is a process of its own, pinned to the cores of its workload.

Where layers are wide we run twice, in float32 and in bfloat16, each beside its own limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perf.workloads import QUICK, QUICK_SHARE, WORKLOADS, Workload, settings_of

HERE = Path(__file__).parent
PEERS = ("sb3", "sbx")
OURS = {"slm_lab": "float32", "slm_lab_bfloat16": "bfloat16"}
# Compilation is over well before this share of the frames; what follows is the steady state.
WARM_UP = 0.3


@dataclass(frozen=True, slots=True)
class Result:
    """One run: frames per second over all of training, and after the warm-up."""

    contestant: str
    seed: int
    fps: float
    steady_fps: float
    score: float
    seconds: float  # of training
    start_up_seconds: float  # from the command to the first frame
    target_seconds: float | None  # from the command to the target score, where it was reached
    peak_mb: float
    load: float  # of the machine when the run started; about 1 is our own previous run
    versions: dict[str, str]


def speeds(curve: Sequence[Sequence[float]], learning_starts: int) -> tuple[float, float]:
    """(overall, steady) frames per second of a curve of (frame, seconds since the start, ...).

    Steady is counted from the first point after the warm-up at which all libraries have long
    learned: frames before `learning_starts` cost next to nothing, the first updates compile.
    """
    last_frame, last_seconds = curve[-1][:2]
    begin = max(WARM_UP * last_frame, 1.5 * learning_starts)
    warm = [point for point in curve[:-1] if point[0] >= begin] or [(0.0, 0.0)]
    frame, seconds = warm[0][:2]
    return last_frame / last_seconds, (last_frame - frame) / (last_seconds - seconds)


def run_once(contestant: str, workload: Workload, frames: int, seed: int, python: Path) -> Result:
    settings = settings_of(workload.spec(frames), workload)
    if contestant in OURS:
        sets = [*workload.assignments(frames, OURS[contestant]), f"meta.random_seed={seed}"]
        script = [sys.executable, "-m", "perf.contestant_slm_lab"]
        options = [str(workload.spec_file), workload.spec_name, *sets]
    else:
        script = [str(python), "-m", "perf.contestant_peers", contestant]
        options = [json.dumps(settings), str(seed)]
    load, start = os.getloadavg()[0], time.time()
    process = subprocess.run([*script, *options], stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"{contestant}: the run ended with code {process.returncode}; its error is above.")
    answer = json.loads(process.stdout.splitlines()[-1])
    fps, steady_fps = speeds(answer["curve"], settings.get("learning_starts") or 0)
    start_up = answer["began"] - start
    reached = [s for _, s, score in answer["curve"] if is_reached(score, workload.target)]
    return Result(
        contestant=contestant,
        seed=seed,
        fps=fps,
        steady_fps=steady_fps,
        score=answer["curve"][-1][2],
        seconds=answer["curve"][-1][1],
        start_up_seconds=start_up,
        target_seconds=start_up + reached[0] if reached else None,
        peak_mb=answer["peak_mb"],
        load=load,
        versions=answer["versions"],
    )


def is_reached(score: float, target: float | None) -> bool:
    return target is not None and score >= target


def measure(script: str, workload: Workload, frames: int, precision: str) -> dict[str, float]:
    """Times per frame and their sum, as limit.py or own_profile.py measures them."""
    sets = workload.assignments(frames, precision)
    options = [str(workload.spec_file), workload.spec_name, *sets]
    command = [sys.executable, str(HERE / script), *options]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    parts: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return parts


def table(results: Sequence[Result]) -> str:
    """A Markdown table, one row per run, in the order they ran."""
    lines = [
        "| library | seed | frames/s | steady | training s | start-up s | target s | MB | score |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    seconds = ["" if r.target_seconds is None else f"{r.target_seconds:.1f}" for r in results]
    lines += [
        f"| {r.contestant} | {r.seed} | {r.fps:,.0f} | {r.steady_fps:,.0f} | {r.seconds:.1f} "
        f"| {r.start_up_seconds:.1f} | {to_target} | {r.peak_mb:,.0f} | {r.score:.1f} |"
        for r, to_target in zip(results, seconds, strict=True)
    ]
    return "\n".join(lines)


def ratios(results: Sequence[Result], our: str, peer: str) -> dict[str, list[float]]:
    """Ratios of our speed to the peer's, one per round."""
    ours = {r.seed: r for r in results if r.contestant == our}
    theirs = {r.seed: r for r in results if r.contestant == peer}
    rounds = sorted(ours.keys() & theirs.keys())
    return {
        "fps": [ours[i].fps / theirs[i].fps for i in rounds],
        "steady_fps": [ours[i].steady_fps / theirs[i].steady_fps for i in rounds],
    }


def pin(cores: int) -> str:
    """Pin this process to cores and set its thread count; children inherit both."""
    os.environ["OMP_NUM_THREADS"] = str(cores)
    if not hasattr(os, "sched_setaffinity"):
        return f"not pinned (this system cannot), {cores} thread(s)"
    os.sched_setaffinity(0, set(range(min(cores, os.cpu_count() or 1))))
    return f"the first {cores} core(s), {cores} thread(s)"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--peer-python", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--frames", type=int, help="default: as the workload says")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="four workloads, once, fewer frames")
    parser.add_argument("--only", nargs="+", choices=(*OURS, *PEERS), metavar="LIBRARY")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    args = parser.parse_args()
    unknown = set(args.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}. There are: {', '.join(WORKLOADS)}")
    args.workloads = args.workloads or (QUICK if args.quick else list(WORKLOADS))
    args.only = args.only or (*OURS, *PEERS)
    if set(PEERS) & set(args.only) and not args.peer_python.exists():
        parser.error(f"--peer-python: no {args.peer_python}. Run `make bench-ppo`, which makes it.")
    return args


def main() -> None:
    args = parse_args()
    if os.getloadavg()[0] > 0.5:
        print("The machine is busy: trust the ratios more than the speeds, or come back later.")
    for name in args.workloads:
        compare(name, WORKLOADS[name], args)


def compare(name: str, workload: Workload, args: argparse.Namespace) -> None:
    frames = args.frames or int(workload.frames * (QUICK_SHARE if args.quick else 1))
    repeats = 1 if args.quick else args.repeats
    settings = settings_of(workload.spec(frames), workload)
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "pinned": pin(workload.cores),
    }
    print(f"\n## {name}\nMachine: {machine}\nSettings: {settings}", flush=True)
    ours = [c for c in OURS if c in args.only and (c == "slm_lab" or workload.bfloat16)]
    contestants = [*ours, *(peer for peer in workload.peers if peer in args.only)]
    results: list[Result] = []
    profiles = {c: measure("own_profile.py", workload, frames, OURS[c]) for c in ours}
    limits: dict[str, list[dict[str, float]]] = {c: [] for c in ours}
    for seed in range(repeats):
        for our in ours:
            limits[our].append(measure("limit.py", workload, frames, OURS[our]))
            limit = limits[our][-1]["fps"]
            print(f"  limit in {OURS[our]}, round {seed}: {limit:,.0f} frames/s", flush=True)
        for contestant in contestants:
            results.append(run_once(contestant, workload, frames, seed, args.peer_python))
            print(f"  {contestant} seed {seed}: {results[-1].fps:,.0f} frames/s", flush=True)

    print(f"\n{table(results)}\n")
    report: dict[str, Any] = {
        "machine": machine,
        "settings": settings,
        "target": workload.target,
        "results": [asdict(result) for result in results],
    }
    peers = [c for c in contestants if c in PEERS]
    for our in ours:
        found = summary(our, results, peers, limits[our], profiles[our])
        report |= found if our == "slm_lab" else {OURS[our]: found}
    for contestant in contestants:
        versions = next(r.versions for r in results if r.contestant == contestant)
        print(f"{contestant}: " + ", ".join(f"{name} {v}" for name, v in versions.items()))
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{name}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written: {path.name}")


def summary(
    our: str,
    results: Sequence[Result],
    peers: Sequence[str],
    limits: Sequence[dict[str, float]],
    profile: dict[str, float],
) -> dict[str, Any]:
    """Print how one of ours compares with the peers and with its limit; returns it for the file."""
    compared = {peer: ratios(results, our, peer) for peer in peers}
    for peer, values in compared.items():
        for kind, rounds in values.items():
            if rounds:
                middle = statistics.median(rounds)
                spread = f"{min(rounds):.2f} to {max(rounds):.2f}, {len(rounds)} rounds"
                print(f"{our} / {peer}, {kind}: {middle:.2f} ({spread})")
    speeds = [r.steady_fps for r in results if r.contestant == our]
    shares = [fps / limit["fps"] for fps, limit in zip(speeds, limits, strict=False)]
    if shares:
        print(f"{our}, share of the machine's limit, steady: {statistics.median(shares):.0%}")
    print(f"{our}: " + ", ".join(f"{key} {value:,.3f}" for key, value in profile.items()))
    for limit in limits:
        parts = ", ".join(f"{key} {value:,.3f}" for key, value in limit.items())
        print(f"limit in {OURS[our]}: {parts}")
    return {"ratios": compared, "limits": limits, "profile": profile, "share_of_limit": shares}


if __name__ == "__main__":
    main()
