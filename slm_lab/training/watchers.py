"""What watches a session train: the window of `--render`, the profiler of `--profile`.

The profiler measures each operator. It writes `profiler/profiler_summary.json`,
`profiler/profiling_dashboard.html`, and `traces/` for chrome://tracing or Perfetto.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger

from slm_lab.env.error import EnvError
from slm_lab.env.vector import VectorEnv
from slm_lab.runs.files import check_place, make_folder, write_or_warn
from slm_lab.training.loop import Profile

if TYPE_CHECKING:
    import pygame

STEPS_BETWEEN_GRIDS = 32  # drawing many envs at every step would take most of the time
SKIP_STEPS = int(os.environ.get("PROF_SKIP", 500))
ACTIVE_STEPS = int(os.environ.get("PROF_ACTIVE", 20))
ROWS_SHOWN = 30


class Viewer:
    """Shows a single env at every step, several envs as a grid every few steps."""

    def __init__(self, env: VectorEnv, title: str) -> None:
        import pygame

        self._env, self._title = env, title
        self._every = 1 if env.num_envs == 1 else STEPS_BETWEEN_GRIDS
        self._steps = 0
        self._window: pygame.Surface | None = None
        try:  # before training: a machine may have no screen
            pygame.display.init()
            reason = _unseen(pygame.display.get_driver())
        except pygame.error as error:
            reason = str(error)
        if reason:
            raise EnvError(
                f"--render: no window could be opened ({reason}). Expected a display. Leave "
                "--render out on a machine without one; `slm-lab enjoy FOLDER --video` needs none."
            )

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


def _unseen(driver: str) -> str:
    """Why nobody sees what a driver of SDL draws, unless the user chose one that shows nothing:
    without a display it takes such a driver by itself."""
    chosen = os.environ.get("SDL_VIDEODRIVER") or os.environ.get("SDL_VIDEO_DRIVER")
    return "no display was found" if driver in ("dummy", "offscreen") and not chosen else ""


class OperatorProfiler:
    """Skips the first steps, which warm up and compile, records the next ones, writes its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._operators: list[dict[str, Any]] = []
        make_folder(folder, folder / "profiler")
        make_folder(folder, folder / "traces")
        wait = max(SKIP_STEPS - 1, 0)
        schedule = torch.profiler.schedule(wait=wait, warmup=1, active=ACTIVE_STEPS, repeat=1)
        self._profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=self._keep)
        self._profiler.start()

    def after_step(self) -> None:
        self._profiler.step()

    def close(self, phases: Profile) -> None:
        self._profiler.stop()
        if not self._operators:
            logger.warning(
                f"--profile: the run ended within the {SKIP_STEPS} steps that are skipped, so no "
                "operator was recorded. Set PROF_SKIP lower or env.max_frame higher."
            )
        summary = {
            "seconds": asdict(phases),
            "skipped_steps": SKIP_STEPS,
            "recorded_steps": ACTIVE_STEPS,
            "operators": self._operators,
        }
        folder = self._folder / "profiler"
        text = json.dumps(summary, indent=2) + "\n"
        write_or_warn(self._folder, folder / "profiler_summary.json", text)
        write_or_warn(self._folder, folder / "profiling_dashboard.html", _dashboard(summary))

    def _keep(self, profiler: torch.profiler.profile) -> None:
        trace = self._folder / "traces" / "trace.json"
        check_place(self._folder, trace)
        profiler.export_chrome_trace(str(trace))
        self._operators = [
            {"name": e.key, "calls": e.count, "self_cpu_us": e.self_cpu_time_total}
            for e in sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
        ]


def _dashboard(summary: dict[str, Any]) -> str:
    seconds: dict[str, float] = summary["seconds"]
    total = sum(seconds.values()) or 1.0
    phases = _bars((name, s / total, f"{s:.2f} s") for name, s in seconds.items())
    whole = sum(op["self_cpu_us"] for op in summary["operators"]) or 1.0
    operators = _bars(
        (op["name"], op["self_cpu_us"] / whole, f"{op['self_cpu_us']:.0f} µs in {op['calls']}")
        for op in summary["operators"][:ROWS_SHOWN]
    )
    return f"""<!doctype html>
<meta charset="utf-8"><title>Profile</title>
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
          color-scheme: light dark; }}
  td {{ padding: .1em .6em; white-space: nowrap }} td.bar {{ width: 100% }}
  td.bar div {{ background: #0072b2; height: 1em }}
</style>
<h1>Where the time went</h1>
<h2>The whole session</h2>{phases}
<h2>Operators, over {ACTIVE_STEPS} steps after the first {SKIP_STEPS}</h2>{operators}
"""


def _bars(rows: Iterable[tuple[str, float, str]]) -> str:
    cells = "".join(
        f"<tr><td>{html.escape(name)}<td>{share:.1%}<td>{html.escape(note)}"
        f'<td class="bar"><div style="width:{share:.1%}"></div>'
        for name, share, note in rows
    )
    return f"<table>{cells}</table>"
