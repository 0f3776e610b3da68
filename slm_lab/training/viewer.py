"""`--render`: show the envs in a window while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from loguru import logger

from slm_lab.env.error import EnvError
from slm_lab.env.vector import VectorEnv

if TYPE_CHECKING:
    import pygame

STEPS_BETWEEN_GRIDS = 32  # drawing many envs at every step would take most of the time


class Viewer:
    """Shows a single env at every step, several envs as a grid every few steps."""

    def __init__(self, env: VectorEnv, title: str) -> None:
        self._env = env
        self._title = title
        self._every = 1 if env.num_envs == 1 else STEPS_BETWEEN_GRIDS
        self._steps = 0
        self._window: pygame.Surface | None = None
        _find_display()

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            frame = self._env.render()
            if frame is not None:
                self._show(frame)
            elif self._steps == self._every:
                logger.warning("--render: nothing to show, this env has no render mode `rgb_array`")

    def _show(self, frame: np.ndarray) -> None:
        import pygame

        if self._window is None:
            self._window = pygame.display.set_mode((frame.shape[1], frame.shape[0]))
            pygame.display.set_caption(self._title)
        pygame.event.pump()  # otherwise the desktop reports that the window does not respond
        # Images are rows of pixels, pygame wants columns.
        pygame.surfarray.blit_array(self._window, frame.swapaxes(0, 1))
        pygame.display.flip()

    def close(self) -> None:
        import pygame

        pygame.display.quit()
        self._window = None


def _find_display() -> None:
    """Fail before training on a machine without a screen."""
    import pygame

    try:
        pygame.display.init()
    except pygame.error as error:
        raise EnvError(
            f"--render: no window could be opened ({error}). Expected a display. Leave --render "
            "out on a machine without one."
        ) from error
