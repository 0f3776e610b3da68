"""Compare what float32 and bfloat16 learn, over paired seeds.

    python -m perf.precision_gate                         every workload, four seeds: a day
    python -m perf.precision_gate sac_pendulum --seeds 2  some of it
    python -m perf.precision_gate --table                 only print what is there

A run is a `slm-lab run` of a shipped spec. Runs whose score is in results/precision_gate.json are
not repeated, and a run that was stopped goes on from its checkpoint: start the same command again.
The two precisions of a seed follow one another. `final` is the mean return of the last 100 training
episodes, `area` the mean of the curve. A difference is bfloat16 minus float32 of the same seed,
with the 95 % interval of its mean by Student's t.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "precision_gate.json"
CLI = str(Path(sys.executable).parent / "slm-lab")
PRECISIONS = ("float32", "bfloat16")
# 97.5 % points of Student's t by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}


class Gate(NamedTuple):
    spec_file: str
    frames: int


GATES = {
    "sac_pendulum": Gate("benchmark/sac/sac_pendulum.json", 30_000),
    "crossq_pendulum": Gate("benchmark/crossq/crossq_pendulum.json", 30_000),
    "sac_halfcheetah": Gate("benchmark/sac/sac_halfcheetah.json", 200_000),
    "ppo_hopper": Gate("benchmark/ppo/ppo_hopper.json", 1_000_000),
    "dqn_concat_lunar": Gate("benchmark/dqn/dqn_lunar.json", 300_000),
    "ppo_pong": Gate("benchmark/ppo/ppo_pong.json", 1_000_000),
}
Score = dict[str, float]


def key(name: str, precision: str, seed: int) -> str:
    return f"{name} {precision} {seed}"


def train(name: str, precision: str, seed: int, folder: Path, frames: int) -> Score:
    """Train a run, or go on with it, in a folder of its own; returns its score."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = HERE.parent / "slm_lab" / "spec"
    command = [CLI, "run", str(specs / GATES[name].spec_file), name]
    sets = [
        f"env.max_frame={frames}",
        f"meta.precision={precision}",
        f"meta.random_seed={seed}",
        "meta.max_session=1",
        "meta.threads=1",
    ]
    started = sorted(folder.glob("data/*/info"))
    if started:
        command += [f"train@{started[-1].parent.relative_to(folder)}"]
    else:
        command += ["train", *(part for each in sets for part in ("-s", each))]
    before = time.monotonic()
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit {process.returncode}\n{process.stderr[-2000:]}")
    (file,) = folder.glob("data/*/info/*_t0_s0_session_df_train.csv")
    with file.open(newline="") as lines:
        returns = [
            float(row["total_reward"])
            for row in csv.DictReader(lines)
            if row.get("total_reward") and math.isfinite(float(row["total_reward"]))
        ]
    seconds = time.monotonic() - before
    return {
        "frames": frames,
        "final": returns[-1],
        "area": statistics.mean(returns),
        "seconds": seconds,
    }


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of paired differences."""
    freedom = len(differences) - 1
    if freedom not in STUDENT:
        return None
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    mean = statistics.mean(differences)
    return mean - STUDENT[freedom] * error, mean + STUDENT[freedom] * error


def table(scores: dict[str, Score]) -> Iterator[str]:
    """A Markdown table of the seeds that have both precisions."""
    yield "| spec | frames | seeds | measure | float32 | bfloat16 | difference, 95 % | passes |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in GATES:
        seeds = [s for s in range(100) if all(key(name, p, s) in scores for p in PRECISIONS)]
        frames = {scores[key(name, p, s)]["frames"] for s in seeds for p in PRECISIONS}
        for measure in ("final", "area") if seeds else ():
            values = {p: [scores[key(name, p, s)][measure] for s in seeds] for p in PRECISIONS}
            pairs = zip(*(values[p] for p in PRECISIONS), strict=True)
            differences = [half - full for full, half in pairs]
            means = [f"{statistics.mean(values[p]):.1f}" for p in PRECISIONS]
            found = interval(differences)
            spread = f" ({found[0]:+.1f} to {found[1]:+.1f})" if found else ""
            passes = "-" if found is None else "yes" if found[1] >= 0 else "no"
            trained = " or ".join(f"{n:,.0f}" for n in sorted(frames))
            cells = [name, trained, str(len(seeds)), measure, *means]
            cells += [f"{statistics.mean(differences):+.1f}{spread}", passes]
            yield "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="SPEC", help=", ".join(GATES))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--frames", type=int, help="default: as the gate says")
    parser.add_argument("--folder", type=Path, default=Path("data/precision_gate"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="train nothing")
    args = parser.parse_args()
    if unknown := set(args.names) - set(GATES):
        parser.error(f"no gate {', '.join(sorted(unknown))}. There are: {', '.join(GATES)}")
    scores: dict[str, Score] = json.loads(args.output.read_text()) if args.output.exists() else {}
    missing = [
        (name, precision, seed)
        for seed in range(0 if args.table else args.seeds)
        for name in args.names or GATES
        for precision in PRECISIONS
        if key(name, precision, seed) not in scores
    ]
    for name, precision, seed in missing:
        run = key(name, precision, seed)
        print(f"{run} ...", flush=True)
        folder = args.folder.resolve() / run.replace(" ", "_")
        scores[run] = train(name, precision, seed, folder, args.frames or GATES[name].frames)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(scores, indent=1) + "\n")
    print("\n".join(table(scores)))


if __name__ == "__main__":
    main()
