"""`VideoEvery`: film the agent while it trains. Training finds this class by its record's text."""

from __future__ import annotations

from loguru import logger

from slm_lab.env.error import EnvError
from slm_lab.env.registry import render_fps
from slm_lab.env.vector import VectorEnv
from slm_lab.playback.enjoy import can_write_mp4, open_video
from slm_lab.spec.callback import VideoEverySpec
from slm_lab.training.callback import RunningSession
from slm_lab.training.shipped_callbacks import Periodic


class VideoEvery(Periodic):
    spec_class = VideoEverySpec
    spec: VideoEverySpec
    _is_blind = False  # where the env draws nothing, one warning is enough

    def on_due(self, session: RunningSession) -> None:
        if self._is_blind:
            return
        suffix = ".mp4" if can_write_mp4() else ".gif"
        name = f"frame{session.frame}"
        path = session.layout.video_path(
            session.trial, session.index, suffix, best=False, checkpoint=name
        )
        try:
            fps = render_fps(session.spec.env)
            with open_video(path, fps, folder=session.folder) as video:

                def film(env: VectorEnv) -> None:
                    frame = env.render()
                    if frame is None:
                        raise EnvError("this env has no render mode `rgb_array`")
                    video.add(frame)

                session.play(self.spec.episodes, render=True, watch=film)
        except EnvError as error:
            self._is_blind = True
            logger.warning(f"VideoEvery: no videos, {error}")
        except OSError as error:
            logger.warning(f"VideoEvery: {path} not written ({error.strerror or error})")
