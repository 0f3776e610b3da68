"""`python -m tests.torture`: attack slm_lab, print what happened, fail if anything was bad."""

from __future__ import annotations

import os

# Before torch and matplotlib load: small nets on many threads are slower and not repeatable.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["SDL_VIDEODRIVER"] = "dummy"
os.environ.pop("SLM_LAB_TRUST", None)
os.environ.pop("HF_REPO", None)

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from tests.torture.attack import Attack, Case
from tests.torture.attacks import every_attack
from tests.torture.harness import Schedule, Summary, run_cases, scratch_root

RESULT = Path("torture.json")


def main() -> int:
    options = _options()
    attacks = _chosen(options.only)
    show = partial(print, flush=True)
    name, _, number = options.case.partition(":")
    one = iter([Case(name, int(number or 0), options.seed)])
    began = time.monotonic()
    with scratch_root() as root:
        schedule = Schedule(attacks, options.seed, options.most)
        summary = run_cases(
            attacks,
            (lambda _: next(one, None)) if options.case else schedule.next_case,
            seed=options.seed,
            root=root,
            until=began + options.seconds,
            jobs=options.jobs,
            show=show,
        )
    _report(summary, time.monotonic() - began, options.output)
    return 1 if summary.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="time for all attacks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of attacks, separated by commas")
    parser.add_argument("--most", type=int, help="most cases of each attack")
    parser.add_argument("--case", default="", help="one case, as kills:123")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--output", type=Path, default=RESULT, help="JSON file of the result")
    return parser.parse_args()


def _chosen(only: str) -> list[Attack]:
    attacks = {attack.name: attack for attack in every_attack()}
    names = [name.strip() for name in only.split(",") if name.strip()] or list(attacks)
    if unknown := [name for name in names if name not in attacks]:
        sys.exit(f"--only: no attack {', '.join(unknown)}; expected some of {', '.join(attacks)}")
    return [attacks[name] for name in names]


def _report(summary: Summary, seconds: float, output: Path) -> None:
    print(f"\nseed {summary.seed}, {seconds:.0f} s")
    print(summary.table())
    for failure in summary.failures:
        print(f"\n{failure.describe()}")
    output.write_text(summary.to_json())
    print(f"\nwritten to {output}")


if __name__ == "__main__":
    sys.exit(main())
