"""Kills of a search, which is resumed and must leave what an undisturbed one leaves.

Its trials take turns in its own process, so that it can be killed at any change of a file. See
`ray_searches.py` for kills of searches on Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from slm_lab.spec import spec_from_dict
from tests.killing import killed_at
from tests.torture.attack import Outcome, Result, worst
from tests.torture.comparison import JOURNAL, compare_runs
from tests.torture.kills import DRAWN_SHARE, MOST_RESUMES, Kill, draw_kills, live, temporary_remains
from tests.torture.material import Reference, check, once, spec_of, write_spec
from tests.torture.turns import search_in_turns
from tests.torture.victim import run_isolated, slm_lab
from tests.torture.warm import quick

SEARCH_SECONDS = 240.0
TRIALS = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    graphs: bool
    validate: int
    kills: tuple[Kill, ...]


@dataclass(frozen=True, slots=True)
class Searches:
    name: str = "searches"
    seconds: float = 900.0
    share: float = 0.3

    def draw(self, random: Random) -> Drawn:
        return Drawn(
            graphs=random.random() < DRAWN_SHARE,
            validate=random.choice((0, 0, 0, 1)),
            kills=draw_kills(random),
        )

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        whole = _reference(drawn, material)
        write_search(scratch)
        killed = 0
        for kill in drawn.kills:
            found, is_killed = live(_search(drawn, scratch), kill, whole, scratch)
            killed += is_killed
            if found.outcome.is_bad:
                return Result(found.outcome, f"in {kill}: {found.detail}", killed)
        for _ in range(MOST_RESUMES):
            found = run_isolated(_search(drawn, scratch), scratch, SEARCH_SECONDS).result()
            if found.outcome is not Outcome.REFUSED:
                break
        if found.outcome is Outcome.REFUSED:
            found = Result(Outcome.LOST, f"could not be resumed: {found.detail}")
        if found.outcome is Outcome.OK:
            compared = compare_runs(newest_search(scratch), whole.run)
            found = worst([compared, temporary_remains(scratch)])
        return replace(found, tried=killed)


def write_search(folder: Path) -> None:
    """As tiny.json: early stopping, and a sampler that learns from the trials before."""
    tree = spec_of("PPO").to_dict() | {"search": {"agent.algorithm.gamma__uniform": [0.8, 0.99]}}
    keys = {
        "max_trial": TRIALS,
        "search_sampler": "optuna",
        "search_scheduler": {"grace_period": 80, "reduction_factor": 2},
    }
    spec = spec_from_dict(tree, "tiny").with_values({f"meta.{key}": keys[key] for key in keys})
    write_spec(spec, folder)


def newest_search(folder: Path) -> Path:
    return max(path.parents[1] for path in folder.glob(f"data/*/*/{JOURNAL}"))


def search(scratch: Path, *options: object) -> Callable[[], None]:
    """The body of a victim: search, or resume, if there is a search that a resume could take."""
    journals = list(scratch.glob(f"data/*/*/{JOURNAL}"))
    mode = "search@latest" if journals and list(scratch.glob("data/*/tiny_spec.json")) else "search"
    return slm_lab("run", "tiny.json", "tiny", mode, "--log-level", "WARNING", *options)


def _search(drawn: Drawn, scratch: Path) -> Callable[[], None]:
    body = search_in_turns(search(scratch, "--validate", drawn.validate))
    return body if drawn.graphs else quick(body)


def _reference(drawn: Drawn, material: Path) -> Reference:
    def build(folder: Path) -> None:
        write_search(folder)

        def counted() -> None:
            with killed_at(0) as steps:
                try:
                    _search(drawn, folder)()
                finally:
                    Path("steps").write_text(str(steps()))

        began = time.monotonic()
        check(run_isolated(counted, folder, SEARCH_SECONDS))
        (folder / "seconds").write_text(str(time.monotonic() - began))

    what = f"{'drawn' if drawn.graphs else 'plain'} search, {drawn.validate} validated"
    folder = once(material / what, build)
    seconds, steps = ((folder / name).read_text() for name in ("seconds", "steps"))
    return Reference(newest_search(folder), float(seconds), int(steps))
