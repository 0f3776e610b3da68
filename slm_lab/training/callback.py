"""Callbacks: code that is called while a session trains, and can end it or add to its curve.

    class Goal(Callback):
        def on_row(self, session, row):
            if row["total_reward_ma"] > 400:
                session.stop("good enough")

`meta.callbacks: [my_module:Goal]` in a spec calls it. Keys of its own are a spec class:

    class GoalSpec(CallbackSpec):
        score: Number = Key(400.0, "Score to reach.")

    class Goal(Callback):
        spec_class = GoalSpec     # and `self.spec.score` in its methods
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.agent.saving import save_models, snapshot
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.error import LabError
from slm_lab.runs.find import CHECKPOINT_NAME
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.block import Findings, build_block, shown
from slm_lab.spec.callback import CALLBACKS, CallbackSpec, load_callbacks
from slm_lab.spec.main_module import place_of
from slm_lab.training.loop import PARALLEL, Episodes, Loop, play
from slm_lab.training.recorder import Recorder
from slm_lab.training.seeding import evaluation_seed
from slm_lab.types import Metrics


class CallbackError(LabError, RuntimeError):
    """A callback that did what it may not; the message names it."""

    exit_code = 1


class Callback:
    """Base of all callbacks. One is made for each session; every method may be left out."""

    spec_class: ClassVar[type[CallbackSpec]] = CallbackSpec
    spec: Any

    def __init__(self, spec: CallbackSpec | None = None, **keys: Any) -> None:
        """`spec` is of the `spec_class`; in Python its keys may be given instead."""
        self.spec = self._build_spec(keys) if spec is None else spec

    @classmethod
    def _build_spec(cls, keys: Mapping[str, Any]) -> CallbackSpec:
        findings, named = Findings(), {"name": _place(cls), **keys}
        built = build_block(cls.spec_class, named, cls.__name__, findings, cls.__name__)
        if built is None or findings.problems:
            raise SpecError(findings.problems, cls.__name__)
        return built

    def on_training_start(self, session: RunningSession) -> None:
        """Called before the first step, and again after a resume."""

    def on_step(self, session: RunningSession) -> None:
        """Called after every step of all envs; costs time only where a callback has it."""

    def on_episode_end(self, session: RunningSession, episodes: Episodes) -> None:
        """Called with the episodes that the latest step ended, the last 100 of them at most."""

    def on_update(self, session: RunningSession, metrics: Metrics) -> None:
        """Called after each update, with its metrics."""

    def on_row(
        self, session: RunningSession, row: Mapping[str, float]
    ) -> Mapping[str, float] | None:
        """Called with each new row of the curve; may return further columns of it."""

    def on_evaluation(self, session: RunningSession, score: float) -> None:
        """Called with the mean return of fresh episodes, of whichever evaluation."""

    def on_checkpoint(self, session: RunningSession) -> None:
        """Called after the session was saved."""

    def on_end(self, session: RunningSession, reason: str) -> None:
        """Called when the session ends: `finished`, `interrupted`, or why it stopped or failed."""

    def state_dict(self) -> dict[str, Any]:
        """State to be saved with the session: numbers, text, lists, dicts, arrays, tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


@dataclass(frozen=True, slots=True)
class RunningSession:
    """What a callback sees of the session that it is called by."""

    spec: Spec
    layout: RunLayout
    trial: int
    index: int
    agent: Agent
    env: VectorEnv
    _loop: Loop
    _recorder: Recorder
    _evaluated: Callable[[float], None]

    @property
    def frame(self) -> int:
        return self._loop.clock.frame

    @property
    def max_frame(self) -> int:
        return self._loop.max_frame

    @property
    def updates(self) -> int:
        return self._loop.clock.updates

    @property
    def metrics(self) -> Metrics | None:
        """Metrics of the latest update; None before the first."""
        return self._loop.metrics

    @property
    def last_row(self) -> Mapping[str, float]:
        """The latest row of the curve as written; empty before the first."""
        return self._recorder.last_row

    @property
    def name(self) -> str:
        """Name that the session's files begin with."""
        return self.layout.session_name(self.trial, self.index)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.layout.predir

    def stop(self, reason: str) -> None:
        """End the session after this step. It then counts as finished: a resume leaves it alone.
        The first reason is kept."""
        if self._loop.stop_reason is None:
            self._loop.stop_reason = " ".join(reason.split())[:200] or "no reason given"

    def save_agent(self, checkpoint: str) -> None:
        """Save the agent as it is now, for `--checkpoint NAME` of enjoy, eval and export."""
        if not re.fullmatch(CHECKPOINT_NAME, checkpoint) or checkpoint == "best":
            expected = "expected 1 to 60 letters, digits, - and . other than `best`"
            raise CallbackError(f"save_agent: found {shown(checkpoint)}; {expected}")
        states = snapshot(self.agent)
        try:
            save_models(states, self.layout, self.trial, self.index, checkpoint=checkpoint)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            logger.warning(f"{self.name}: agent `{checkpoint}` not written ({error})")

    def play(
        self,
        episodes: int,
        *,
        render: bool = False,
        watch: Callable[[VectorEnv], None] | None = None,
    ) -> Episodes:
        """Play fresh episodes greedily, in envs of their own; training notices nothing.

        The episodes follow from the seed and the frame, so that a resume plays the same ones.
        `watch` is called after every step, and sees one env alone.
        """
        num_envs = 1 if watch is not None else min(PARALLEL, episodes)
        spec = self.spec.env.model_copy(update={"num_envs": num_envs})
        seed = evaluation_seed(self.spec.meta.random_seed or 0, self.trial, self.index, self.frame)
        env = make_env(spec, seed=seed, render=render)
        watchers = [] if watch is None else [lambda: watch(env)]
        try:
            return play(self.agent, env, episodes, watchers=watchers)
        finally:
            env.close()

    def report_evaluation(self, score: float) -> None:
        """Tell every callback of the mean return of fresh episodes."""
        self._evaluated(score)


