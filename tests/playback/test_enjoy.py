"""Replaying a saved agent changes nothing and repeats itself."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slm_lab.env.error import EnvError
from slm_lab.playback.enjoy import enjoy
from slm_lab.runs.find import SavedRun, open_run
from slm_lab.training.watchers import Viewer
from tests import masks


@pytest.fixture
def run(make_spec, train_folder) -> SavedRun:
    return open_run(train_folder(make_spec(env__name="CartPole-v1", env__normalize_obs=True)))


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(run):
    first, again, other = (enjoy(run, 0, episodes=20, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.returns != other.returns
    assert first.returns == tuple(map(float, first.lengths))  # CartPole pays 1 a step


def test_sampled_actions_play_other_episodes_the_same_each_time(run):
    plain = enjoy(run, 0, episodes=20, seed=3)
    sampled, again = (enjoy(run, 0, episodes=20, seed=3, sampled=True) for _ in range(2))
    assert sampled == again
    assert sampled != plain


def test_an_agent_with_a_mask_keeps_to_it(make_spec, train_folder):
    with masks.registered():
        run = open_run(train_folder(make_spec(env__name=masks.MINES)))
        for sampled in (False, True):
            assert set(enjoy(run, 0, episodes=20, sampled=sampled).lengths) == {masks.LENGTH}


def test_nothing_in_the_folder_changes(run):
    folder: Path = run.layout.predir
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    enjoy(run, 0, episodes=2)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_video_has_a_picture_of_every_step(run, tmp_path):
    played = enjoy(run, 0, episodes=2, video=tmp_path / "cartpole.gif")
    milliseconds = 0
    with Image.open(tmp_path / "cartpole.gif") as gif:
        for i in range(gif.n_frames):  # type: ignore[attr-defined]
            gif.seek(i)
            milliseconds += gif.info["duration"]
        picture = np.asarray(gif.convert("RGB"))
    assert milliseconds == sum(played.lengths) // 2 * 40  # 50 steps a second, every second one
    assert picture.shape == (213, 320, 3)
    assert 0.01 < (picture < 128).all(-1).mean() < 0.2, "the cart and the track are dark"


def test_a_window_shows_every_step_no_faster_than_the_env_runs(run, monkeypatch):
    slept: list[float] = []
    shown: list[tuple[int, ...]] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(Viewer, "_show", lambda self, frame: shown.append(frame.shape))
    played = enjoy(run, 0, episodes=1, render=True)
    assert shown == [(400, 600, 3)] * played.lengths[0]
    assert len(slept) == len(shown)
    assert all(0 <= seconds <= 1 / 50 for seconds in slept)


def test_an_env_that_draws_nothing_says_so(make_spec, train_folder, tmp_path):
    run = open_run(train_folder(make_spec()))
    with pytest.raises(EnvError, match="--video: this env has no render mode `rgb_array`"):
        enjoy(run, 0, episodes=1, video=tmp_path / "probe.gif")
    assert not list(tmp_path.glob("*.gif"))
