"""push and pull, on a hub and in a directory alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.remote import Remote, RemoteError, file_sha256, manifest_bytes
from slm_lab.hub.transfer import matching, pull, push
from slm_lab.runs.checkpoint_manifest import MANIFEST, FileEntry


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The data folder of another machine."""
    return tmp_path / "elsewhere" / "data"


def test_what_is_pushed_is_what_is_pulled(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    sent = push(remote, run_dir)
    assert remote.folders() == [kit.FOLDER]
    fetched = pull(remote, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)
    assert sent.files == fetched.files == 7
    assert sent.bytes == fetched.bytes


def test_nothing_is_sent_twice_and_only_what_changed_is_sent(
    remote: Remote, run_dir: Path, kit: Any
) -> None:
    push(remote, run_dir)
    again = push(remote, run_dir)
    assert (again.files, again.same) == (0, 7)
    (run_dir / "log" / "ppo_cartpole_t0.log").write_text("another\n")
    changed = push(remote, run_dir)
    assert (changed.files, changed.bytes, changed.same) == (1, len("another\n"), 6)


def test_a_second_pull_fetches_only_what_changed_and_drops_what_is_gone(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    pull(remote, kit.FOLDER, elsewhere)
    assert pull(remote, kit.FOLDER, elsewhere).files == 0
    (run_dir / "info" / "more.json").write_text("{}")
    (run_dir / "log" / "ppo_cartpole_t0.log").unlink()
    push(remote, run_dir)
    assert "log/ppo_cartpole_t0.log" not in remote.files(kit.FOLDER)
    fetched = pull(remote, kit.FOLDER, elsewhere)
    assert (fetched.files, fetched.removed) == (1, 1)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)


def test_what_was_changed_here_is_not_overwritten_unless_forced(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    pull(remote, kit.FOLDER, elsewhere)
    mine = elsewhere / kit.FOLDER / "info" / "ppo_cartpole_t0_s0_session_df_train.csv"
    mine.write_text("frame\n900\n")
    before = kit.contents(elsewhere / kit.FOLDER)
    with pytest.raises(RemoteError, match=r"session_df_train\.csv\).*--force"):
        pull(remote, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == before
    pull(remote, kit.FOLDER, elsewhere, force=True)
    assert mine.read_text() == "frame\n100\n"


def test_files_that_are_only_here_stay(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    (elsewhere / kit.FOLDER).mkdir(parents=True)
    (elsewhere / kit.FOLDER / "notes.txt").write_text("mine")
    pull(remote, kit.FOLDER, elsewhere)
    assert (elsewhere / kit.FOLDER / "notes.txt").read_text() == "mine"


def test_a_push_does_not_replace_what_another_machine_has_pushed(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    pull(remote, kit.FOLDER, elsewhere)
    csv = "info/ppo_cartpole_t0_s0_session_df_train.csv"
    (elsewhere / kit.FOLDER / csv).write_text("frame\n100\n200\n")
    push(remote, elsewhere / kit.FOLDER)  # went on from what it had pulled
    (run_dir / csv).write_text("frame\n100\n150\n")
    with pytest.raises(RemoteError, match="holds another state than was last"):
        push(remote, run_dir)
    push(remote, run_dir, force=True)
    pull(remote, kit.FOLDER, elsewhere)
    assert (elsewhere / kit.FOLDER / csv).read_text() == "frame\n100\n150\n"


def test_a_folder_without_a_manifest_is_pulled_by_the_checksums_of_the_remote(
    hub: Any, elsewhere: Path, kit: Any
) -> None:
    from slm_lab.hub.huggingface import HuggingFaceRemote

    dataset = hub.datasets[kit.REPO]
    dataset.put("data/old/old_spec.json", b"{}")
    dataset.put("data/old/model/net.pt", b"x" * 3000, is_lfs=True)
    remote = HuggingFaceRemote(kit.REPO)
    assert pull(remote, "old", elsewhere).files == 2
    assert (elsewhere / "old" / "model" / "net.pt").read_bytes() == b"x" * 3000
    assert pull(remote, "old", elsewhere).files == 0
    (elsewhere / "old" / "old_spec.json").write_text('{"a": 1}')
    with pytest.raises(RemoteError, match="--force"):
        pull(remote, "old", elsewhere)


def test_files_that_the_manifest_does_not_name_are_left_out_and_named(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any, tmp_path: Path
) -> None:
    push(remote, run_dir)
    extra = tmp_path / "extra"
    extra.write_text("surprise")
    remote.upload(kit.FOLDER, {"extra.pkl": extra}, [], lambda size: None)
    assert pull(remote, kit.FOLDER, elsewhere).skipped == ("extra.pkl",)
    assert not (elsewhere / kit.FOLDER / "extra.pkl").exists()


@pytest.mark.parametrize("has_manifest", [True, False])
def test_files_that_begin_with_a_dot_are_part_of_no_run_and_are_left_out(
    share: Path, elsewhere: Path, kit: Any, has_manifest: bool
) -> None:
    """Such as `.env`, or a `.git` whose settings name programs; whatever the manifest says."""
    folder = kit.make_run(share / "data" / kit.FOLDER)
    hidden = [".env", "info/.git/config", "log/.env"]
    for name in hidden:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("GIT_SSH_COMMAND=touch executed\n")
    files = {
        path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, file_sha256(path))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }
    if has_manifest:
        (folder / MANIFEST).write_bytes(manifest_bytes(files))
    fetched = pull(DirectoryRemote(share), kit.FOLDER, elsewhere)
    assert set(hidden) <= set(fetched.skipped)
    arrived = {
        path.relative_to(elsewhere).as_posix() for path in elsewhere.rglob(f"{kit.FOLDER}/**/*")
    }
    assert f"{kit.FOLDER}/info" in arrived
    assert not [name for name in arrived if "/." in name]
    assert pull(DirectoryRemote(share), kit.FOLDER, elsewhere).files == 0


def test_a_file_that_is_not_what_the_manifest_says_is_refused_before_anything_is_written(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any, tmp_path: Path
) -> None:
    push(remote, run_dir)
    other = tmp_path / "other"
    other.write_bytes(b"!" * 5120)  # the same size
    name = "model/ppo_cartpole_t0_s0_net_model.pt"
    remote.upload(kit.FOLDER, {name: other}, [], lambda size: None)
    with pytest.raises(RemoteError, match=r"net_model\.pt is another than its manifest says"):
        pull(remote, kit.FOLDER, elsewhere)
    assert not (elsewhere / kit.FOLDER).exists()


def test_a_missing_file_is_named(remote: Remote, run_dir: Path, elsewhere: Path, kit: Any) -> None:
    push(remote, run_dir)
    remote.upload(kit.FOLDER, {}, ["log/ppo_cartpole_t0.log"], lambda size: None)
    with pytest.raises(RemoteError, match=r"log/ppo_cartpole_t0\.log is missing"):
        pull(remote, kit.FOLDER, elsewhere)


def test_a_folder_that_is_not_there_is_an_error(remote: Remote, elsewhere: Path) -> None:
    with pytest.raises(RemoteError, match="nobody_2026: not in"):
        pull(remote, "nobody_2026", elsewhere)
    assert remote.files("nobody_2026") == {}


def test_a_link_in_the_place_of_the_folder_is_not_written_through(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any, tmp_path: Path
) -> None:
    push(remote, run_dir)
    outside = tmp_path / "outside"
    outside.mkdir()
    elsewhere.mkdir(parents=True)
    (elsewhere / kit.FOLDER).symlink_to(outside)
    with pytest.raises(RemoteError, match="is a link"):
        pull(remote, kit.FOLDER, elsewhere, force=True)
    (elsewhere / kit.FOLDER).unlink()
    (elsewhere / kit.FOLDER).mkdir()
    (elsewhere / kit.FOLDER / "info").symlink_to(outside)
    with pytest.raises(RemoteError, match="is a link"):
        pull(remote, kit.FOLDER, elsewhere, force=True)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("place", [".hub", ".hub/pull", ".hub/lock"])
def test_a_link_in_the_place_of_the_scratch_folder_is_not_written_through(
    remote: Remote, run_dir: Path, elsewhere: Path, tmp_path: Path, kit: Any, place: str
) -> None:
    push(remote, run_dir)
    outside = tmp_path / "outside"
    outside.mkdir()
    (elsewhere / place).parent.mkdir(parents=True)
    (elsewhere / place).symlink_to(outside)
    with pytest.raises(RemoteError, match="is a link"):
        pull(remote, kit.FOLDER, elsewhere)
    assert not list(outside.iterdir())


def test_a_push_names_what_is_damaged_and_was_not_sent(
    remote: Remote, run_dir: Path, kit: Any, tmp_path: Path
) -> None:
    (run_dir / "info" / "link.json").symlink_to(tmp_path)
    (checkpoint,) = run_dir.glob("checkpoint/*/last")
    (checkpoint / "manifest.json").write_text("{}")
    left_out = ("info/link.json", checkpoint.relative_to(run_dir).as_posix())
    assert set(push(remote, run_dir).damaged) == set(left_out)


def test_a_folder_somebody_trains_in_is_not_pulled_into(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    from slm_lab.runs.lock import LockedError, locked

    push(remote, run_dir)
    pull(remote, kit.FOLDER, elsewhere)
    (run_dir / "info" / "more.json").write_text("{}")
    push(remote, run_dir)
    folder = elsewhere / kit.FOLDER
    with locked(folder / "checkpoint" / "run.lock", "x"), pytest.raises(LockedError):
        pull(remote, kit.FOLDER, elsewhere)
    assert not (folder / "info" / "more.json").exists()
    assert pull(remote, kit.FOLDER, elsewhere).files == 1


def test_only_a_run_folder_is_pushed(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(RemoteError, match=r"holiday: not a run folder.*_spec\.json"):
        push(remote, tmp_path / "holiday")
    with pytest.raises(RemoteError, match="not a run folder"):
        push(remote, tmp_path / "absent")


def test_progress_counts_bytes_up_to_the_total(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    seen: list[tuple[int, int]] = []
    push(remote, run_dir, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 5120
    fetched: list[tuple[int, int]] = []
    pull(remote, kit.FOLDER, elsewhere, progress=lambda done, total: fetched.append((done, total)))
    assert fetched[-1][0] == fetched[-1][1]
    assert fetched == sorted(fetched)


def test_a_pull_leaves_no_scratch_and_no_lock_of_the_run_is_shared(
    remote: Remote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    assert not [name for name in remote.files(kit.FOLDER) if name.endswith(".lock")]
    pull(remote, kit.FOLDER, elsewhere)
    assert not list((elsewhere / ".hub" / "pull").iterdir())
    assert not list((run_dir.parent / ".hub" / "push").iterdir())
    assert (elsewhere / kit.FOLDER / MANIFEST).exists()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("ppo", ["my_ppo", "ppo", "ppo_2"]),
        ("ppo_2", ["ppo_2"]),
        ("sac*", ["sac"]),
        ("?ac", ["sac"]),
        ("", ["my_ppo", "ppo", "ppo_2", "sac"]),
        ("dqn", []),
    ],
)
def test_a_pattern_means_that_very_folder_or_all_that_contain_it(
    pattern: str, found: list[str]
) -> None:
    folders = ["my_ppo", "ppo", "ppo_2", "sac"]
    expected = ["ppo"] if pattern == "ppo" else found
    assert matching(folders, pattern) == expected
