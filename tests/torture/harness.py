"""Runs cases of all attacks side by side until the time or the number of cases is used up."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.torture.attack import Attack, Case, Outcome, Result
from tests.torture.victim import processes_in
from tests.torture.warm import warmed_up

POLL_SECONDS = 0.005


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
    counts: dict[str, Counter[Outcome]] = field(default_factory=dict)  # of cases
    tried: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(
        self, case: Case, drawn: str, result: Result, *, seconds: float = 0.0, cpu: float = 0.0
    ) -> None:
        self.counts.setdefault(case.attack, Counter())[result.outcome] += 1
        self.tried[case.attack] += result.tried
        self.seconds[case.attack] = self.seconds.get(case.attack, 0.0) + seconds
        self.cpu[case.attack] = self.cpu.get(case.attack, 0.0) + cpu
        if result.outcome.is_bad:
            self.failures.append(Failure(case, drawn, result))

    def table(self) -> str:
        heads = ["attack", "tried", "cases", *Outcome, "seconds", "of a CPU"]
        rows = [heads]
        for name, counts in self.counts.items():
            numbers = [self.tried[name], counts.total(), *(counts[o] for o in Outcome)]
            times = (self.seconds[name], self.cpu[name])
            rows.append([name, *map(str, numbers), *(f"{time:.0f}" for time in times)])
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
            name: {
                "tried": self.tried[name],
                "cases": counts.total(),
                **{str(o): counts[o] for o in Outcome},
                "seconds": round(self.seconds[name]),
                "cpu seconds": round(self.cpu[name]),
            }
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
    cpu: float = 0.0  # used, by it and by its victims, when it has ended

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
    summary = Summary(seed)
    (root / "material").mkdir(exist_ok=True)
    with warmed_up():
        _run_cases(attacks, next_case, summary, root=root, until=until, jobs=jobs, show=show)
    return summary


def _run_cases(
    attacks: Sequence[Attack],
    next_case: Callable[[Mapping[str, float]], Case | None],
    summary: Summary,
    *,
    root: Path,
    until: float,
    jobs: int,
    show: Callable[[str], object],
) -> None:
    known = {attack.name: attack for attack in attacks}
    running = list[Running]()
    exhausted = False
    try:
        while running or not exhausted:
            while not exhausted and len(running) < jobs:
                used = _used(summary, running)
                case = next_case(used) if time.monotonic() < until else None
                if case is None:
                    exhausted = True
                    break
                running.append(_start(known[case.attack], case, root))
            for one in [one for one in running if _has_ended(one)]:
                running.remove(one)
                result = _result_of(one)
                spent = time.monotonic() - one.began
                summary.add(one.case, one.drawn, result, seconds=spent, cpu=one.cpu)
                if result.outcome.is_bad:
                    show(summary.failures[-1].describe())
                _clear(one.scratch)
            time.sleep(POLL_SECONDS)
    finally:
        for one in running:
            _kill_all(one)


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


def _start(attack: Attack, case: Case, root: Path) -> Running:
    drawn = attack.draw(case.random)
    scratch = root / f"{case.attack[:2]}{case.number}"  # short: Ray's sockets are below it
    scratch.mkdir()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                result = attack.run(drawn, scratch, root / "material")
            except BaseException:
                result = Result(Outcome.TRACEBACK, f"in the harness: {traceback.format_exc()}")
            content = json.dumps([result.outcome, result.detail, result.tried])
            scratch.with_suffix(".json").write_text(content)
        finally:
            os._exit(0)
    return Running(case, repr(drawn), pid, time.monotonic(), scratch, attack.seconds)


def _has_ended(one: Running) -> bool:
    options = os.WNOHANG
    if time.monotonic() - one.began > one.seconds:
        _kill_all(one)
        options = 0
    pid, _, usage = os.wait4(one.pid, options)
    one.cpu = usage.ru_utime + usage.ru_stime
    return bool(pid)


def _result_of(one: Running) -> Result:
    try:
        outcome, detail, tried = json.loads(one.answer.read_text())
    except FileNotFoundError:
        return Result(Outcome.HANG, f"the case took more than {one.seconds:.0f} s, or died")
    one.answer.unlink()
    return Result(Outcome(outcome), detail, tried)


def _kill_all(one: Running) -> None:
    """Kill a case and its victims, also those whose parent has died."""
    for process in [psutil.Process(one.pid), *processes_in(one.scratch)]:
        with suppress(psutil.Error):
            process.kill()


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
