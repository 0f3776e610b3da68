"""Saving a session: when it is due, which files it writes, and how a resume reads them back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.runs.checkpoint_manifest import CheckpointError, CheckpointManifest
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import versions
from slm_lab.runs.resume import spec_sha256
from slm_lab.spec import Spec
from slm_lab.training.checkpoint import CheckpointStore, Slot, State, has_rings
from slm_lab.training.loop import Loop
from slm_lab.training.models import save_models, snapshot

# Without `meta.checkpoint_frequency` a session saves itself this often, and more seldom where
# saving takes longer: it may cost 1 % of the training time.
SAVE_EVERY_SECONDS = 20.0
SAVE_SHARE = 0.01

# Parts of the state that only further steps need. A replay makes them nearly all of the bytes.
FOR_FURTHER_STEPS = ("experience", "env", "eval_env")


class SaveSchedule:
    """When the next save is due (by the clock, or every `every_frames`), and what saves cost."""

    def __init__(
        self, every_frames: int | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._every_frames, self._clock = every_frames, clock
        self.saves, self.seconds, self.last_seconds = 0, 0.0, 0.0
        self.bytes = 0  # of the latest checkpoint
        self.plan(0)

    def plan(self, frame: int, cost: float = 0.0) -> None:
        """Decide on the next save; `cost` is the seconds that the last one took."""
        self._at = self._clock() + max(SAVE_EVERY_SECONDS, cost / SAVE_SHARE)
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
        # The training clock had stopped before the last save.
        share = self.seconds / max(training_seconds + self.last_seconds, 1e-9)
        return (
            f"saved {self.saves} time(s) in {self.seconds:.2f} s, {share:.1%} of its time; "
            f"a checkpoint takes {self.bytes / 1e6:.1f} MB"
        )


class SessionSaver:
    """Writes the models and checkpoints of a session; owns the best agent so far. A file that
    cannot be written is named in a warning, and training continues."""

    def __init__(
        self, spec: Spec, layout: RunLayout, trial: int, session: int, agent: Agent, loop: Loop
    ) -> None:
        self._layout, self._trial, self._session = layout, trial, session
        self._agent, self._loop = agent, loop
        self._store = CheckpointStore(
            layout.checkpoint_dir(trial, session),
            layout.session_name(trial, session),
            spec_sha256(spec),
            run_dir=layout.predir,
        )
        self.schedule = SaveSchedule(spec.meta.checkpoint_frequency)
        self.complete_at: int | None = None  # the frame at which everything was written
        self.keep_best()

    def keep_best(self, best: dict[str, Any] | None = None) -> None:
        """Remember the agent as it is now, or a restored one, as the best so far."""
        self.best = best or {
            "models": snapshot(self._agent),
            "agent": self._agent.state_dict(),
            "counters": self._counters(),
        }
        self._best_is_saved = False

    def save(
        self, state_dict: Callable[[], dict[str, Any]], tables: Callable[[], bool] | None = None
    ) -> None:
        """Write models and checkpoints; with `tables`, which writes them, everything.

        The checkpoint to continue from comes last. After a kill at any earlier step, a resume
        continues from the checkpoint before it and writes all other files again. Therefore the
        checkpoint says `finished` only when nothing is left to write.
        """
        began, frame = time.perf_counter(), self._loop.clock.frame
        best = self.best
        is_saved = self._best_is_saved or self._write("best", best["agent"], best["counters"])
        is_saved = self._best_is_saved = is_saved & self.save_models()
        if tables is not None:
            is_saved &= tables()
        is_finished = tables is not None and is_saved and self._loop.is_over
        is_saved &= self._save_last(state_dict(), finished=is_finished)
        if tables is not None and is_saved:
            self.complete_at = frame
        spent = time.perf_counter() - began
        self.schedule.saved(frame, spent)
        size = f"{self.schedule.bytes / 1e6:.1f} MB in {spent:.2f} s"
        logger.debug(f"Session {self._session} saved at frame {frame:,}: {size}")

    def save_models(self, *, latest: bool = True) -> bool:
        """Write the nets as plain state dicts: the latest, and the best unless on disk already."""
        models = {False: snapshot(self._agent)} if latest else {}
        if not self._best_is_saved:
            models[True] = self.best["models"]
        try:
            for is_best, states in models.items():
                save_models(states, self._layout, self._trial, self._session, best=is_best)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            logger.warning(f"{self._layout.predir / 'model'}: models not written ({error})")
            return False
        return True

    def restore(self, load: Callable[[dict[str, Any]], None], max_bytes: int) -> bool:
        """Pass the last good checkpoint to `load`; False if there never was one."""
        found = self._store.read("last", max_bytes=max_bytes)
        if found is None:
            return False
        manifest, state = found
        try:
            load(state)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
            reason = f"the state does not fit this spec ({error!r:.300})"
            raise CheckpointError(self._store.folder, reason) from error
        _warn_of_other_versions(manifest)
        self.schedule.plan(self._loop.clock.frame)
        return True

    def _save_last(self, state: dict[str, Any], *, finished: bool) -> bool:
        counters = self._counters()
        if self._loop.is_over:
            has_replay = has_rings(state)
            state = {key: state[key] for key in state if key not in FOR_FURTHER_STEPS}
            # Written twice, so that the fallback checkpoint holds no replay either.
            if has_replay and not self._write("last", state, counters):
                return False
        return self._write("last", state, counters, finished=finished)

    def _write(self, slot: Slot, state: State, counters: dict[str, int], **flags: bool) -> bool:
        try:
            manifest = self._store.write(slot, state, counters, **flags)
        except OSError as error:
            where, kept = error.filename or self._store.folder, "the one before it is kept"
            logger.warning(f"{where}: checkpoint not written ({error.strerror or error}), {kept}")
            return False
        if slot == "last":
            self.schedule.bytes = manifest.size
        return True

    def _counters(self) -> dict[str, int]:
        clock = self._loop.clock
        return {"frame": clock.frame, "opt_step": clock.opt_step, "updates": clock.updates}


def _warn_of_other_versions(manifest: CheckpointManifest) -> None:
    now = versions()
    before = manifest.versions.items()
    if changed := [f"{k} {was} -> {now.get(k, 'none')}" for k, was in before if now.get(k) != was]:
        logger.warning(
            f"resuming under other versions ({', '.join(changed)}): "
            "the rest of the run may differ from an uninterrupted one in the last digits"
        )
