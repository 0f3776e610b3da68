"""One seed of a spec: envs, agent, training loop, recorder, and the files they leave."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from loguru import logger

from slm_lab.agent.agent import make_agent
from slm_lab.agent.learning.learner import DivergenceError, check_parameters
from slm_lab.env.finite import FiniteEnv, describe, first_non_finite
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.runs.files import write_or_warn
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import has_checkpoint
from slm_lab.spec import Spec
from slm_lab.training.callback import RunningSession, make_callbacks
from slm_lab.training.checkpoint import check_actions, check_fits, tree_bytes
from slm_lab.training.console import Progress, format_checkpoint, format_profile
from slm_lab.training.distributed import SharedAlgorithm
from slm_lab.training.executors.local import SharedNets
from slm_lab.training.init_from import begin_with
from slm_lab.training.loop import Loop, evaluate
from slm_lab.training.options import RunOptions
from slm_lab.training.recorder import Recorder, WandbSink
from slm_lab.training.saving import EXPERIENCE, SessionSaver, warn_of_unmoved_parameters
from slm_lab.training.seeding import session_seeds
from slm_lab.training.watchers import OperatorProfiler, Viewer
from slm_lab.types import on_host

REPORT_EVERY_SECONDS = 0.25
GROWTH_BYTES = 2**30  # that a session may add to its fresh state: running episodes, rows


class Session:
    """Owns what surrounds the training loop: envs, recorder, saved files, progress reports."""

    def __init__(
        self,
        spec: Spec,
        layout: RunLayout,
        trial: int,
        session: int,
        options: RunOptions,
        *,
        report: Callable[[Progress], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        shared: SharedNets | None = None,
    ) -> None:
        self._spec, self._layout, self._options = spec, layout, options
        self._trial, self._session = trial, session
        self._name = layout.session_name(trial, session)
        self._report, self._should_stop = report, should_stop
        assert spec.meta.random_seed is not None, "the trial gives every session its seed"
        seeds = session_seeds(spec.meta.random_seed, trial, session)
        make = partial(make_env, spec.env, cores=options.cores)
        self._env: VectorEnv = make(seed=seeds.env, render=options.render)
        self._eval_env = make(seed=seeds.eval_env) if spec.meta.rigorous_eval else None
        device = trial * spec.meta.max_session + session + options.cuda_offset
        self._agent = make_agent(spec, self._env.spaces, seed=seeds.agent, device_index=device)
        goes_on = options.resume and has_checkpoint(layout, trial, session)
        if spec.meta.init_from is not None and not goes_on:
            begin_with(self._agent, spec.meta.init_from, session)
        if shared is not None:
            algorithm = SharedAlgorithm(self._agent.algorithm, shared, join=not options.resume)
            self._agent.algorithm = algorithm
        wandb = [WandbSink(spec, layout, trial, session)] if options.wandb else []
        self._recorder = Recorder(layout, trial, session, *wandb)
        self._viewer = Viewer(self._env, spec.name) if options.render else None
        self._profiler = OperatorProfiler(layout.predir) if options.profile else None
        seen = FiniteEnv(self._env, spec.env.name) if options.mode == "dev" else self._env
        self._loop = Loop(self._agent, cast(VectorEnv, seen), spec.env.max_frame)
        place = (layout, trial, session, self._agent, self._env, self._loop, self._recorder)
        self._callbacks = make_callbacks(RunningSession(spec, *place, lambda _: None))
        self._has_started = False
        self.saver = SessionSaver(spec, layout, trial, session, self._agent, self._loop)
        self._initial = self.saver.best["models"] if options.mode == "dev" else {}
        self._next_eval = spec.meta.eval_frequency
        self._report_at = 0.0  # on the clock of the loop
        self._seconds_before = 0.0
        self._failed = False
        self._divergence: DivergenceError | None = None
        logger.info(self._start_line())
        report(self._progress())
        if options.resume:
            max_bytes = 2 * tree_bytes(self.state_dict()) + GROWTH_BYTES
            self._resume(max_bytes)
            if shared is not None:
                folders = (layout.checkpoint_dir(trial, s) / "last" for s in range(shared.workers))
                algorithm.join(folders, max_bytes)

    def run(self) -> bool:
        """Train until a stop is asked for or the budget is used up, which it returns; write every
        file."""
        try:
            is_done = self.advance()
        finally:
            self.close()
        if is_done:
            logger.info(f"Session {self._session} done{self._stop_text()}")
        else:
            of_budget = f"frame {self.frame:,} of {self._spec.env.max_frame:,}"
            logger.warning(f"Session {self._session} stopped early, at {of_budget}")
        return is_done

    def advance(self, until: int | None = None) -> bool:
        """Train until the frame `until`, the end of the budget or a stop; returns whether the
        budget is used up. Training in rounds gives the numbers of one go."""
        try:
            if not self._loop.is_over:
                self._start_callbacks()
                self._loop.run(
                    self._checkpoint,
                    self._spec.meta.log_frequency,
                    self._must_stop if self._callbacks else self._should_stop,
                    self._watchers(),
                    until=until,
                    save_if_due=self._save_if_due,
                )
                if self.stop_reason and self._recorder.last_row.get("frame") != self.frame:
                    self._checkpoint()  # the last row of the curve
            self._check_parameters()
        except BaseException as error:
            # The state in memory may be half updated or not finite: the last checkpoint stays.
            self._failed = True
            if isinstance(error, DivergenceError):
                self._divergence = error
                error.explain(self._env_fault())
                last = ", ".join(f"{k} = {x:.4g}" for k, x in self._latest_metrics().items())
                logger.error(
                    f"Session {self._session}: {error} Last finite metrics: {last or 'none'}"
                )
                self._record({"loss": math.inf})  # marks the end of the curve
            raise
        return self._loop.is_over

    @property
    def frame(self) -> int:
        return self._loop.clock.frame

    @property
    def is_settled(self) -> bool:
        """Whether the session trains as it will go on: it learns, by compiled code if it will."""
        learns = self._loop.clock.updates > 0 or not self._spec.agent.algorithm_info.learns
        return learns and not self._agent.is_compiling

    @property
    def is_over(self) -> bool:
        return self._loop.is_over

    @property
    def stop_reason(self) -> str:
        """Why a callback ended the session; empty if none did."""
        return self._loop.stop_reason or ""

    @property
    def score(self) -> float:
        """The score a search compares: `total_reward_ma`; NaN before the first episode ends."""
        return self._recorder.score

    def save(self) -> None:
        """Write everything as of now, tables included. This finishes a trained session."""
        if self.saver.complete_at != self.frame:
            self._check_parameters()
            self.saver.save(self.state_dict, self._recorder.write_tables)
            self._callbacks.saved()

    def close(self) -> None:
        """Write what is not on disk yet, and release envs and files."""
        logger.info(self._progress().profile)
        self._write_all()
        if self._has_started:
            self._callbacks.end(self._end_reason())
        since_start = self._loop.clock.seconds - self._seconds_before
        logger.info(f"Session {self._session} {self.saver.schedule.describe(since_start)}")
        self._recorder.close()
        if self._viewer:
            self._viewer.close()
        if self._profiler:
            self._profiler.close(self._loop.profile)
        self._env.close()
        if self._eval_env is not None:
            self._eval_env.close()

    def _write_all(self) -> None:
        """Write what is not on disk yet; of a session that failed, what is still sound."""
        if self._failed:
            self.saver.save_models(latest=self._divergence is None)
            self._recorder.write_tables()
            if self._divergence is not None:  # last: a resume skips a session that has this report
                last, report = dict(self._latest_metrics()), self._divergence
                content = {"frame": report.frame, "terms": report.terms, "last_finite": last}
                text = json.dumps(content, indent=1, default=str) + "\n"
                path = self._layout.divergence_report(self._trial, self._session)
                write_or_warn(self._layout.predir, path, text)
        else:
            self.save()

    # State

    def state_dict(self) -> dict[str, Any]:
        """The whole state of a session: the states of its owners, listed here and nowhere else."""
        state = {
            "agent": self._agent.state_dict(),  # parameters, optimisers, targets, normalisers
            "experience": self._agent.experience.state_dict(),  # rollout or replay, pace
            "env": self._env.state_dict(),  # running episodes, returns, random streams
            "eval_env": self._eval_env and self._eval_env.state_dict(),
            "loop": self._loop.state_dict(),  # counters, latest metrics
            "recorder": self._recorder.state_dict(),  # the curve, and with it the best score
            "best": self.saver.best,
            "next_eval": self._next_eval,
        }
        return state | ({"callbacks": self._callbacks.state_dict()} if self._callbacks else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_fits(state["agent"], self._agent.state_dict(), "agent")
        check_fits(state["best"], self.saver.best, "best")
        self._agent.load_state_dict(state["agent"])
        self._loop.load_state_dict(state["loop"])
        self._recorder.load_state_dict(state["recorder"])
        self.saver.keep_best(state["best"])
        self._next_eval = int(state["next_eval"])
        self._initial = {}
        if self._callbacks:
            self._callbacks.load_state_dict(state["callbacks"])
        if self._loop.is_over:
            return
        if EXPERIENCE in state:
            self._agent.experience.load_state_dict(state[EXPERIENCE])
            # A ring is read only now, from its files.
            check_actions(self._agent.experience.state_dict(), self._env.spaces.action_sizes)
        else:
            logger.info("more frames: the replay of the finished run was not kept, and fills again")
        if "env" not in state:  # by a version that kept none of a finished session
            self._loop.has_begun = False
            return
        self._env.load_state_dict(state["env"])
        if self._eval_env is not None:
            self._eval_env.load_state_dict(state["eval_env"])
        obs = state["loop"]["obs"]
        now = on_host(self._env.obs)
        if self._loop.has_begun and not np.array_equal(now, obs, equal_nan=True):
            logger.info("the env began new episodes: nothing joins them to the steps before")
            self._agent.truncate_episodes(obs)

    def _resume(self, max_bytes: int) -> None:
        if not self.saver.restore(self.load_state_dict, max_bytes):
            logger.info(f"Session {self._session} has no checkpoint yet and starts from frame 0")
            return
        self._seconds_before = self._loop.clock.seconds
        logger.info(f"Session {self._session} goes on from frame {self.frame:,}")

    # Called by the loop

    def _save_if_due(self, now: float) -> bool:
        if now >= self._report_at:
            self._tell_progress(now)
        if self._loop.is_over or not self.saver.schedule.is_due(self.frame, now):
            return False
        self._check_parameters()
        self.saver.save(self.state_dict)
        self._callbacks.saved()
        return True

    def _must_stop(self) -> bool:
        return self._loop.stop_reason is not None or self._should_stop()

    def _watchers(self) -> list[Callable[[], None]]:
        """What is called after every step; callbacks only if one of them looks at steps."""
        watchers = [each.after_step for each in (self._viewer, self._profiler) if each]
        return (
            [*watchers, self._callbacks.after_step] if self._callbacks.watches_steps else watchers
        )

    def _start_callbacks(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._callbacks.start()

    def _stop_text(self) -> str:
        return f" at frame {self.frame:,}: {self.stop_reason}" if self.stop_reason else ""

    def _end_reason(self) -> str:
        if self._failed:
            return f"failed: {self._divergence or 'see the log'}"
        return self.stop_reason or ("finished" if self.is_over else "interrupted")

    def _checkpoint(self) -> None:
        """Record a row of the curve, evaluate if due, and report progress."""
        is_best = self._record({})
        if self._initial and self._loop.clock.updates:
            warn_of_unmoved_parameters(self._agent, self._initial)
            self._initial = {}
        if self._eval_env is not None and self.frame >= self._next_eval:
            self._next_eval += self._spec.meta.eval_frequency
            score = evaluate(self._agent, self._eval_env)
            self._recorder.record_eval(self._row() | {"total_reward": score})
            self._callbacks.evaluated(score)
        self._check_parameters()
        if is_best:
            self.saver.keep_best()
        if self._loop.is_over:
            self._tell_progress(time.perf_counter())

    def _tell_progress(self, now: float) -> None:
        self._report(self._progress())
        self._report_at = now + REPORT_EVERY_SECONDS

    def _record(self, override: dict[str, float]) -> bool:
        row = self._row() | override
        if self._callbacks and not override:
            row |= self._callbacks.columns(self._recorder.preview(row))
        # Further metrics of the latest update go to TensorBoard and W&B alone.
        details = {name: x for name, x in self._latest_metrics().items() if name not in row}
        is_best = self._recorder.record(row, details)
        last = self._recorder.last_row
        logger.debug(format_checkpoint(self._trial, self._session, self._name, last))
        return is_best

    def _row(self) -> dict[str, float]:
        """A row of the curve: counters, the score so far, and what the algorithm reports."""
        clock, episodes, metrics = self._loop.clock, self._env.episodes, self._latest_metrics()
        is_single = self._env.num_envs == 1
        row = {
            "total_reward": episodes.total_reward(),
            "loss": metrics.get("loss", math.nan),
            "fps": clock.frames_per_second,
            "frame": clock.frame,
            "wall_t": round(clock.seconds, 2),
            "t": episodes.running_length() if is_single else clock.frame // self._env.num_envs,
            "epi": episodes.count if is_single else math.nan,
            "opt_step": clock.opt_step,
            "lr": metrics.get("lr", math.nan),
        }
        info = self._spec.agent.algorithm_info
        gradient = ("grad_norm",) if info.learns else ()
        is_dev = self._options.mode == "dev"  # where the original has this column too
        columns = (*gradient, *info.columns) if is_dev else (*info.columns, *gradient)
        last_return, last_length = episodes.last_100()
        row |= {column: metrics.get(column, math.nan) for column in columns}
        return row | {"last_100_return": last_return, "last_100_length": last_length}

    def _latest_metrics(self) -> Mapping[str, float]:
        return self._loop.metrics.values if self._loop.metrics else {}

    def _progress(self) -> Progress:
        clock, profile = self._loop.clock, self._loop.profile
        return Progress(
            session=self._session,
            frame=clock.frame,
            max_frame=self._spec.env.max_frame,
            fps=clock.frames_per_second,
            total_reward_ma=self._recorder.total_reward_ma,
            last_100_return=self._env.episodes.last_100()[0],
            best=self._recorder.best,
            profile=format_profile(profile.env, profile.act, profile.learn, profile.other),
            stage="compiling" if self._agent.is_compiling else "",
        )

    def _env_fault(self) -> str:
        """NaN or infinite values that the env gave, among those that are still stored: looked for
        only once training has diverged, so that it costs nothing before."""
        for key, rows, ages in self._agent.experience.stored():
            flat = rows.reshape(-1, *rows.shape[2:])
            # A recurrent agent's rows have its state behind the observation.
            is_whole = key == "reward" or flat.shape[1:] == self._env.spaces.obs_shape
            given = {key: flat if is_whole else flat[:, : math.prod(self._env.spaces.obs_shape)]}
            if (bad := first_non_finite(self._env.codecs.obs, **given)) is None:
                continue
            step, slot = divmod(bad[0], rows.shape[1])
            taken, where = self._loop.clock.frame // self._env.num_envs, f"env {slot}"
            if not len(ages):  # episodes of all envs, one after the other
                return describe(self._spec.env.name, bad[1], taken, "an episode that ended before")
            return describe(self._spec.env.name, bad[1], taken - int(ages[step]), where)
        return ""

    def _check_parameters(self) -> None:
        check_parameters(self._agent.algorithm.learner.state, self.frame)

    def _start_line(self) -> str:
        return (
            f"{self._name}: {self._spec.agent.algorithm.name} on {self._spec.env.name} "
            f"x{self._env.num_envs} ({self._env.backend}), seed {self._spec.meta.random_seed}, "
            f"{torch.get_num_threads()} thread(s), learning step "
            f"{'compiled' if self._agent.is_compiled else 'eager'}, {self._agent.precision}, "
            f"resumes {'exactly' if self._env.restorable else 'with new episodes'}"
        )
