"""A slice of `make torture`, always the same, and proof that the harness sees what is bad."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.torture.attack import Attack, Case, Outcome, Result
from tests.torture.attacks import every_attack
from tests.torture.comparison import compare_runs
from tests.torture.harness import Schedule, Summary, run_cases, scratch_root
from tests.torture.slice import SLICE
from tests.torture.victim import run_isolated
from tests.torture.warm import copy_instead_of_spawning

pytest.importorskip("dash")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """For all attacks, so that the runs which they disturb are trained once."""
    with scratch_root() as path:
        yield path


def attacked(attacks: list[Attack], most: int, root: Path) -> Summary:
    return run_cases(
        attacks,
        Schedule(attacks, 0, most).next_case,
        seed=0,
        root=root,
        until=time.monotonic() + 600,
        jobs=2,
        show=lambda _: None,
    )


@pytest.fixture(scope="module")
def slice_result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("slice") / "result.json"
    subprocess.run([sys.executable, "-m", "tests.torture.slice", str(path)], cwd=ROOT, check=True)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [(attack.name, most) for attack, most in SLICE])
def test_a_slice_of_each_attack_ends_well(
    slice_result: dict[str, Any], name: str, most: int
) -> None:
    assert slice_result[name] == {"cases": most, "failures": []}


def test_the_slice_has_every_attack():
    names = {attack.name for attack in every_attack()}
    assert names == {attack.name for attack, _ in SLICE} | {"ray"}


def test_a_case_is_the_same_whenever_it_is_drawn():
    for attack in every_attack():
        case = Case(attack.name, 7, seed=3)
        assert repr(attack.draw(case.random)) == repr(attack.draw(case.random))
        other = Case(attack.name, 8, seed=3)
        assert repr(attack.draw(other.random)) != repr(attack.draw(case.random))


def _send_what_is_open(writing: Connection, descriptor: int) -> None:
    """Send our process id, and whether the parent's descriptor of /dev/null is open here."""
    is_null = False
    with suppress(OSError):
        is_null = os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev
    writing.send((os.getpid(), is_null))


def test_a_process_that_a_victim_spawns_is_a_copy_with_its_own_descriptors_only(
    root: Path,
) -> None:
    def body() -> None:
        copy_instead_of_spawning()
        context = multiprocessing.get_context("spawn")
        ours = os.open(os.devnull, os.O_RDONLY)
        reading, writing = context.Pipe(duplex=False)
        process = context.Process(target=_send_what_is_open, args=(writing, ours))
        process.start()
        pid, is_open = reading.recv()
        process.join()
        assert pid == process.pid
        assert not is_open

    assert attacked([Broken(body, patience=20.0)], 1, root).failures == []


# The harness sees it


@dataclass(frozen=True, slots=True)
class Broken:
    """An attack whose victim does what it should not."""

    body: Callable[[], object]
    name: str = "broken"
    seconds: float = 60.0
    share: float = 1.0
    patience: float = 0.5

    def draw(self, random: Random) -> int:
        return random.randrange(10)

    def run(self, drawn: int, scratch: Path, material: Path) -> Result:
        return run_isolated(self.body, scratch, self.patience).result()


def outcome_of(body: Callable[[], object], **keys: float) -> Result:
    with scratch_root() as root:
        (failure,) = attacked([Broken(body, **keys)], 1, root).failures  # type: ignore[arg-type]
    assert failure.case.command == "python -m tests.torture --case broken:0 --seed 0"
    return failure.result


def test_an_exception_is_reported_as_a_traceback():
    found = outcome_of(lambda: 1 / 0)
    assert found == Result(Outcome.TRACEBACK, "ZeroDivisionError: division by zero")


def test_an_error_that_the_guard_of_the_commands_caught_is_one_too():
    def body() -> None:
        from slm_lab.cli.main import guarded

        with guarded(["list"]):
            raise KeyError("x")

    found = outcome_of(body, patience=20.0)
    assert found.outcome is Outcome.TRACEBACK
    assert found.detail.startswith("Unexpected KeyError")