HOOKS_OF_STEPS = ("on_step", "on_episode_end", "on_update")


class Callbacks:
    """The callbacks of one session, called in the order of the spec. Falsy if there are none."""

    def __init__(self, callbacks: Sequence[Callback], session: RunningSession) -> None:
        self._all = tuple(callbacks)
        self._session = replace(session, _evaluated=self.evaluated)
        self._of_step, self._of_episode, self._of_update = (
            [c for c in self._all if getattr(type(c), hook) is not getattr(Callback, hook)]
            for hook in HOOKS_OF_STEPS
        )
        self._episodes = self._updates = 0

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def watches_steps(self) -> bool:
        return bool(self._of_step or self._of_episode or self._of_update)

    def start(self) -> None:
        self._episodes, self._updates = self._session.env.episodes.count, self._session.updates
        for callback in self._all:
            callback.on_training_start(self._session)

    def after_step(self) -> None:
        session = self._session
        if self._of_update and session.updates != self._updates:
            self._updates = session.updates
            assert session.metrics is not None
            for callback in self._of_update:
                callback.on_update(session, session.metrics)
        if self._of_episode and (ended := session.env.episodes.count - self._episodes):
            self._episodes += ended
            stats = session.env.episodes
            episodes = Episodes(tuple(stats.returns)[-ended:], tuple(stats.lengths)[-ended:])
            for callback in self._of_episode:
                callback.on_episode_end(session, episodes)
        for callback in self._of_step:
            callback.on_step(session)

    def columns(self, row: Mapping[str, float]) -> dict[str, float]:
        """Columns that the callbacks add to a row; each sees those before it."""
        whole, added = dict(row), {}
        for callback in self._all:
            for name, value in (callback.on_row(self._session, dict(whole)) or {}).items():
                _check_column(callback, name, value, whole)
                added[name] = whole[name] = float(value)
        return added

    def evaluated(self, score: float) -> None:
        for callback in self._all:
            callback.on_evaluation(self._session, score)

    def saved(self) -> None:
        for callback in self._all:
            callback.on_checkpoint(self._session)

    def end(self, reason: str) -> None:
        """Tell all how the session ended; its files are complete, and an error costs nothing."""
        for callback in self._all:
            with logger.catch(message=f"{_name(callback)}.on_end failed"):
                callback.on_end(self._session, reason)

    def state_dict(self) -> list[dict[str, Any]]:
        return [callback.state_dict() for callback in self._all]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        for callback, state in zip(self._all, states, strict=True):
            callback.load_state_dict(state)


def make_callbacks(session: RunningSession) -> Callbacks:
    """Make the callbacks that a session's spec names."""
    made: list[object] = [cls(spec) for cls, spec in load_callbacks(session.spec)]
    callbacks = [callback for callback in made if isinstance(callback, Callback)]
    if len(callbacks) < len(made):
        others = ", ".join(_place(type(c)) for c in made if not isinstance(c, Callback))
        raise CallbackError(f"meta.callbacks: {others} is no subclass of Callback")
    return Callbacks(callbacks, session)


def with_callbacks(spec: Spec, callbacks: Sequence[Callback | type[Callback]]) -> Spec:
    """Add callbacks given in Python to a spec, which names them: so they are saved with the run,
    and found by processes of other sessions and by a resume."""
    given = spec.to_dict()["meta"].get("callbacks") or []
    return spec.with_values({"meta.callbacks": [*given, *map(_entry, callbacks)]})


def _entry(callback: Callback | type[Callback]) -> dict[str, Any]:
    """The entry of `meta.callbacks` that makes an equal callback."""
    cls: type = callback if isinstance(callback, type) else type(callback)
    if not issubclass(cls, Callback):
        expected = "expected subclasses of Callback, or instances of them"
        raise SpecError([Problem("callbacks", f"found {shown(callback)}; {expected}")], "run")
    place = _place(cls)
    shipped = (record.name for record in CALLBACKS.values() if record.implementation == place)
    name = next(shipped, "")
    name = name or place_of(cls, "callbacks")
    if isinstance(callback, type):
        return {"name": name}
    keys = callback.spec.model_dump(mode="json", exclude_defaults=True)
    return {**keys, "name": name}


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _name(callback: Callback) -> str:
    return type(callback).__qualname__


def _check_column(
    callback: Callback, name: object, value: object, row: Mapping[str, float]
) -> None:
    where = f"{_name(callback)}.on_row: the column `{name}`"
    if name in row:
        raise CallbackError(f"{where} is there already. Return it under another name.")
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        raise CallbackError(f"{where} cannot head a table. Expected letters, digits and _.")
    try:
        math.isfinite(value)  # type: ignore[arg-type]  # this is what it tells
    except TypeError:
        raise CallbackError(f"{where} is {value!r:.40}. Expected a number.") from None
