"""When a session saves itself, and what that has cost."""

from __future__ import annotations

import time

# Without `meta.checkpoint_frequency` a session saves itself this often, and more seldom where
# saving takes longer: it may cost a hundredth of the time.
SAVE_EVERY_SECONDS = 20.0
SAVE_SHARE = 0.01


class SavePace:
    """By the clock, or every so many frames if the spec says so."""

    def __init__(self, every_frames: int | None) -> None:
        self._every_frames = every_frames
        self.saves = 0
        self.seconds = 0.0
        self.last_seconds = 0.0
        self.bytes = 0  # of the latest checkpoint
        self.plan(0)

    def plan(self, frame: int, cost: float = 0.0) -> None:
        """Decide on the next save; `cost` is the seconds that the last one took."""
        self._at = time.perf_counter() + max(SAVE_EVERY_SECONDS, cost / SAVE_SHARE)
        every = self._every_frames
        self._at_frame = None if every is None else (frame // every + 1) * every

    def is_due(self, frame: int, now: float) -> bool:
        return now >= self._at if self._at_frame is None else frame >= self._at_frame

    def saved(self, frame: int, seconds: float) -> None:
        self.saves += 1
        self.seconds += seconds
        self.last_seconds = seconds
        self.plan(frame, seconds)

    def describe(self, training_seconds: float) -> str:
        # The last save came after the clock of the training had stopped.
        share = self.seconds / max(training_seconds + self.last_seconds, 1e-9)
        return (
            f"saved {self.saves} time(s) in {self.seconds:.2f} s, {share:.1%} of its time; "
            f"a checkpoint takes {self.bytes / 1e6:.1f} MB"
        )
