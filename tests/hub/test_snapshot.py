"""A copy of a folder that a run goes on writing to."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from slm_lab.hub import snapshot
from slm_lab.hub.remote import read_run_manifest
from slm_lab.hub.snapshot import take_snapshot
from slm_lab.runs.checkpoint_manifest import MANIFEST, check_file, read_manifest

SESSION = "checkpoint/ppo_cartpole_t0_s0"


@pytest.fixture
def into(run_dir: Path) -> Path:
    return run_dir.parent / "copy"


def test_it_holds_every_file_but_locks_and_what_is_half_written(
    run_dir: Path, into: Path, kit: Any
) -> None:
    whole = kit.contents(run_dir)
    (run_dir / "info" / "table.csv.tmp").write_text("half")
    kit.write_checkpoint(run_dir / SESSION / "last.writing", frame=200)
    kit.write_checkpoint(run_dir / SESSION / "last.damaged", frame=50)
    (run_dir / ".hidden").write_text("x")
    taken = take_snapshot(run_dir, into)
    found = kit.contents(into)
    assert taken.files.keys() == found.keys()
    found.pop(MANIFEST)
    assert found == whole
    assert read_run_manifest(into / MANIFEST, "x").keys() == whole.keys()


def test_a_checkpoint_is_taken_by_its_manifest_only(run_dir: Path, into: Path, kit: Any) -> None:
    (run_dir / SESSION / "last" / "stray.bin").write_text("not in the manifest")
    take_snapshot(run_dir, into)
    assert not (into / SESSION / "last" / "stray.bin").exists()


def test_of_two_checkpoints_the_newest_is_enough(run_dir: Path, into: Path, kit: Any) -> None:
    kit.write_checkpoint(run_dir / SESSION / "last-1", frame=50)
    take_snapshot(run_dir, into)
    assert [path.name for path in (into / SESSION).iterdir()] == ["last"]
    assert read_manifest(into / SESSION / "last").frame == 100


@pytest.mark.parametrize("harm", ["absent", "cut short", "no manifest", "wrong manifest"])
def test_without_a_good_newest_one_the_one_before_takes_its_place(
    run_dir: Path, into: Path, kit: Any, harm: str
) -> None:
    kit.write_checkpoint(run_dir / SESSION / "last-1", frame=50)
    last = run_dir / SESSION / "last"
    if harm == "absent":  # as between the two renames of a rotation
        shutil.rmtree(last)
    elif harm == "cut short":
        os.truncate(last / "tensors.safetensors", 100)
    elif harm == "no manifest":
        (last / MANIFEST).unlink()
    else:
        (last / MANIFEST).write_text("{}")
    take_snapshot(run_dir, into)
    assert read_manifest(into / SESSION / "last").frame == 50
    assert not (into / SESSION / "last-1").exists()


def test_a_rotation_between_the_listing_and_the_look_loses_no_checkpoint(
    run_dir: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`last` is listed alone; then a rotation has made `last-1` of it, and no `last` yet."""
    session, real = run_dir / SESSION, snapshot._listed

    def rotate_after_the_listing(folder: Path) -> list[os.DirEntry[str]]:
        entries = real(folder)
        if folder == session:
            (session / "last").rename(session / "last-1")
        return entries

    monkeypatch.setattr(snapshot, "_listed", rotate_after_the_listing)
    take_snapshot(run_dir, into)
    assert read_manifest(into / SESSION / "last").frame == 100


def test_a_damaged_checkpoint_is_never_shared(run_dir: Path, into: Path) -> None:
    os.truncate(run_dir / SESSION / "last" / "tensors.safetensors", 100)
    files = take_snapshot(run_dir, into).files
    assert not any(name.startswith(SESSION) for name in files)


def test_a_rotation_in_the_middle_does_not_mix_two_checkpoints(
    run_dir: Path, into: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the manifest was taken, the folder is replaced by another of the same names."""
    session = run_dir / SESSION
    kit.write_checkpoint(session / "last.writing", frame=200)
    real, calls = snapshot._link, []

    def rotate_after_the_first(handle: int | None, name: Path, target: Path) -> None:
        real(handle, name, target)
        calls.append(name)
        if len(calls) == 1:
            (session / "last").rename(session / "last-1")
            (session / "last.writing").rename(session / "last")

    monkeypatch.setattr(snapshot, "_link", rotate_after_the_first)
    take_snapshot(run_dir, into)
    manifest = read_manifest(into / SESSION / "last")
    assert manifest.frame == 100
    for name, entry in manifest.files.items():
        check_file(into / SESSION / "last" / name, entry)


def test_a_checkpoint_removed_while_it_is_taken_is_taken_anew(
    run_dir: Path, into: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = run_dir / SESSION
    kit.write_checkpoint(session / "next", frame=300)
    shutil.move(session / "next", run_dir.parent / "next")
    real, calls = snapshot._link, []

    def remove_after_the_first(handle: int | None, name: Path, target: Path) -> None:
        real(handle, name, target)
        calls.append(name)
        if len(calls) == 1:
            shutil.rmtree(session / "last")
            shutil.move(run_dir.parent / "next", session / "last")

    monkeypatch.setattr(snapshot, "_link", remove_after_the_first)
    take_snapshot(run_dir, into)
    assert read_manifest(into / SESSION / "last").frame == 300


def test_snapshots_of_a_folder_that_is_rewritten_all_the_time_are_whole(
    run_dir: Path, into: Path, kit: Any
) -> None:
    session, stop = run_dir / SESSION, threading.Event()

    def write_on() -> None:
        frame = 100
        while not stop.wait(0.002):  # a run trains for seconds between two
            frame += 1
            kit.write_checkpoint(session / "last.writing", frame=frame)
            shutil.rmtree(session / "last-1", ignore_errors=True)
            (session / "last").rename(session / "last-1")
            (session / "last.writing").rename(session / "last")
            log = run_dir / "log" / f"{frame % 7}.txt"
            log.unlink(missing_ok=True)
            log.write_text(str(frame))

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for _ in range(20):
            taken = take_snapshot(run_dir, into)
            manifest = read_manifest(into / SESSION / "last")
            for name, entry in manifest.files.items():
                check_file(into / SESSION / "last" / name, entry)
            for name, entry in taken.files.items():
                check_file(into / name, entry)
    finally:
        stop.set()
        writer.join()


def test_where_files_cannot_be_linked_they_are_copied(
    run_dir: Path, into: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    take_snapshot(run_dir, into)
    whole = kit.contents(run_dir)
    assert {k: v for k, v in kit.contents(into).items() if k != MANIFEST} == whole


def test_links_are_left_out(run_dir: Path, into: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (run_dir / "info" / "link").symlink_to(tmp_path / "secret")
    assert "info/link" not in take_snapshot(run_dir, into).files