def test_a_refusal_without_a_word_is_one_too():
    assert outcome_of(lambda: sys.exit(2)).detail == "exit code 2 without a message"


def test_a_signal_that_was_not_ours_is_one_too():
    found = outcome_of(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert (found.outcome, found.detail) == (Outcome.TRACEBACK, "exit code -9: ")


def test_a_process_that_does_not_end_is_reported_as_a_hang():
    assert outcome_of(signal.pause).outcome is Outcome.HANG


def test_a_case_that_does_not_end_is_reported_as_a_hang():
    assert outcome_of(signal.pause, patience=60.0, seconds=0.5).outcome is Outcome.HANG


def test_memory_without_end_is_a_traceback():
    assert outcome_of(lambda: bytearray(5 * 10**9), patience=20.0).detail == "MemoryError"


def test_an_interrupt_that_python_dropped_is_not_blamed_on_the_command(root: Path) -> None:
    def body() -> None:
        text = (
            "  File 'weakref.py', line 369, in remove\n    def remove(k):\n\nKeyboardInterrupt: \n"
        )
        sys.stderr.write(f"Exception ignored in: <x>\nTraceback (most recent call last):\n{text}")

    summary = attacked([Broken(body)], 1, root)
    assert summary.counts["broken"][Outcome.OK] == 1


def test_a_case_counts_as_often_as_it_attacked():
    summary = Summary(seed=0)
    for number in range(2):
        summary.add(Case("kills", number, 0), "", Result(Outcome.EQUAL, tried=3))
    assert summary.tried["kills"] == 6
    assert summary.counts["kills"].total() == 2


def test_a_child_that_outlives_its_parent_is_left_behind(monkeypatch):
    monkeypatch.setattr("tests.torture.victim.ORPHAN_SECONDS", 0.2)
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    for own_session in (False, True):
        body = partial(subprocess.Popen, command, start_new_session=own_session)
        found = outcome_of(body, patience=20.0)
        assert found.outcome is Outcome.LEFT_BEHIND
        assert "time.sleep(60)" in found.detail


def test_a_refusal_is_no_failure(root: Path) -> None:
    summary = attacked([Broken(lambda: sys.exit("SpecError: no"))], 1, root)
    assert summary.counts["broken"][Outcome.REFUSED] == 1
    assert not summary.failures


@pytest.fixture
def runs(tmp_path: Path, train_folder, make_spec) -> tuple[Path, Path]:
    ours = train_folder(make_spec())
    theirs = tmp_path / "theirs"
    shutil.copytree(ours, theirs)
    return ours, theirs


def test_equal_runs_are_equal(runs):
    assert compare_runs(*runs).outcome is Outcome.EQUAL


def test_a_missing_file_or_row_is_lost_and_another_one_is_left_behind(runs):
    ours, theirs = runs
    table = ours / "info" / "tiny_t0_s0_session_df_train.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(lines[:-1]))
    assert compare_runs(ours, theirs).outcome is Outcome.LOST
    table.unlink()
    assert compare_runs(ours, theirs).detail.startswith("files are missing")
    assert compare_runs(theirs, ours).outcome is Outcome.LEFT_BEHIND


def test_another_weight_is_different(runs):
    ours, theirs = runs
    path = min((ours / "model").glob("*_net_model.pt"))
    state = torch.load(path, weights_only=True)
    next(iter(state.values())).view(-1)[0] += 1e-6
    torch.save(state, path)
    assert compare_runs(ours, theirs) == Result(Outcome.DIFFERENT, f"model {path.name}")


def test_time_is_shared_between_the_attacks_by_their_shares():
    attacks: list[Attack] = [Broken(print, "a", share=1.0), Broken(print, "b", share=3.0)]
    schedule, used = Schedule(attacks, 0), {"a": 0.0, "b": 0.0}
    for _ in range(40):
        case = schedule.next_case(used)
        assert case is not None
        used[case.attack] += 1.0
    assert used == {"a": 10.0, "b": 30.0}
