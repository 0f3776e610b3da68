"""One seed of a spec: env, agent, loop, and what they leave on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.agent.divergence import DivergenceError
from slm_lab.agent.make import make_agent
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.experiment.console import Progress, format_checkpoint, format_profile
from slm_lab.experiment.distributed import SharedAlgorithm
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.loop import Loop, evaluate
from slm_lab.experiment.models import save_models, snapshot, warn_of_unmoved_parameters
from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.profiler import OperatorProfiler
from slm_lab.experiment.recorder import Recorder
from slm_lab.experiment.seeding import session_seeds
from slm_lab.experiment.viewer import Viewer
from slm_lab.experiment.workers import SharedNets
from slm_lab.spec import Spec

SAVE_EVERY_SECONDS = 10.0
REPORT_EVERY_SECONDS = 0.25

# Columns of the curve that belong to an algorithm, after those that every algorithm has.
CURVE_COLUMNS: dict[str, tuple[str, ...]] = {
    "Reinforce": ("entropy_coef", "entropy"),
    "ActorCritic": ("entropy_coef",),
    "PPO": ("clip_eps", "entropy"),
    "Random": (),
    "SIL": ("entropy_coef",),
    "PPOSIL": ("clip_eps", "entropy"),
    "SARSA": ("explore_var",),
    "VanillaDQN": ("explore_var",),
    "DQNBase": ("explore_var",),
    "DQN": ("explore_var",),
    "DoubleDQN": ("explore_var",),
    "SoftActorCritic": ("alpha",),
    "CrossQ": ("alpha",),
}


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
            self._agent.algorithm = SharedAlgorithm(self._agent.algorithm, shared)
        self._recorder = Recorder(layout, trial, session)
        self._viewer = Viewer(self._env, spec.name) if options.render else None
        self._profiler = OperatorProfiler(layout.predir) if options.profile else None
        self._loop = Loop(self._agent, self._env, spec.env.max_frame)
        self._best = snapshot(self._agent)
        self._best_is_saved = False
        self._unmoved = dict(self._best) if options.mode == "dev" else {}
        self._next_eval = spec.meta.eval_frequency
        self._saved_at = self._reported_at = time.monotonic()

    def run(self) -> bool:
        """Train to the end of the budget or until told to stop; then everything is on disk.

        Returns whether the budget was used up.
        """
        logger.info(self._start_line())
        try:
            self._loop.run(
                self._checkpoint,
                self._spec.meta.log_frequency,
                self._should_stop,
                after_step=self._after_step if self._viewer or self._profiler else None,
            )
        except DivergenceError:
            self._record({"loss": math.inf})
            raise
        finally:
            self._close()
        clock, max_frame = self._loop.clock, self._spec.env.max_frame
        if clock.frame < max_frame:
            logger.warning(
                f"Session {self._session} stopped early, at frame {clock.frame:,} of {max_frame:,}"
            )
            return False
        logger.info(f"Session {self._session} done")
        return True

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
        if is_best:
            self._best = snapshot(self._agent)
            self._best_is_saved = False
        now = time.monotonic()
        if now - self._saved_at >= SAVE_EVERY_SECONDS:
            self._save()
            self._saved_at = now
        if now - self._reported_at >= REPORT_EVERY_SECONDS or frame >= self._spec.env.max_frame:
            self._report(self._progress())
            self._reported_at = now

    def _record(self, override: dict[str, float]) -> bool:
        is_best = self._recorder.record(self._row() | override, self._details())
        name = self._layout.session_name(self._trial, self._session)
        logger.debug(format_checkpoint(self._trial, self._session, name, self._recorder.last_row))
        return is_best

    def _row(self) -> dict[str, float]:
        clock, env = self._loop.clock, self._env
        values = self._loop.metrics.values if self._loop.metrics else {}
        is_single = env.num_envs == 1
        row = {
            "total_reward": env.episodes.total_reward(),
            "loss": values.get("loss", math.nan),
            "fps": clock.frame / max(clock.seconds, 1e-9),
            "frame": clock.frame,
            "wall_t": int(clock.seconds),
            "t": env.episodes.running_length() if is_single else clock.frame // env.num_envs,
            "epi": env.episodes.count if is_single else math.nan,
            "opt_step": clock.opt_step,
            "lr": values.get("lr", math.nan),
        }
        columns = CURVE_COLUMNS[self._spec.agent.algorithm.name]
        if self._options.mode == "dev":
            columns = ("grad_norm", *columns)
        return row | {column: values.get(column, math.nan) for column in columns}

    def _details(self) -> dict[str, float]:
        """Further metrics of the latest update, for TensorBoard alone."""
        row = self._row()
        values = self._loop.metrics.values if self._loop.metrics else {}
        return {name: value for name, value in values.items() if name not in row}

    def _progress(self) -> Progress:
        clock, profile = self._loop.clock, self._loop.profile
        return Progress(
            session=self._session,
            frame=clock.frame,
            max_frame=self._spec.env.max_frame,
            fps=clock.frame / max(clock.seconds, 1e-9),
            total_reward_ma=self._recorder.total_reward_ma,
            best=self._recorder.best,
            profile=format_profile(profile.env, profile.act, profile.learn, profile.other),
        )

    def _save(self) -> None:
        save_models(snapshot(self._agent), self._layout, self._trial, self._session, best=False)
        if not self._best_is_saved:
            save_models(self._best, self._layout, self._trial, self._session, best=True)
            self._best_is_saved = True

    def _close(self) -> None:
        logger.info(self._progress().profile)
        self._save()
        self._recorder.close()
        if self._viewer:
            self._viewer.close()
        if self._profiler:
            self._profiler.close(self._loop.profile)
        self._env.close()
        if self._eval_env is not None:
            self._eval_env.close()

    def _start_line(self) -> str:
        name = self._layout.session_name(self._trial, self._session)
        return (
            f"{name}: {self._spec.agent.algorithm.name} on {self._spec.env.name} "
            f"x{self._env.num_envs} ({self._env.backend}), seed {self._spec.meta.random_seed}, "
            f"{torch.get_num_threads()} thread(s), learning step "
            f"{'compiled' if self._agent.is_compiled else 'eager'}"
        )
