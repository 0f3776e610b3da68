"""Files of a run folder: plain ones are read up to a limit, nothing is written through a link."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.runs import files
from slm_lab.spec.run_folder import RunFolderError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    (path / "info").mkdir(parents=True)
    (path / "info" / "a.json").write_text('{"x": 1}')
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "a.json").write_text('{"x": 2}')
    return path


# Reading


def test_a_plain_file_is_read(folder):
    path = folder / "info" / "a.json"
    assert files.read_json(folder, path) == {"x": 1}
    assert files.read_text(folder, path) == '{"x": 1}'
    assert files.read_bytes(folder, path, 8) == b'{"x": 1}'


def test_the_run_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "short").symlink_to(folder)
    assert files.read_json(tmp_path / "short", tmp_path / "short" / "info" / "a.json") == {"x": 1}


def test_a_file_larger_than_its_limit_is_refused_unread(folder):
    os.truncate(folder / "info" / "a.json", 20 * 10**9)  # sparse: it takes no space
    with pytest.raises(RunFolderError, match=r"a\.json: 20,000,000,000 bytes, expected 7 at most"):
        files.read_bytes(folder, folder / "info" / "a.json", 7)


def test_a_linked_file_is_not_read(folder, outside):
    (folder / "info" / "a.json").unlink()
    (folder / "info" / "a.json").symlink_to(outside / "a.json")
    with pytest.raises(RunFolderError, match=r"info/a\.json: is a link to '.*outside/a\.json'"):
        files.read_bytes(folder, folder / "info" / "a.json")


def test_nothing_is_read_from_a_linked_folder(folder, outside):
    (folder / "log").symlink_to(outside)
    with pytest.raises(RunFolderError, match="run/log: is a link"):
        files.read_bytes(folder, folder / "log" / "a.json")
    assert files.plain_files(folder, folder / "log") == []


def test_a_link_loop_is_a_link(folder):
    (folder / "loop").symlink_to("loop")
    for path in (folder / "loop", folder / "loop" / "a.json"):
        with pytest.raises(RunFolderError, match="loop: is a link"):
            files.read_bytes(folder, path)
        with pytest.raises(RunFolderError, match="loop: is a link"):
            files.write_atomic(folder, path, "x")


def test_a_pipe_is_refused_at_once(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(RunFolderError, match="pipe: expected a plain file"):
        files.read_bytes(folder, folder / "pipe")


@pytest.mark.parametrize("path", ["info", "info/none.json", "none/none.json", "info/a.json/b"])
def test_what_is_no_file_is_named(folder, path):
    with pytest.raises(RunFolderError, match=f"run/{path.removesuffix('/b')}"):
        files.read_bytes(folder, folder / path)


@pytest.mark.parametrize("path", ["../outside/a.json", ".", "info/../../outside/a.json"])
def test_a_path_out_of_the_folder_is_refused(folder, outside, path):
    with pytest.raises(RunFolderError, match="is no file of the folder"):
        files.read_bytes(folder, folder / path)


@pytest.mark.parametrize("text", ["[1]", "3", "{", "[" * 100_000, '{"x": ' * 100_000, "\udcff"])
def test_what_is_no_json_object_is_refused(folder, text):
    path = folder / "info" / "a.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunFolderError, match=r"a\.json"):
        files.read_json(folder, path)


# Writing


def test_a_file_is_replaced_all_at_once(folder):
    path = folder / "info" / "a.json"
    with files.replacing(folder, path) as file:
        file.write(b"new")
        assert path.read_text() == '{"x": 1}'
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(folder):
    path = folder / "info" / "a.json"

    def broken_off() -> None:
        with files.replacing(folder, path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_off()
    assert path.read_text() == '{"x": 1}'
    assert os.listdir(path.parent) == ["a.json"]


def test_missing_folders_are_made(folder):
    files.write_atomic(folder, folder / "a" / "b" / "c.txt", "ü")
    assert (folder / "a" / "b" / "c.txt").read_bytes() == "ü".encode()
    files.make_folder(folder, folder / "graph")
    assert (folder / "graph").is_dir()


def test_a_lone_surrogate_is_written_as_a_question_mark(folder):
    files.write_atomic(folder, folder / "a.txt", "a\ud800b")
    assert (folder / "a.txt").read_text() == "a?b"


def append(folder: Path, path: Path) -> None:
    with files.open_for_append(folder, path) as file:
        file.write(b"more")


def lock(folder: Path, path: Path) -> None:
    os.close(files.open_for_locking(folder, path))


def write(folder: Path, path: Path) -> None:
    files.write_atomic(folder, path, "x")


Write = Callable[[Path, Path], None]
WAYS = pytest.mark.parametrize("way", [write, append, lock, files.check_place])


@WAYS
def test_nothing_is_written_through_a_linked_file(folder: Path, outside: Path, way: Write) -> None:
    (folder / "info" / "b.json").symlink_to(outside / "a.json")
    with pytest.raises(RunFolderError, match=r"info/b\.json: is a link"):
        way(folder, folder / "info" / "b.json")
    assert (outside / "a.json").read_text() == '{"x": 2}'


@WAYS
def test_a_link_to_nothing_makes_no_file(folder: Path, outside: Path, way: Write) -> None:
    (folder / "b.json").symlink_to(outside / "none")
    with pytest.raises(RunFolderError, match=r"b\.json: is a link"):
        way(folder, folder / "b.json")
    assert os.listdir(outside) == ["a.json"]


@WAYS
def test_nothing_is_written_through_a_linked_folder(
    folder: Path, outside: Path, way: Write
) -> None:
    (folder / "log").symlink_to(outside)
    with pytest.raises(RunFolderError, match="run/log: is a link"):
        way(folder, folder / "log" / "b.json")
    assert os.listdir(outside) == ["a.json"]


@WAYS
def test_nothing_is_written_into_a_pipe(folder: Path, way: Write) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(RunFolderError, match="pipe: is a pipe or a device"):
        way(folder, folder / "pipe")


def test_what_lies_where_a_file_is_written_beside_is_removed_and_not_followed(folder, outside):
    (folder / "info" / ".a.json.tmp").symlink_to(outside / "a.json")
    files.write_atomic(folder, folder / "info" / "a.json", "new")
    assert (outside / "a.json").read_text() == '{"x": 2}'
    assert (folder / "info" / "a.json").read_text() == "new"


def test_appending_goes_on_where_the_file_ends(folder):
    append(folder, folder / "log" / "a.log")
    append(folder, folder / "log" / "a.log")
    assert (folder / "log" / "a.log").read_text() == "moremore"


def test_a_full_disk_is_an_error_with_the_path_and_can_be_a_warning(folder, monkeypatch):
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a.json")

    monkeypatch.setattr(os, "replace", no_space)
    path = folder / "info" / "a.json"
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        files.write_atomic(folder, path, "x")
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(message.record["message"]))
    assert not files.write_or_warn(folder, path, "x")
    logger.remove(handler)
    assert lines == [f"{path}: not written (No space left on device)"]
    assert os.listdir(path.parent) == ["a.json"]


def test_a_folder_with_a_link_or_a_pipe_anywhere_is_refused(folder, outside):
    files.check_no_links(folder)
    (folder / "wandb").mkdir()
    (folder / "wandb" / "latest-run").symlink_to(outside)  # W&B keeps links in its own folder
    files.check_no_links(folder)
    os.mkfifo(folder / "info" / "pipe")
    with pytest.raises(RunFolderError, match="info/pipe: is a pipe"):
        files.check_no_links(folder)
    (folder / "info" / "pipe").unlink()
    (folder / "info" / "wandb").symlink_to(outside)
    with pytest.raises(RunFolderError, match="info/wandb: is a link"):
        files.check_no_links(folder)
