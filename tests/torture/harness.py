"""Runs cases of all attacks side by side until the time or the number of cases is used up."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.torture.attack import Attack, Case, Outcome, Result

POLL_SECONDS = 0.005
# Loaded once, for all the copies of this process; none of them starts a thread.
PRELOADED = (
    "matplotlib.backends.backend_agg",
    "plotly.graph_objects",
    "slm_lab.analysis.comparison_plot",
    "slm_lab.analysis.trial_graphs",
    "slm_lab.api.live_graphs",
    "slm_lab.api.results",
    "slm_lab.api.run",
    "slm_lab.cli.main",
    "slm_lab.dashboard.report",
    "slm_lab.dashboard.server",
    "slm_lab.hub.directory",
    "slm_lab.hub.transfer",
    "slm_lab.playback.enjoy",
    "slm_lab.playback.export",
    "slm_lab.training.session",
)


@dataclass(frozen=True, slots=True)
class Failure:
    case: Case
    drawn: str
    result: Result

    def describe(self) -> str:
        return (
            f"{self.case.name}  {self.result.outcome}: {self.result.detail}\n"
            f"    {self.drawn[:600]}\n    repeat: {self.case.command}"
        )


@dataclass(slots=True)
class Summary:
    """Counts of outcomes for each attack, and the cases that failed."""

    seed: int
    counts: dict[str, Counter[Outcome]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, case: Case, drawn: str, result: Result, seconds: float) -> None:
        self.counts.setdefault(case.attack, Counter())[result.outcome] += 1
        self.seconds[case.attack] = self.seconds.get(case.attack, 0.0) + seconds
        if result.outcome.is_bad:
            self.failures.append(Failure(case, drawn, result))

    def table(self) -> str:
        heads = ["attack", "tried", *Outcome, "seconds"]
        rows = [heads]
        for name, counts in self.counts.items():
            cells = [str(counts[outcome]) for outcome in Outcome]
            rows.append([name, str(counts.total()), *cells, f"{self.seconds[name]:.0f}"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def to_json(self) -> str:
        attacks = {
            name: {"tried": counts.total(), **{str(o): counts[o] for o in Outcome}}
            for name, counts in self.counts.items()
        }
        failures = [
            {
                "case": failure.case.name,
                "outcome": failure.result.outcome,
                "detail": failure.result.detail,
                "drawn": failure.drawn,
                "repeat": failure.case.command,
            }
            for failure in self.failures
        ]
        content = {"seed": self.seed, "attacks": attacks, "failures": failures}
        return json.dumps(content, indent=1) + "\n"


@dataclass(slots=True)
class Running:
    """A case in its process, which writes its result beside the scratch folder."""

    case: Case
    drawn: str
    pid: int
    began: float
    scratch: Path
    seconds: float

    @property
    def answer(self) -> Path:
        return self.scratch.with_suffix(".json")


def run_cases(
    attacks: Sequence[Attack],
    next_case: Callable[[Mapping[str, float]], Case | None],
    *,
    seed: int,
    root: Path,
    until: float,
    jobs: int,
    show: Callable[[str], object],
) -> Summary:
    """Run cases in processes of their own, `jobs` at a time; none is started after `until`.

    `next_case` chooses one, given the seconds that each attack has used.
    """
    for module in PRELOADED:
        importlib.import_module(module)
    known = {attack.name: attack for attack in attacks}
    summary, running = Summary(seed), list[Running]()
    material = root / "material"
    material.mkdir(exist_ok=True)
    exhausted = False
    try:
        while running or not exhausted:
            while not exhausted and len(running) < jobs:
                used = _used(summary, running)
                case = next_case(used) if time.monotonic() < until else None
                if case is None:
                    exhausted = True
                    break
                running.append(_start(known[case.attack], case, root, material))
            for one in [one for one in running if _has_ended(one)]:
                running.remove(one)
                result = _result_of(one)
                summary.add(one.case, one.drawn, result, time.monotonic() - one.began)
                if result.outcome.is_bad:
                    show(summary.failures[-1].describe())
                _clear(one.scratch)
            time.sleep(POLL_SECONDS)
    finally:
        for one in running:
            _kill_tree(one.pid)
    return summary


@dataclass(slots=True)
class Schedule:
    """Which case is next: of the attack that has had least of its share of the time.

    `most` is the number of cases for each attack.
    """

    attacks: Sequence[Attack]
    seed: int
    most: int | None = None
    numbers: Counter[str] = field(default_factory=Counter)

    def next_case(self, used: Mapping[str, float]) -> Case | None:
        left = [a for a in self.attacks if self.most is None or self.numbers[a.name] < self.most]
        if not left:
            return None
        name = min(left, key=lambda attack: used.get(attack.name, 0.0) / attack.share).name
        self.numbers[name] += 1
        return Case(name, self.numbers[name] - 1, self.seed)


@contextmanager
def scratch_root() -> Iterator[Path]:
    """In memory where there is such a place: syncing is not what is tested here."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="torture_", dir=memory if memory.is_dir() else None))
    try:
        yield root
    finally:
        _clear(root)


def _used(summary: Summary, running: Sequence[Running]) -> dict[str, float]:
    used = dict(summary.seconds)
    for one in running:
        spent = time.monotonic() - one.began
        used[one.case.attack] = used.get(one.case.attack, 0.0) + spent
    return used


def _start(attack: Attack, case: Case, root: Path, material: Path) -> Running:
    drawn = attack.draw(case.random)
    scratch = root / case.name.replace(":", "_")
    scratch.mkdir()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                result = attack.run(drawn, scratch, material)
            except BaseException:
                result = Result(Outcome.TRACEBACK, f"in the harness: {traceback.format_exc()}")
            content = json.dumps([result.outcome, result.detail])
            scratch.with_suffix(".json").write_text(content)
        finally:
            os._exit(0)
    return Running(case, repr(drawn), pid, time.monotonic(), scratch, attack.seconds)


def _has_ended(one: Running) -> bool:
    pid, _ = os.waitpid(one.pid, os.WNOHANG)
    if pid:
        return True
    if time.monotonic() - one.began < one.seconds:
        return False
    _kill_tree(one.pid)
    os.waitpid(one.pid, 0)
    return True


def _result_of(one: Running) -> Result:
    try:
        outcome, detail = json.loads(one.answer.read_text())
    except FileNotFoundError:
        return Result(Outcome.HANG, f"the case took more than {one.seconds:.0f} s, or died")
    one.answer.unlink()
    return Result(Outcome(outcome), detail)


def _kill_tree(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        tree = [*process.children(recursive=True), process]
    except psutil.Error:
        return
    for member in tree:
        try:
            member.kill()
        except psutil.Error:
            continue


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
