"""Watch a saved agent: in a window, in a video, or by its returns alone.

A video needs no screen. `.mp4` needs imageio-ffmpeg, which contains an encoder (extra `video`).
`.gif` needs only Pillow, which comes with matplotlib; it is kept small, at most 320 pixels wide and
25 pictures per second. The file appears under its name when it is complete.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from slm_lab.env.error import EnvError
from slm_lab.env.registry import render_fps
from slm_lab.env.vector import VectorEnv
from slm_lab.playback.saved_agent import load_session
from slm_lab.runs.files import path_beside
from slm_lab.runs.find import SavedRun
from slm_lab.training.loop import PARALLEL, Episodes, play
from slm_lab.training.options import RunOptions
from slm_lab.training.threads import set_threads
from slm_lab.training.watchers import Viewer

SUFFIXES = (".mp4", ".gif")
GIF_WIDTH, GIF_FPS, GIF_COLORS = 320, 25, 64


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
    """Play a session's agent; the run folder is not changed. A window shows one env in real time;
    without one, several envs run at once. The same seed and number of envs give the same episodes.
    """
    set_threads(run.spec, RunOptions())
    is_watched = render or video is not None
    num_envs = 1 if is_watched else min(PARALLEL, episodes)
    agent, env = load_session(run, session, best, num_envs, seed, render=is_watched)
    with ExitStack() as stack:
        stack.callback(env.close)
        watchers: list[Callable[[], None]] = []
        if is_watched:
            fps = render_fps(run.spec.env)
        if video is not None:
            predir = run.layout.predir
            folder = predir if video.is_relative_to(predir) else None
            camera = stack.enter_context(open_video(video, fps, folder=folder))
            watchers.append(lambda: camera.add(_picture(env)))
        if render:
            viewer = Viewer(env, run.spec.name)
            stack.callback(viewer.close)
            watchers += [viewer.after_step, _FrameLimiter(fps)]
        return play(agent, env, episodes, explore=sampled, watchers=watchers)


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


def can_write_mp4() -> bool:
    return importlib.util.find_spec("imageio_ffmpeg") is not None


@contextmanager
def open_video(path: Path, fps: float, *, folder: Path | None = None) -> Iterator[_Mp4 | _Gif]:
    """Write frames [H, W, 3] of bytes to a video, which appears when the block ends well. Links in
    `folder`, the run folder if the video goes there, are refused."""
    if path.suffix not in SUFFIXES:
        raise EnvError(f"--output: found `{path.name}`; expected a name in .mp4 or .gif.")
    if path.suffix == ".mp4" and not can_write_mp4():
        raise EnvError(
            f"--output: `{path.name}` needs the package imageio-ffmpeg. Run "
            "`pip install 'slm-lab[video]'`, or choose a name in .gif."
        )
    kind = _Mp4 if path.suffix == ".mp4" else _Gif
    beside = f".{path.stem}.part{path.suffix}"
    with path_beside(path, beside, folder, EnvError) as place, closing(kind(place, fps)) as video:
        yield video


class _Mp4:
    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._encoder: Generator[None, bytes | None, None] | None = None

    def add(self, frame: np.ndarray) -> None:
        # The usual pixel format stores colour for squares of 2 x 2.
        even = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
        if self._encoder is None:
            self._encoder = self._start(width=even.shape[1], height=even.shape[0])
        self._encoder.send(even.tobytes())

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()

    def _start(self, *, width: int, height: int) -> Generator[None, bytes | None, None]:
        import imageio_ffmpeg

        encoder: Generator[None, bytes | None, None] = imageio_ffmpeg.write_frames(
            str(self._path),
            (width, height),
            fps=self._fps,
            macro_block_size=2,
            ffmpeg_log_level="error",
        )
        encoder.send(None)
        return encoder


class _Gif:
    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._every = math.ceil(fps / GIF_FPS)
        # Milliseconds per picture, of which a GIF counts tens.
        self._duration = round(100 * self._every / fps) * 10
        self._seen = 0
        self._pictures: list[Image.Image] = []

    def add(self, frame: np.ndarray) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        picture = Image.fromarray(frame)
        picture.thumbnail((GIF_WIDTH, picture.height))
        self._pictures.append(picture.quantize(GIF_COLORS))

    def close(self) -> None:
        if self._pictures:
            first, *rest = self._pictures
            first.save(
                self._path, save_all=True, append_images=rest, duration=self._duration, loop=0
            )
