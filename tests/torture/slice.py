"""A slice of `make torture`, always the same: `python -m tests.torture.slice RESULT`.

It has a process of its own, because cases are copies of the process that runs them, and one in
which other tests have run is not what a user starts.
"""

from __future__ import annotations

import tests.torture.__main__  # noqa: F401  sets variables before torch loads

# isort: split
import json
import sys
import time
from pathlib import Path

from tests.torture.attack import Attack
from tests.torture.faults import Faults
from tests.torture.finishing import Finishing
from tests.torture.harness import Schedule, run_cases, scratch_root
from tests.torture.kills import Kills
from tests.torture.links import Links
from tests.torture.mutations import Mutations
from tests.torture.page import Page
from tests.torture.remotes import Remotes
from tests.torture.searches import Searches
from tests.torture.specs import Specs

ONE_PROCESS = ("PPO", "DDQN+PER")
# Attacks, and how many cases of each. No search on Ray, which takes half a minute.
SLICE: tuple[tuple[Attack, int], ...] = (
    (Kills(families=ONE_PROCESS), 3),
    (Finishing(families=ONE_PROCESS, each=3), 1),
    (Searches(), 1),
    (Mutations(), 2),
    (Links(), 2),
    (Faults(), 3),
    (Specs(), 15),
    (Remotes(), 4),
    (Page(), 2),
)
SECONDS = 600.0


def main(result: Path) -> None:
    found = {}
    with scratch_root() as root:  # for all attacks: the runs that they disturb are trained once
        for attack, most in SLICE:
            summary = run_cases(
                [attack],
                Schedule([attack], 0, most).next_case,
                seed=0,
                root=root,
                until=time.monotonic() + SECONDS,
                jobs=2,
                show=lambda _: None,
            )
            failures = [failure.describe() for failure in summary.failures]
            found[attack.name] = {
                "cases": summary.counts[attack.name].total(),
                "failures": failures,
            }
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
