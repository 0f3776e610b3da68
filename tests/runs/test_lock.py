"""Two processes cannot work on one run folder, and a dead one does not."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from slm_lab.runs.lock import LockedError, is_held, locked

FORK = multiprocessing.get_context("fork")


def hold(path: Path, line: Connection) -> None:
    with locked(path, "the folder"):
        line.send("held")
        with suppress(EOFError):  # until somebody speaks, or nobody is there any more
            line.recv()


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock, and a line to let it go."""
    line, other_end = FORK.Pipe()
    process = FORK.Process(target=hold, args=(tmp_path / "run.lock", other_end), daemon=True)
    process.start()
    other_end.close()
    assert line.poll(20)
    yield process, line
    process.kill()
    process.join()


def test_a_second_process_is_refused_with_the_first_ones_name(tmp_path, holder):
    process, _ = holder
    expected = f"the folder is in use by process {process.pid} on "
    with pytest.raises(LockedError, match=expected), locked(tmp_path / "run.lock", "the folder"):
        raise AssertionError


def test_the_same_process_is_refused_too(tmp_path):
    path = tmp_path / "run.lock"
    with locked(path, "a"), pytest.raises(LockedError, match=str(os.getpid())), locked(path, "b"):
        raise AssertionError


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_process_that_went_on_to_another_folder_no_longer_holds_the_first(tmp_path, error):
    first, second = tmp_path / "first.lock", tmp_path / "second.lock"
    with suppress(ValueError), locked(first, "a"):
        if error:
            raise error
    with locked(second, "b"):
        assert not is_held(first)
        assert is_held(second)


def test_a_killed_process_holds_nothing(tmp_path, holder):
    process, _ = holder
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with locked(tmp_path / "run.lock", "the folder"):
        pass


def test_a_process_that_is_about_to_end_can_be_waited_for(tmp_path, holder):
    _, line = holder
    line.send("go")
    with locked(tmp_path / "run.lock", "the folder", patience=20):
        pass


@pytest.mark.parametrize("left", ["", "garbage", '{"pid": 1, "host": "elsewhere"}', "[]"])
def test_a_file_that_nobody_locks_is_no_lock(tmp_path, left):
    path = tmp_path / "run.lock"
    path.write_text(left)
    with locked(path, "the folder"):
        assert f'"pid": {os.getpid()}' in path.read_text()
    with locked(path, "the folder"):  # and again: it was let go
        pass


def test_a_holder_without_a_name_is_still_a_holder(tmp_path, holder):
    (tmp_path / "run.lock").write_text("garbage")
    with (
        pytest.raises(LockedError, match="another process"),
        locked(tmp_path / "run.lock", "the folder"),
    ):
        raise AssertionError


def test_where_nothing_can_be_written_nothing_need_be_locked(tmp_path):
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file" / "run.lock", "the folder"):
        pass


def test_whether_a_lock_is_held_can_be_asked_without_taking_it(tmp_path, holder):
    process, _ = holder
    lock = tmp_path / "run.lock"
    assert is_held(lock)
    process.kill()
    process.join()
    assert not is_held(lock)
    assert not is_held(tmp_path / "never.lock")
    with locked(lock, "the folder"):
        assert is_held(lock)


def name_owner(path: Path, **changes: object) -> None:
    """Write a lock file that names this process as its owner, and take no lock."""
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    path.write_text(json.dumps(owner | changes))


def test_the_owner_is_known_by_its_id_and_the_time_it_started(tmp_path):
    lock, started = tmp_path / "run.lock", psutil.Process().create_time()
    name_owner(lock, started=started)
    assert is_held(lock)
    name_owner(lock, started=started - 60)  # a process that has died since; its id is used again
    assert not is_held(lock)


def test_the_owner_of_an_older_lock_file_started_before_the_file_was_written(tmp_path):
    lock, started = tmp_path / "run.lock", psutil.Process().create_time()
    name_owner(lock)
    assert is_held(lock)
    os.utime(lock, (started - 60, started - 60))
    assert not is_held(lock)


def test_a_killed_process_that_nobody_has_waited_for_holds_nothing(tmp_path, holder):
    process, line = holder
    assert line.recv() == "held"
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EOFError):  # its end of the line is closed: it is dead, and a zombie
        line.recv()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert not is_held(tmp_path / "run.lock")


def test_a_lock_of_another_machine_is_neither_held_nor_free(tmp_path):
    name_owner(tmp_path / "run.lock", host="elsewhere")
    assert is_held(tmp_path / "run.lock") is None


def test_asking_does_not_turn_away_a_process_that_takes_the_lock_meanwhile(tmp_path, monkeypatch):
    lock, taken = tmp_path / "run.lock", []
    own_start: float = psutil.Process().create_time()

    # The lock is taken while its owner is looked up.
    class SlowProcess(psutil.Process):  # type: ignore[misc]  # published without types
        def create_time(self) -> float:
            monkeypatch.undo()
            with locked(lock, "the folder"):
                taken.append(True)
            return own_start

    name_owner(lock)
    monkeypatch.setattr("slm_lab.runs.lock.psutil.Process", SlowProcess)
    assert is_held(lock)
    assert taken
