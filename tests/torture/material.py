"""What cases share and is made once: specs, finished and half-done runs, comparisons of runs."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.runs.layout import Mode, RunLayout
from slm_lab.spec import Spec
from tests.killing import killed_at
from tests.sessions import EVERY_ALGORITHM, leaves, small_spec
from tests.torture.attack import Outcome, Result
from tests.torture.victim import Ended, Victim, run_isolated, slm_lab

TRAIN_SECONDS = 120.0
CHECKPOINTS = {
    "meta__checkpoint_frequency": 60,
    "meta__log_frequency": 40,
    "meta__eval_frequency": 160,
}
DISTRIBUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "synced PPO": ("PPO", {"meta__distributed": "synced", "meta__max_session": 2}),
    "shared DQN": ("DQN", {"meta__distributed": "shared", "meta__max_session": 2}),
}
SEVERAL: dict[str, tuple[str, dict[str, Any]]] = {
    "two sessions of PPO": ("PPO", {"meta__max_session": 2})
}
FAMILIES = (*EVERY_ALGORITHM, *SEVERAL, *DISTRIBUTED)
# Not logs, which tell of every life of a run; not locks, nor checkpoints, which depend on the past.
APART = ("log/", "checkpoint/")


def spec_of(family: str) -> Spec:
    algorithm, keys = {**SEVERAL, **DISTRIBUTED}.get(family, (family, {}))
    return small_spec(algorithm, **(CHECKPOINTS | keys))


def write_spec(spec: Spec, folder: Path) -> None:
    """As tiny.json, for `slm-lab run tiny.json tiny`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.json").write_text(json.dumps({"tiny": spec.to_dict()}))


def train(mode: str) -> Callable[[], None]:
    return slm_lab("run", "tiny.json", "tiny", mode, "--log-level", "WARNING")


def once(path: Path, build: Callable[[Path], None]) -> Path:
    """A folder that the first process to need it builds."""
    with FileLock(f"{path}.lock"):
        if not path.exists():
            beside = path.with_name(f"{path.name}.part")
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            build(beside)
            beside.rename(path)
    return path


@dataclass(frozen=True, slots=True)
class Reference:
    """An undisturbed run: its folder, how long it took, how often it changed a file."""

    run: Path
    seconds: float
    steps: int


def reference(family: str, material: Path) -> Reference:
    def build(folder: Path) -> None:
        write_spec(spec_of(family), folder)

        def counted() -> None:
            with killed_at(0) as steps:
                try:
                    train("train")()
                finally:
                    Path("steps").write_text(str(steps()))

        began = time.monotonic()
        check(run_isolated(counted, folder, TRAIN_SECONDS))
        (folder / "seconds").write_text(str(time.monotonic() - began))

    folder = once(material / f"whole {family}", build)
    seconds, steps = ((folder / name).read_text() for name in ("seconds", "steps"))
    return Reference(newest_run(folder), float(seconds), int(steps))


def half_done(family: str, material: Path) -> Path:
    """A folder with tiny.json, and a run in data/ that was stopped on its way."""

    def build(folder: Path) -> None:
        write_spec(spec_of(family), folder)
        with Victim(train("train"), folder) as victim:
            until = time.monotonic() + TRAIN_SECONDS
            while not list(folder.glob("data/*/checkpoint/*_s0/last-1")):
                if time.monotonic() > until or victim.wait(0.002).code is not None:
                    raise AssertionError(f"{family}: was not stopped on its way")
            victim.signal(signal.SIGTERM)
            victim.wait(TRAIN_SECONDS)

    return once(material / f"half {family}", build)


def check(ended: Ended) -> None:
    """Material is made without a disturbance, and must succeed."""
    if ended.code != 0:
        raise AssertionError(f"could not make the material: {ended.code} {ended.err[-2000:]}")


def newest_run(folder: Path) -> Path:
    """The run folder in `folder/data` that a resume takes."""
    return max(path.parent for path in folder.glob("data/*/*_t0_spec.json"))


def compare_runs(ours: Path, theirs: Path, *, exactly: bool = True) -> Result:
    """Compare a run that was disturbed with one that was not: files, tables, models.

    `exactly` is for runs whose sessions do not race.
    """
    mine, other = set(_names(ours)), set(_names(theirs))
    if missing := sorted(other - mine):
        return Result(Outcome.LOST, f"files are missing: {missing[:5]}")
    if extra := sorted(mine - other) + _remains(ours):
        return Result(Outcome.LEFT_BEHIND, f"files are left: {extra[:5]}")
    layouts = [RunLayout(path, "tiny") for path in (ours, theirs)]
    modes: tuple[Mode, ...] = ("train", "eval")
    for session in layouts[1].sessions(0):
        for mode in modes:
            found = [
                drop_clock(read_session(layout.session_csv(0, session, mode))) for layout in layouts
            ]
            what = f"table of session {session}, {mode}"
            if exactly and len(found[0]) < len(found[1]):
                return Result(Outcome.LOST, f"{what}: {len(found[0])} of {len(found[1])} rows")
            if found[0].empty != found[1].empty:
                return Result(Outcome.LOST, f"{what}: {len(found[0])} rows")
            if exactly and found[0].to_csv() != found[1].to_csv():
                return Result(Outcome.DIFFERENT, what)
    if exactly:
        for path in sorted((ours / "model").glob("*.pt")):
            if not _same_model(path, theirs / "model" / path.name):
                return Result(Outcome.DIFFERENT, f"model {path.name}")
    return Result(Outcome.EQUAL)


def _names(run: Path) -> Iterator[str]:
    for path in run.rglob("*"):
        name = path.relative_to(run).as_posix()
        if path.is_file() and not name.startswith(APART) and path.suffix != ".lock":
            yield name


def _remains(run: Path) -> list[str]:
    """What a checkpoint folder must not hold at the end."""
    found = (path for path in (run / "checkpoint").rglob("*"))
    return [path.name for path in found if path.suffix in (".writing", ".damaged", ".tmp")]


def _same_model(ours: Path, theirs: Path) -> bool:
    one, two = (leaves(torch.load(path, weights_only=True)) for path in (ours, theirs))
    if one.keys() != two.keys():
        return False
    return all(_equal(value, two[key]) for key, value in one.items())


def _equal(one: Any, two: Any) -> bool:
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one == two)
