"""Watch a saved agent: in a window, in a video, or by its returns alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.registry import render_fps
from slm_lab.env.vector import VectorEnv
from slm_lab.playback.saved_agent import load_session
from slm_lab.playback.video import Video
from slm_lab.runs.saved_run import SavedRun
from slm_lab.training.options import RunOptions
from slm_lab.training.play import PARALLEL, Episodes, play
from slm_lab.training.threads import set_threads
from slm_lab.training.viewer import Viewer


def enjoy(
    run: SavedRun,
    session: int,
    *,
    best: bool = True,
    episodes: int = 10,
    seed: int = 0,
    sampled: bool = False,
    render: bool = False,
    video: Path | None = None,
) -> Episodes:
    """Play a session's agent and return its episodes. The run folder is not changed.

    A window shows one env in real time; without one, several envs run at once. The same seed gives
    the same episodes for the same number of envs.
    """
    set_threads(run.spec, RunOptions())
    is_watched = render or video is not None
    num_envs = 1 if is_watched else min(PARALLEL, episodes)
    agent, env = load_session(
        run, session, best=best, num_envs=num_envs, seed=seed, render=is_watched
    )
    with ExitStack() as stack:
        stack.callback(env.close)
        watchers: list[Callable[[], None]] = []
        if is_watched:
            fps = render_fps(run.spec.env)
        if video is not None:
            predir = run.layout.predir
            folder = predir if video.is_relative_to(predir) else None
            camera = stack.enter_context(Video(video, fps, folder=folder))
            watchers.append(lambda: camera.add(_picture(env)))
        if render:
            viewer = Viewer(env, run.spec.name)
            stack.callback(viewer.close)
            watchers += [viewer.after_step, _FrameLimiter(fps)]

        def after_step() -> None:
            for watch in watchers:
                watch()

        return play(agent, env, episodes, explore=sampled, after_step=after_step)


def _picture(env: VectorEnv) -> np.ndarray:
    frame = env.render()
    if frame is None:
        raise EnvError("--video: this env has no render mode `rgb_array`, so nothing can be drawn.")
    return frame


class _FrameLimiter:
    """Limits its caller to `fps` calls per second."""

    def __init__(self, fps: float) -> None:
        self._seconds = 1 / fps
        self._next = 0.0

    def __call__(self) -> None:
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._seconds
