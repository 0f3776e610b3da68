"""Files of a session elsewhere: what arrives is whole, in order, and not sent twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.memory.ring import Ring
from slm_lab.runs.checkpoint_manifest import CheckpointError, read_manifest
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.checkpoint import CheckpointStore, read_checkpoint
from slm_lab.training.executors.shipping import (
    Begin,
    Complete,
    FileMessage,
    FileReceiver,
    FileSender,
    Piece,
    Same,
    session_files,
    write_plain,
)

UNIT = "tiny_t0_s0"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The scratch folder of a session."""
    folder = tmp_path / "there" / "run"
    for name in ("info", "log", "model"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The run folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def store(there: Path) -> CheckpointStore:
    return CheckpointStore(there / "checkpoint" / UNIT, UNIT, "spec")


def save(store: CheckpointStore, frame: int, rows: int = 0, **state: Any) -> None:
    tree: dict[str, Any] = {"weights": torch.full((4,), float(frame)), **state}
    if rows:
        tree["ring"] = Ring({"obs": torch.arange(1000.0)[:, None]}, written=rows)
    store.write("last", tree, {"frame": frame, "opt_step": 0, "updates": 0})


def ship(sender: FileSender, here: Path, limit: int = 10**9) -> list[FileMessage]:
    sender.look()
    sent: list[FileMessage] = []
    receiver = FileReceiver(here)
    while not sender.is_empty:
        for message in sender.take(limit):
            assert receiver.accept(message)
            sent.append(message)
    return sent


def frame_of(folder: Path, slot: str = "last") -> int:
    manifest, _ = read_checkpoint(folder / "checkpoint" / UNIT / slot, max_bytes=10**9)
    return manifest.frame


def test_a_log_is_sent_from_where_it_ended_and_a_curve_as_a_whole(there, here):
    log, curve = there / "log" / f"{UNIT}.log", there / "info" / f"{UNIT}.csv"
    sender = FileSender(there)
    log.write_text("one\n")
    curve.write_text("frame\n1\n")
    assert len(ship(sender, here)) == 2
    assert ship(sender, here) == []
    with log.open("a") as file:
        file.write("two\n")
    curve.write_text("frame\n1\n2\n")
    assert ship(sender, here) == [
        Piece(f"info/{UNIT}.csv", 0, b"frame\n1\n2\n"),
        Piece(f"log/{UNIT}.log", 4, b"two\n"),
    ]
    curve.write_text("frame\n")  # shorter than before, as after a resume
    ship(sender, here)
    assert (here / "info" / f"{UNIT}.csv").read_text() == "frame\n"
    assert (here / "log" / f"{UNIT}.log").read_text() == "one\ntwo\n"


def test_a_large_file_comes_in_pieces(there, here, monkeypatch):
    monkeypatch.setattr("slm_lab.training.executors.shipping.PIECE_BYTES", 10)
    content = bytes(range(256))
    (there / "model" / "net.pt").write_bytes(content)
    (there / "model" / "empty.pt").touch()
    assert len(ship(FileSender(there), here, limit=25)) == 27
    assert (here / "model" / "net.pt").read_bytes() == content
    assert (here / "model" / "empty.pt").read_bytes() == b""


def test_what_means_nothing_elsewhere_stays(there, here, store):
    sender = FileSender(there)
    save(store, 1)
    (there / "checkpoint" / UNIT / "session.lock").touch()
    (there / "info" / "curve.csv.tmp").touch()
    (there / "checkpoint" / UNIT / "last.writing").mkdir()
    (there / "checkpoint" / UNIT / "last.writing" / "state.json").touch()
    (there / "checkpoint" / UNIT / "diverged.json").write_text("{}")
    ship(sender, here)
    names = {path.name for path in here.rglob("*") if path.is_file()}
    assert names == {"manifest.json", "state.json", "tensors.safetensors", "diverged.json"}


def test_a_checkpoint_becomes_the_newest_and_the_one_before_stays(there, here, store):
    sender = FileSender(there)
    for frame in (10, 20):
        save(store, frame)
        ship(sender, here)
    assert (frame_of(here), frame_of(here, "last-1")) == (20, 10)
    assert ship(sender, here) == []


def test_the_checkpoint_that_may_say_finished_is_sent_after_all_other_files(there, here, store):
    sender = FileSender(there)
    (there / "model" / f"{UNIT}_net_model.pt").write_bytes(b"weights")
    save(store, 10)
    store.write("best", {"weights": torch.ones(1)}, {"frame": 10, "opt_step": 0, "updates": 0})
    sent = ship(sender, here)
    assert sent[-1] == Complete(f"checkpoint/{UNIT}/last")
    begins = sent.index(Begin(f"checkpoint/{UNIT}/last"))
    assert Complete(f"checkpoint/{UNIT}/best") in sent[:begins]
    assert Piece(f"model/{UNIT}_net_model.pt", 0, b"weights") in sent[:begins]


def test_a_checkpoint_that_is_replaced_while_it_travels_arrives_whole(there, here, store):
    sender, receiver = FileSender(there), FileReceiver(here)
    save(store, 10)
    sender.look()
    first = sender.take(1)
    for frame in (20, 30, 40):  # the folder it came from is gone by now
        save(store, frame)
    rest = []
    while not sender.is_empty:
        rest += sender.take(1)
    assert all(receiver.accept(message) for message in first + rest)
    assert len(rest) > 1
    assert frame_of(here) == 10
    ship(sender, here)
    assert frame_of(here) == 40


def test_the_old_rows_of_a_replay_are_not_sent_again(there, here, store):
    sender = FileSender(there)
    for frame, rows in ((10, 400), (20, 410), (30, 420)):
        save(store, frame, rows)
        sent = ship(sender, here)
    # The third takes over what the first had: a checkpoint shares nothing with the one before it.
    same = [message.path for message in sent if isinstance(message, Same)]
    assert [Path(path).name for path in same] == ["ring-000000000000-000000000400.safetensors"]
    assert frame_of(here) == 30
    _, state = read_checkpoint(here / "checkpoint" / UNIT / "last", max_bytes=10**9)
    copy = torch.zeros(1000, 1)
    state["ring"].copy_into({"obs": copy})
    assert np.array_equal(copy[:420, 0], np.arange(420))


def test_a_damaged_arrival_is_thrown_away_and_sent_again(there, here, store):
    sender, receiver = FileSender(there), FileReceiver(here)
    save(store, 10)
    ship(sender, here)
    save(store, 20)
    sender.look()
    messages = sender.take(10**9)
    for message in messages:
        if isinstance(message, Piece) and message.path.endswith("tensors.safetensors"):
            message = Piece(message.path, 0, message.data[:-1] + b"x")
        accepted = receiver.accept(message)
    assert isinstance(message, Complete)
    assert not accepted
    assert frame_of(here) == 10  # the one before is kept
    sender.take(1)
    sender.forget()
    ship(sender, here)
    assert frame_of(here) == 20


def test_a_session_goes_on_elsewhere_with_what_had_arrived(there, here, store, tmp_path):
    sender = FileSender(there)
    save(store, 10)
    (there / "log" / f"{UNIT}.log").write_text("one\n")
    (there / "log" / "tiny_t0_s1.log").write_text("of another session\n")
    ship(sender, here)
    shutil.rmtree(there.parent)  # the node is gone

    elsewhere = tmp_path / "elsewhere" / "run"
    for message in session_files(here, UNIT):
        write_plain(elsewhere, message)
    assert frame_of(elsewhere) == 10
    assert [path.name for path in (elsewhere / "log").iterdir()] == [f"{UNIT}.log"]
    sender = FileSender(elsewhere)
    sender.look()
    sent = sender.take(10**9)
    assert not any(isinstance(message, Complete) for message in sent)  # it is known over here
    save(CheckpointStore(elsewhere / "checkpoint" / UNIT, UNIT, "spec"), 20)
    ship(sender, here)
    assert frame_of(here) == 20


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../x", "", "a\\b"])
def test_nothing_is_written_outside_the_run_folder(here, path):
    with pytest.raises(ValueError, match="is no file of a run folder"):
        FileReceiver(here).accept(Piece(path, 0, b"x"))


def test_an_unfinished_arrival_is_no_checkpoint(there, here, store):
    sender, receiver = FileSender(there), FileReceiver(here)
    save(store, 10)
    sender.look()
    for message in sender.take(10**9):
        if not isinstance(message, Complete):
            receiver.accept(message)
    with pytest.raises(CheckpointError):
        read_manifest(here / "checkpoint" / UNIT / "last")
    assert list(session_files(here, UNIT)) == []


def test_what_arrives_is_not_written_through_a_link(there, here, tmp_path):
    (there / "info" / "a.csv").write_text("frame\n1\n")
    (tmp_path / "outside").mkdir()
    (here / "info").symlink_to(tmp_path / "outside")
    with pytest.raises(RunFolderError, match="info: is a link"):
        ship(FileSender(there), here)
    assert not list((tmp_path / "outside").iterdir())
