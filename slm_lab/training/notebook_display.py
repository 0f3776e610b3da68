"""The progress of a trial in a notebook: one table below the cell, redrawn in place."""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from slm_lab.runs.glossary import format_value
from slm_lab.training.console import Progress, TellOnce, Told

REDRAW_SECONDS = 0.5
_BAR = '<progress style="width:16em" value="{value}" max="{max}"></progress>'


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookDisplay:
    """Shows the progress of a trial's sessions below the cell that runs it."""

    def __init__(
        self,
        sessions: Sequence[int],
        *,
        show: Callable[[str], Callable[[str], None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` displays HTML and returns what replaces it."""
        self._latest: dict[int, Progress] = {}
        self._ended: dict[int, str] = {}
        self._sessions, self._clock = sessions, clock
        self._show = show or _show_below
        self._redraw: Callable[[str], None] = lambda _: None
        self._drawn_at = 0.0
        self._tell = TellOnce()

    def __enter__(self) -> Self:
        self._redraw = self._show(self._html())
        self._drawn_at = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._redraw(self._html())

    def update(self, progress: Progress) -> None:
        self._latest[progress.session] = progress
        if self._clock() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = self._clock()
            self._redraw(self._html())

    def tell(self, told: Told) -> None:
        self._tell(told)

    def stopping(self) -> None:
        pass  # each session says how it ended

    def finish(self, session: int, text: str) -> None:
        """Show how a session ended beside its numbers."""
        self._ended[session] = text
        self._redraw(self._html())

    def _html(self) -> str:
        rows = "".join(map(self._row, self._sessions))
        return f"<table>{rows}</table>"

    def _row(self, session: int) -> str:
        progress, end = self._latest.get(session), html.escape(self._ended.get(session, ""))
        if progress is None or not progress.frame:
            stage = "waiting for a core" if progress is None else progress.stage
            return f"<tr><td>session {session}</td><td>{end or stage or 'starting'}</td></tr>"
        reward, best = (
            format_value("total_reward_ma", score)
            for score in (progress.total_reward_ma, progress.best)
        )
        left = (progress.max_frame - progress.frame) / max(progress.fps, 1e-9)
        cells = [
            f"session {session}",
            _BAR.format(value=progress.frame, max=progress.max_frame),
            f"{progress.frame:,} of {progress.max_frame:,} frames",
            f"{progress.fps:,.0f} frames/s",
            f"reward {reward}, best {best}",
            end or f"{left:,.0f} s left",
        ]
        return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _show_below(text: str) -> Callable[[str], None]:
    ipython = importlib.import_module(
        "IPython.display"
    )  # there if this is called: not a dependency
    handle: Any = ipython.display(ipython.HTML(text), display_id=True)
    return lambda html: handle.update(ipython.HTML(html))
