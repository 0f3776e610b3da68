"""A run folder from elsewhere: no command writes through a link in it, hangs or breaks on it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.analysis.trial import analyze_ended_trial
from slm_lab.api.results import analyze, evaluate
from slm_lab.api.run import run
from slm_lab.playback.enjoy import enjoy
from slm_lab.playback.export import export_policy
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.options import RunOptions
from tests.tiny import tiny

QUIET = RunOptions(log_level="ERROR")
SESSION = "checkpoint/tiny_t0_s0"

# Every kind of file that a run writes, and every folder that it writes into.
WRITTEN_FILES = (
    "checkpoint/run.lock",
    f"{SESSION}/session.lock",
    f"{SESSION}/last/manifest.json",
    "log/tiny_t0.log",
    "info/tiny_t0_provenance.json",
    "info/tiny_t0_s0_session_df_train.csv",
    "info/.tiny_t0_s0_session_df_train.csv.tmp",
    "info/tiny_t0_trial_metrics.json",
    "model/tiny_t0_s0_net_model.pt",
    "model/tiny_t0_s0_net_model.tmp",
    "graph/tiny_t0_trial_graph_mean_returns_vs_frames.png",
    "tiny_t0_trial_metrics_scalar.json",
    "plotly.min.js",
)
WRITTEN_FOLDERS = ("checkpoint", SESSION, f"{SESSION}/last-1", "log", "info", "model", "graph")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, to be copied."""
    root = tmp_path_factory.mktemp("data")
    metrics = run(tiny(), "train", RunOptions(log_level="ERROR", data_dir=str(root)))
    logger.remove()
    return metrics.predir


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "data" / finished.name
    shutil.copytree(finished, copy)
    yield copy
    logger.remove()


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file outside of the run folder."""
    path = tmp_path / "outside" / "precious"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def put_link(place: Path, target: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def untouched(precious: Path) -> bool:
    return precious.read_text() == "precious" and os.listdir(precious.parent) == ["precious"]


def resume(folder: Path) -> None:
    run(tiny(), f"train@{folder}", QUIET)


@pytest.mark.parametrize("place", WRITTEN_FILES)
def test_a_resume_refuses_a_link_in_the_place_of_a_file_by_name(folder, precious, place):
    put_link(folder / place, precious)
    with pytest.raises(RunFolderError, match=f"{Path(place).name}: is a link"):
        resume(folder)
    assert untouched(precious)


@pytest.mark.parametrize("place", WRITTEN_FOLDERS)
def test_a_resume_refuses_a_link_in_the_place_of_a_folder_by_name(folder, precious, place):
    put_link(folder / place, precious.parent)
    with pytest.raises(RunFolderError, match=f"{Path(place).name}: is a link"):
        resume(folder)
    assert untouched(precious)


@pytest.mark.parametrize("place", ["checkpoint/run.lock", "log/tiny_t0.log"])
def test_a_resume_refuses_a_pipe_at_once(folder, place):
    (folder / place).unlink()
    os.mkfifo(folder / place)
    with pytest.raises(RunFolderError, match=f"{Path(place).name}: is a pipe"):
        resume(folder)


def test_a_resume_accepts_the_links_that_wandb_keeps_in_its_own_folder(folder):
    put_link(folder / "wandb" / "latest-run", folder)
    resume(folder)


def test_a_finished_run_is_resumed_through_a_link_to_its_folder(folder, tmp_path):
    (tmp_path / "short").symlink_to(folder)
    resume(tmp_path / "short")


def play(folder: Path) -> None:
    path = open_run(folder).layout.video_path(0, 0, ".gif", best=True)
    enjoy(open_run(folder), 0, episodes=1, video=path)


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (lambda f: evaluate(f, episodes=1), "info/tiny_t0_evaluation_best_deterministic.json"),
        (play, "video/.tiny_t0_s0_best.part.gif"),
        (play, "video/tiny_t0_s0_best.gif"),
        (lambda f: export_policy(open_run(f), 0), "model/.tiny_t0_s0_best_policy.pt2.part.pt2"),
        (analyze, "checkpoint/run.lock"),
        (analyze, "graph/.tiny_t0_trial_graph_mean_returns_vs_frames.png.tmp"),
    ],
)
def test_no_other_command_writes_through_a_link(
    folder: Path, precious: Path, command: Callable[[Path], object], place: str
) -> None:
    put_link(folder / place, precious)
    with pytest.raises(RunFolderError, match="is a link"):
        command(folder)
    assert untouched(precious)


def test_a_video_is_not_written_into_a_linked_folder(folder, precious):
    put_link(folder / "video", precious.parent)
    with pytest.raises(RunFolderError, match="video: is a link"):
        play(folder)
    assert untouched(precious)


# Disks that are full or cannot be written to


def test_a_run_where_nothing_can_be_made_says_where_and_why(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(RunFolderError, match=r"data.*cannot be made \(.*\)\. Start the run in"):
        run(tiny(), "train", RunOptions(log_level="ERROR", data_dir=str(tmp_path / "data" / "x")))


def test_a_data_folder_that_is_a_link_loop_is_no_traceback(tmp_path):
    (tmp_path / "data").symlink_to("data")
    with pytest.raises(RunFolderError, match="data: cannot be made"):
        run(tiny(), "train", RunOptions(log_level="ERROR", data_dir=str(tmp_path / "data")))


@pytest.mark.parametrize("first", ["info", "graph"])
def test_the_score_is_not_lost_where_metrics_or_graphs_cannot_be_written(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    real = os.replace

    def full(source: str, target: str, **handles: int) -> None:
        if target.endswith((".png", ".html", "metrics.json" if first == "info" else ".png")):
            raise OSError(errno.ENOSPC, "No space left on device", target)
        real(source, target, **handles)

    monkeypatch.setattr(os, "replace", full)
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(message.record["message"]))
    metrics = analyze_ended_trial(RunLayout(folder, "tiny"), 0)
    logger.remove(handler)
    assert metrics.frame == 200
    (line,) = lines
    assert f"{folder}/{first}/" in line
    assert "not written (No space left on device)" in line
    assert f"slm-lab retro {folder}" in line
    assert not list(folder.rglob("*.tmp"))
