"""One seed of a spec: env, agent, loop, and what they leave on disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.agent.learning.learner import DivergenceError, check_parameters
from slm_lab.agent.make import make_agent
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.runs.checkpoint_manifest import CheckpointError, CheckpointManifest
from slm_lab.runs.files import write_or_warn
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import versions
from slm_lab.runs.resume import spec_sha256
from slm_lab.spec import Spec
from slm_lab.training.checkpoint import (
    CheckpointStore,
    Slot,
    check_fits,
    has_rings,
    tree_bytes,
)
from slm_lab.training.console import Progress, format_checkpoint, format_profile
from slm_lab.training.curve_row import curve_row, frames_per_second
from slm_lab.training.distributed import SharedAlgorithm
from slm_lab.training.loop import Loop, evaluate
from slm_lab.training.models import (
    save_models,
    snapshot,
    warn_of_unmoved_parameters,
)
from slm_lab.training.options import RunOptions
from slm_lab.training.profiler import OperatorProfiler
from slm_lab.training.recorder import Recorder
from slm_lab.training.save_pace import SavePace
from slm_lab.training.seeding import session_seeds
from slm_lab.training.viewer import Viewer
from slm_lab.training.wandb_sink import WandbSink
from slm_lab.training.workers import SharedNets
from slm_lab.types import on_host

REPORT_EVERY_SECONDS = 0.25

# Beyond what a fresh session holds: running episodes, rows of the curve.
GROWTH_BYTES = 2**30

# Parts of the state that only further steps need; of a replay they are nearly all.
FOR_FURTHER_STEPS = ("experience", "env", "eval_env")


class Session:
    """Owns the loop's surroundings: recorder, saved models, progress reports."""

    def __init__(
        self,
        spec: Spec,
        layout: RunLayout,
        trial: int,
        session: int,
        options: RunOptions,
        *,
        report: Callable[[Progress], None],
        should_stop: Callable[[], bool],
        shared: SharedNets | None = None,
    ) -> None:
        self._spec, self._layout, self._options = spec, layout, options
        self._trial, self._session = trial, session
        self._report, self._should_stop = report, should_stop
        assert spec.meta.random_seed is not None, "the trial gives every session its seed"
        seeds = session_seeds(spec.meta.random_seed, trial, session)
        self._env: VectorEnv = make_env(spec.env, seed=seeds.env, render=options.render)
        self._eval_env = (
            make_env(spec.env, seed=seeds.eval_env) if spec.meta.rigorous_eval else None
        )
        device_index = trial * spec.meta.max_session + session + options.cuda_offset
        self._agent: Agent = make_agent(
            spec, self._env.spaces, seed=seeds.agent, device_index=device_index
        )
        if shared is not None:
            algorithm = SharedAlgorithm(self._agent.algorithm, shared, join=not options.resume)
            self._agent.algorithm = algorithm
        sink = WandbSink(spec, layout, trial, session) if options.wandb else None
        self._recorder = Recorder(layout, trial, session, sink)
        self._viewer = Viewer(self._env, spec.name) if options.render else None
        self._profiler = OperatorProfiler(layout.predir) if options.profile else None
        self._loop = Loop(self._agent, self._env, spec.env.max_frame)
        self._store = CheckpointStore(
            layout.checkpoint_dir(trial, session),
            layout.session_name(trial, session),
            spec_sha256(spec),
            run_dir=layout.predir,
        )
        self._best = self._snapshot()
        self._best_is_saved = False
        self._unmoved = dict(self._best["models"]) if options.mode == "dev" else {}
        self._next_eval = spec.meta.eval_frequency
        self._reported_at = time.monotonic()
        self.saving = SavePace(spec.meta.checkpoint_frequency)
        self._seconds_before = 0.0
        self._has_broken_off = False
        self._divergence: DivergenceError | None = None
        self._saved_whole_at: int | None = None
        logger.info(self._start_line())
        if options.resume:
            max_bytes = 2 * tree_bytes(self.state_dict()) + GROWTH_BYTES
            self._restore(max_bytes)
            if shared is not None:
                folders = (layout.checkpoint_dir(trial, s) / "last" for s in range(shared.workers))
                algorithm.join(folders, max_bytes)

    def run(self) -> bool:
        """Train to the end of the budget or until told to stop; then everything is on disk.

        Returns whether the budget was used up.
        """
        try:
            is_done = self.advance()
        finally:
            self.close()
        clock, max_frame = self._loop.clock, self._spec.env.max_frame
        if is_done:
            logger.info(f"Session {self._session} done")
        else:
            logger.warning(
                f"Session {self._session} stopped early, at frame {clock.frame:,} of {max_frame:,}"
            )
        return is_done

    def advance(self, until: int | None = None) -> bool:
        """Train until that frame, the end of the budget, or told to stop, whatever comes first.

        Returns whether the budget is used up. Training in rounds gives the numbers of one go.
        """
        try:
            if not self._is_trained:
                self._loop.run(
                    self._checkpoint,
                    self._spec.meta.log_frequency,
                    self._should_stop,
                    after_step=self._after_step if self._viewer or self._profiler else None,
                    until=until,
                    save_if_due=self._save_if_due,
                )
            self._check_parameters()
        except BaseException as error:
            # What is in memory may be half done, or no numbers: the checkpoint before it stays.
            self._has_broken_off = True
            if isinstance(error, DivergenceError):
                self._divergence = error
                self._record_divergence(error)
            raise
        return self._is_trained

    @property
    def frame(self) -> int:
        return self._loop.clock.frame

    @property
    def _is_trained(self) -> bool:
        """Whether the budget is used up, so that only files are left to write."""
        return self._loop.clock.frame >= self._spec.env.max_frame

    @property
    def score(self) -> float:
        """What a search goes by: `total_reward_ma` so far; NaN before the first episode ends."""
        return self._recorder.score

    def close(self) -> None:
        """Write what is not on disk yet, and let go of envs and files."""
        logger.info(self._progress().profile)
        if self._has_broken_off:
            self._save_models()
            self._recorder.write_tables()
            if self._divergence is not None:  # last, because a resume leaves the session alone then
                self._write_divergence_report(self._divergence)
        else:
            self.save()
        since_start = self._loop.clock.seconds - self._seconds_before
        logger.info(f"Session {self._session} {self.saving.describe(since_start)}")
        self._recorder.close()
        if self._viewer:
            self._viewer.close()
        if self._profiler:
            self._profiler.close(self._loop.profile)
        self._env.close()
        if self._eval_env is not None:
            self._eval_env.close()

    def _after_step(self) -> None:
        if self._viewer:
            self._viewer.after_step()
        if self._profiler:
            self._profiler.after_step()

    def _checkpoint(self) -> None:
        is_best = self._record({})
        if self._unmoved and self._loop.clock.updates:
            warn_of_unmoved_parameters(self._agent, self._unmoved)
            self._unmoved = {}
        frame = self._loop.clock.frame
        if self._eval_env is not None and frame >= self._next_eval:
            self._next_eval += self._spec.meta.eval_frequency
            self._recorder.record_eval(
                self._row() | {"total_reward": evaluate(self._agent, self._eval_env)}
            )
        self._check_parameters()
        if is_best:
            self._best = self._snapshot()
            self._best_is_saved = False
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY_SECONDS or self._is_trained:
            self._report(self._progress())
            self._reported_at = now

    def _record(self, override: dict[str, float]) -> bool:
        row = self._row() | override
        is_best = self._recorder.record(row, self._details(row))
        name = self._layout.session_name(self._trial, self._session)
        logger.debug(format_checkpoint(self._trial, self._session, name, self._recorder.last_row))
        return is_best

    def _row(self) -> dict[str, float]:
        return curve_row(
            self._loop.clock,
            self._env.episodes,
            self._env.num_envs,
            self._latest_metrics(),
            self._spec.agent.algorithm.name,
            has_grad_norm=self._options.mode == "dev",
        )

    def _details(self, row: Mapping[str, float]) -> dict[str, float]:
        """Further metrics of the latest update, for TensorBoard alone."""
        return {name: x for name, x in self._latest_metrics().items() if name not in row}

    def _latest_metrics(self) -> Mapping[str, float]:
        return self._loop.metrics.values if self._loop.metrics else {}

    def _progress(self) -> Progress:
        clock, profile = self._loop.clock, self._loop.profile
        return Progress(
            session=self._session,
            frame=clock.frame,
            max_frame=self._spec.env.max_frame,
            fps=frames_per_second(clock),
            total_reward_ma=self._recorder.total_reward_ma,
            best=self._recorder.best,
            profile=format_profile(profile.env, profile.act, profile.learn, profile.other),
        )

    # Saving and restoring

    def state_dict(self) -> dict[str, Any]:
        """All that a session is: the states of its owners, listed here and nowhere else."""
        return {
            "agent": self._agent.state_dict(),  # parameters, optimisers, targets, schedules, lens
            "experience": self._agent.experience.state_dict(),  # rollout or replay, pace
            "env": self._env.state_dict(),  # running episodes, returns, random streams
            "eval_env": self._eval_env and self._eval_env.state_dict(),
            "loop": self._loop.state_dict(),  # counters, latest metrics
            "recorder": self._recorder.state_dict(),  # the curve, and with it the best score
            "best": self._best,
            "next_eval": self._next_eval,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_fits(state["agent"], self._agent.state_dict(), "agent")
        check_fits(state["best"], self._best, "best")
        self._agent.load_state_dict(state["agent"])
        self._loop.load_state_dict(state["loop"])
        self._recorder.load_state_dict(state["recorder"])
        self._best = state["best"]
        self._best_is_saved = False
        self._next_eval = int(state["next_eval"])
        self._unmoved = {}
        if self._is_trained:
            return
        self._agent.experience.load_state_dict(state["experience"])
        self._env.load_state_dict(state["env"])
        if self._eval_env is not None:
            self._eval_env.load_state_dict(state["eval_env"])
        obs = state["loop"]["obs"]
        now = on_host(self._env.obs)
        if self._loop.has_begun and not np.array_equal(now, obs, equal_nan=True):
            logger.info("the env began new episodes: nothing joins them to the steps before")
            self._agent.truncate_episodes(obs)

    def _restore(self, max_bytes: int) -> None:
        """Go on from the last good checkpoint; without any, start from the beginning."""
        found = self._store.read("last", max_bytes=max_bytes)
        if found is None:
            logger.info(f"Session {self._session} has no checkpoint yet and starts from frame 0")
            return
        manifest, state = found
        try:
            self.load_state_dict(state)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
            raise CheckpointError(
                self._store.folder, f"the state does not fit this spec ({error!r:.300})"
            ) from error
        _warn_of_other_versions(manifest)
        self.saving.plan(self._loop.clock.frame)
        self._seconds_before = self._loop.clock.seconds
        logger.info(f"Session {self._session} goes on from frame {self._loop.clock.frame:,}")

    def save(self) -> None:
        """Write everything as of now, tables included. A trained session is finished by it."""
        if self._saved_whole_at != self._loop.clock.frame:
            self._save(whole=True)

    def _save_if_due(self, now: float) -> bool:
        if self._is_trained or not self.saving.is_due(self._loop.clock.frame, now):
            return False
        self._save()
        return True

    def _save(self, *, whole: bool = False) -> None:
        """Write models and checkpoints. What cannot be written is named; training goes on.

        The checkpoint to go on from comes last: after a kill at any step before, a resume goes on
        from the one before it and writes all the rest again. So it says `finished` only when
        nothing is left to write.
        """
        began = time.perf_counter()
        self._check_parameters()
        is_saved = self._best_is_saved = self._save_best() & self._save_models()
        if whole:
            is_saved &= self._recorder.write_tables()
        is_saved &= self._save_last(finished=whole and is_saved and self._is_trained)
        spent, frame = time.perf_counter() - began, self._loop.clock.frame
        if whole and is_saved:
            self._saved_whole_at = frame
        self.saving.saved(frame, spent)
        size = f"{self.saving.bytes / 1e6:.1f} MB in {spent:.2f} s"
        logger.debug(f"Session {self._session} saved at frame {frame:,}: {size}")

    def _save_best(self) -> bool:
        if self._best_is_saved:
            return True
        return self._write_checkpoint("best", self._best["agent"], self._best["counters"])

    def _save_last(self, *, finished: bool) -> bool:
        state, counters = self.state_dict(), self._counters()
        if self._is_trained:
            has_replay = has_rings(state)
            state = {key: state[key] for key in state if key not in FOR_FURTHER_STEPS}
            # Written twice, no replay stays in the checkpoint before it.
            if has_replay and not self._write_checkpoint("last", state, counters):
                return False
        return self._write_checkpoint("last", state, counters, finished=finished)

    def _write_checkpoint(
        self, slot: Slot, state: Mapping[str, Any], counters: dict[str, int], **flags: bool
    ) -> bool:
        try:
            manifest = self._store.write(slot, state, counters, **flags)
        except OSError as error:
            where, kept = error.filename or self._store.folder, "the one before it is kept"
            logger.warning(f"{where}: checkpoint not written ({error.strerror or error}), {kept}")
            return False
        if slot == "last":
            self.saving.bytes = manifest.size
        return True

    def _save_models(self) -> bool:
        models = {} if self._divergence else {False: snapshot(self._agent)}
        if not self._best_is_saved:
            models[True] = self._best["models"]
        try:
            for is_best, states in models.items():
                save_models(states, self._layout, self._trial, self._session, best=is_best)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            logger.warning(f"{self._layout.predir / 'model'}: models not written ({error})")
            return False
        return True

    def _check_parameters(self) -> None:
        check_parameters(self._agent.algorithm.learner.state, self._loop.clock.frame)

    def _counters(self) -> dict[str, int]:
        clock = self._loop.clock
        return {"frame": clock.frame, "opt_step": clock.opt_step, "updates": clock.updates}

    def _snapshot(self) -> dict[str, Any]:
        """What the best agent so far is kept as."""
        return {
            "models": snapshot(self._agent),
            "agent": self._agent.state_dict(),
            "counters": self._counters(),
        }

    def _record_divergence(self, error: DivergenceError) -> None:
        """Mark the curve where it broke off."""
        cells = ", ".join(f"{k} = {value:.4g}" for k, value in self._latest_metrics().items())
        logger.error(f"Session {self._session}: {error} Last finite metrics: {cells or 'none'}")
        self._record({"loss": math.inf})

    def _write_divergence_report(self, error: DivergenceError) -> None:
        """Leave a note of how it was when all was well."""
        last = dict(self._latest_metrics())
        note = {"frame": error.frame, "terms": error.terms, "last_finite": last}
        path = self._layout.divergence_report(self._trial, self._session)
        write_or_warn(self._layout.predir, path, json.dumps(note, indent=1, default=str) + "\n")

    def _start_line(self) -> str:
        name = self._layout.session_name(self._trial, self._session)
        return (
            f"{name}: {self._spec.agent.algorithm.name} on {self._spec.env.name} "
            f"x{self._env.num_envs} ({self._env.backend}), seed {self._spec.meta.random_seed}, "
            f"{torch.get_num_threads()} thread(s), learning step "
            f"{'compiled' if self._agent.is_compiled else 'eager'}, "
            f"resumes {'exactly' if self._env.restorable else 'with new episodes'}"
        )


def _warn_of_other_versions(manifest: CheckpointManifest) -> None:
    now = versions()
    changed = [
        f"{name} {was} -> {now.get(name, 'none')}"
        for name, was in manifest.versions.items()
        if now.get(name) != was
    ]
    if changed:
        logger.warning(
            f"resuming under other versions ({', '.join(changed)}): "
            "the rest of the run may differ from an uninterrupted one in the last digits"
        )
