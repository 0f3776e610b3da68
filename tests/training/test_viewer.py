"""`--render`, without a screen."""

from __future__ import annotations

import pytest
from loguru import logger

from slm_lab.env.error import EnvError
from slm_lab.training.watchers import STEPS_BETWEEN_GRIDS, Viewer


@pytest.fixture
def shown(monkeypatch):
    """Shapes of the pictures that reach the window, which is opened all the same."""
    shapes: list[tuple[int, ...]] = []
    show = Viewer._show

    def count(self, frame):
        shapes.append(frame.shape)
        show(self, frame)

    monkeypatch.setattr(Viewer, "_show", count)
    return shapes


def test_a_single_env_is_drawn_at_every_step(make_spec, run_session, shown):
    spec = make_spec(env__name="CartPole-v1", env__num_envs=1, env__max_frame=12)
    run_session(spec, render=True)
    assert shown == [(400, 600, 3)] * 12


def test_several_envs_are_drawn_as_a_grid_now_and_then(make_spec, run_session, shown):
    steps = 2 * STEPS_BETWEEN_GRIDS
    spec = make_spec(env__name="CartPole-v1", env__num_envs=3, env__max_frame=3 * steps)
    run_session(spec, render=True)
    assert shown == [(800, 1200, 3)] * 2  # 2 x 2 places, one left black


def test_nothing_is_drawn_unasked(make_spec, run_session, shown):
    run_session(make_spec(env__name="CartPole-v1", env__num_envs=1, env__max_frame=12))
    assert shown == []


def test_an_env_that_cannot_draw_says_so_once(make_spec, run_session, shown):
    said: list[str] = []
    handler = logger.add(lambda message: said.append(str(message)), level="WARNING")
    run_session(make_spec(env__num_envs=1), render=True)
    logger.remove(handler)
    assert shown == []
    assert len([text for text in said if "--render" in text]) == 1


@pytest.mark.parametrize("driver", ["no such driver", None])
def test_without_a_screen_the_flag_is_named_before_training_starts(
    make_spec, run_session, monkeypatch, driver
):
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if driver:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    spec = make_spec(env__name="CartPole-v1", env__max_frame=12)
    with pytest.raises(EnvError, match=r"--render: no window could be opened \(.+\)\. Expected"):
        run_session(spec, render=True)
    assert not list((run_session.layout.predir / "info").iterdir())


def test_rendering_does_not_change_the_training(make_spec, run_session, shown):
    spec = make_spec(env__name="CartPole-v1", env__max_frame=100)
    plain, seen = run_session(spec), run_session(spec, render=True)
    rewards = [
        [line.split(",")[0] for line in layout.session_csv(0, 0, "train").read_text().splitlines()]
        for layout in (plain, seen)
    ]
    assert rewards[0] == rewards[1]
