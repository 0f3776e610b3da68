"""What only a directory does: a share that is not mounted, uploads that are killed halfway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slm_lab.hub import directory
from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.remote import NotAllowed, RemoteError, open_remote
from slm_lab.hub.transfer import pull, push
from slm_lab.runs import files


class Killed(BaseException):
    """As a kill: nothing after it runs."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "data"


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "{}"])
def test_a_directory_is_named_by_its_path(share: Path, run_dir: Path, kit: Any, form: str) -> None:
    push(open_remote(form.format(share)), run_dir)
    assert (share / "data" / kit.FOLDER / "ppo_cartpole_t0_spec.json").is_file()


def test_it_is_never_made_because_it_may_only_not_be_mounted(tmp_path: Path, run_dir: Path) -> None:
    remote = open_remote(f"file:{tmp_path / 'mnt'}")
    for use in (remote.folders, lambda: push(remote, run_dir)):
        with pytest.raises(NotAllowed, match=r"no such directory\. Mount it.*mkdir"):
            use()
    assert not (tmp_path / "mnt").exists()


def test_links_in_a_share_are_not_followed(share: Path, elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (share / "data" / "evil").mkdir(parents=True)
    (share / "data" / "evil" / "evil_spec.json").symlink_to(tmp_path / "secret")
    with pytest.raises(RemoteError, match="no plain file"):
        pull(DirectoryRemote(share), "evil", elsewhere)
    (share / "data" / "linked").symlink_to(share / "data" / "evil")
    with pytest.raises(RemoteError, match="is a link"):
        pull(DirectoryRemote(share), "linked", elsewhere)


def complete(share: Path, folder: str, names: list[str], gone: list[str] | None = None) -> Path:
    """An upload that is complete and not in place yet."""
    incoming = share / ".incoming" / folder
    incoming.mkdir(parents=True)
    note = {"files": names, "gone": gone or [], "message": ""}
    (incoming / "complete.json").write_text(json.dumps(note))
    return incoming


def test_a_linked_folder_in_what_has_arrived_copies_no_file_of_this_machine(
    share: Path, elsewhere: Path, tmp_path: Path
) -> None:
    (tmp_path / "home" / "keys").mkdir(parents=True)
    (tmp_path / "home" / "keys" / "secret").write_text("secret")
    incoming = complete(share, "evil", ["keys/secret"])
    (incoming / "files").symlink_to(tmp_path / "home")
    with pytest.raises(RemoteError, match="files: is a link"):
        pull(DirectoryRemote(share), "evil", elsewhere)
    assert not (elsewhere / "evil").exists()


def test_a_push_into_a_share_neither_writes_nor_removes_through_a_link(
    share: Path, run_dir: Path, tmp_path: Path, kit: Any
) -> None:
    outside = tmp_path / "home"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    complete(share, kit.FOLDER, [], gone=["info/precious"])
    (share / "data" / kit.FOLDER).mkdir(parents=True)
    (share / "data" / kit.FOLDER / "info").symlink_to(outside)
    with pytest.raises(RemoteError, match=r"no plain file|is a link"):
        push(DirectoryRemote(share), run_dir)
    (share / "data" / kit.FOLDER / "info").unlink()
    (share / ".incoming" / kit.FOLDER / "complete.json").unlink()
    (share / ".incoming" / kit.FOLDER / "files").symlink_to(outside)
    push(DirectoryRemote(share), run_dir)  # what arrived only in part, the link itself, goes
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_a_deeply_nested_note_is_refused_in_one_line(share: Path, elsewhere: Path) -> None:
    (complete(share, "evil", []) / "complete.json").write_text("[" * 100_000)
    with pytest.raises(RemoteError, match=r"complete\.json: is damaged"):
        pull(DirectoryRemote(share), "evil", elsewhere)


def test_a_push_killed_at_any_step_leaves_the_state_before_or_after_it(
    share: Path, run_dir: Path, tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file operation of an upload is the last one once; a reader never finds a mixture."""
    remote = DirectoryRemote(share)
    push(remote, run_dir)
    before = kit.contents(run_dir)
    log = run_dir / "log" / "ppo_cartpole_t0.log"
    real_copy, real_replace = directory._copy, Path.replace
    real_replacing, real_remove = files.replacing, files.remove_file
    steps = left = 0

    def step() -> None:
        nonlocal steps
        if steps == left:
            raise Killed
        steps += 1

    def copy(*places: Path) -> None:
        step()
        real_copy(*places)

    def replace(self: Path, target: Path) -> Path:
        if share in self.parents:
            step()
        return real_replace(self, target)

    def replacing(folder: Path, path: Path) -> Any:
        step()
        return real_replacing(folder, path)

    def remove(folder: Path, path: Path) -> None:
        step()
        real_remove(folder, path)

    log.write_text("the last words\n")
    (run_dir / "info" / "more.json").write_text("{}")
    (run_dir / "ppo_cartpole_t0_spec.json").rename(run_dir / "ppo_cartpole_spec.json")
    after = {k: v for k, v in kit.contents(run_dir).items() if k != "manifest.json"}
    outcomes = []
    for left in range(40):
        steps = 0
        with monkeypatch.context() as patch:
            patch.setattr(directory, "_copy", copy)
            patch.setattr(Path, "replace", replace)
            patch.setattr(directory, "replacing", replacing)
            patch.setattr(directory, "remove_file", remove)
            try:
                push(remote, run_dir)
                is_done = True
            except Killed:
                is_done = False
        fresh = tmp_path / f"reader{left}"
        pull(DirectoryRemote(share), kit.FOLDER, fresh)
        found = kit.contents(fresh / kit.FOLDER)
        manifest = found.pop("manifest.json")
        is_before = {**found, "manifest.json": manifest} == before
        assert is_before or found == after
        outcomes.append(is_before)
        if is_done:
            break
    assert outcomes[0]
    assert not outcomes[-1]
    assert outcomes == sorted(outcomes, reverse=True)  # once it has happened, it stays so
    assert len(outcomes) > 5


def test_an_upload_that_had_arrived_but_not_been_put_in_place_is_finished_by_the_next(
    share: Path, run_dir: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = DirectoryRemote(share)
    with monkeypatch.context() as patch:
        real, calls = remote._finish, []

        def die_second_time(folder: str) -> None:
            calls.append(folder)
            if len(calls) == 2:
                raise Killed
            real(folder)

        patch.setattr(remote, "_finish", die_second_time)
        with pytest.raises(Killed):
            push(remote, run_dir)
    assert not (share / "data" / kit.FOLDER).exists()
    assert DirectoryRemote(share).folders() == [kit.FOLDER]
    push(DirectoryRemote(share), run_dir)  # nothing to send: it has arrived
    assert len(DirectoryRemote(share).files(kit.FOLDER)) == 8
