"""The whole RL loop: act, step, observe, update. And play, which does not learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from slm_lab.agent.agent import Agent
from slm_lab.env.vector import VectorEnv
from slm_lab.types import Metrics, on_host

Watchers = Sequence[Callable[[], None]]  # called after every step

PARALLEL = 16  # envs at once: acting costs about the same for a few rows as for one
AFTER_TRAINING = 2**62  # a frame at which every schedule, such as that of epsilon, has ended


@dataclass(slots=True)
class Clock:
    """Counters of a session. A frame is one step of one env; an update is one learning call."""

    frame: int = 0
    opt_step: int = 0
    updates: int = 0
    seconds: float = 0.0

    @property
    def frames_per_second(self) -> float:
        return self.frame / max(self.seconds, 1e-9)


@dataclass(slots=True)
class Profile:
    """Seconds of a session by what they were spent on."""

    env: float = 0.0
    act: float = 0.0
    learn: float = 0.0
    other: float = 0.0


@dataclass(slots=True)
class Loop:
    """Owns the counters; agent and env meet nowhere else."""

    agent: Agent
    env: VectorEnv
    max_frame: int
    clock: Clock = field(default_factory=Clock)
    profile: Profile = field(default_factory=Profile)
    metrics: Metrics | None = None  # of the latest update
    has_begun: bool = False
    stop_reason: str | None = None  # why a callback ended the training before `max_frame`

    @property
    def is_over(self) -> bool:
        return self.stop_reason is not None or self.clock.frame >= self.max_frame

    def run(
        self,
        checkpoint: Callable[[], None],
        every: int,
        should_stop: Callable[[], bool],
        watchers: Watchers = (),
        until: int | None = None,
        save_if_due: Callable[[float], bool] | None = None,
    ) -> None:
        """Train until `max_frame`, calling `checkpoint` each time another `every` frames are done.

        `should_stop` is asked between steps, where the state is complete. `save_if_due` gets the
        time there and returns whether it saved. A run that pauses at the frame `until` goes through
        the same steps as one that does not.
        """
        agent, env, clock, profile = self.agent, self.env, self.clock, self.profile
        num_envs, max_frame = env.num_envs, self.max_frame
        end = max_frame if until is None else min(until, max_frame)
        obs = env.obs if self.has_begun else env.reset()
        self.has_begun = True
        next_checkpoint = (clock.frame // every + 1) * every
        now = perf_counter()
        while clock.frame < end and not should_stop():
            action = agent.act(obs, frame=clock.frame)
            acted = perf_counter()
            transition = env.step(agent.env_action(action))
            stepped = perf_counter()
            agent.observe(obs, action, transition)
            obs = transition.obs
            clock.frame += num_envs
            if agent.ready:
                self.metrics = _with_earlier(self.metrics, agent.update(clock.frame))
                clock.opt_step += self.metrics.opt_steps
                clock.updates += 1
            learned = perf_counter()
            profile.act += acted - now
            profile.env += stepped - acted
            profile.learn += learned - stepped
            clock.seconds += learned - now
            now = learned
            if watchers:
                for watch in watchers:
                    watch()
                now = self._other_since(now)
            if clock.frame >= next_checkpoint or clock.frame >= max_frame:
                next_checkpoint += every
                checkpoint()
                now = self._other_since(now)
            if save_if_due is not None and save_if_due(now):
                now = self._other_since(now)

    def _other_since(self, began: float) -> float:
        """Count the time since `began`, which was neither acting, env nor learning."""
        now = perf_counter()
        self.profile.other += now - began
        self.clock.seconds += now - began
        return now

    def state_dict(self) -> dict[str, Any]:
        """Counters, and the latest metrics: rows of the curve repeat them until the next update."""
        return {
            "has_begun": self.has_begun,
            "stop_reason": self.stop_reason,
            "clock": asdict(self.clock),
            "profile": asdict(self.profile),
            "metrics": self.metrics and {**self.metrics.values},
            "obs": on_host(self.env.obs).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.has_begun = bool(state["has_begun"])
        self.stop_reason = state.get("stop_reason")
        self.clock = Clock(**state["clock"])
        self.profile = Profile(**state["profile"])
        metrics = state["metrics"]
        self.metrics = None if metrics is None else Metrics(metrics, opt_steps=0)


def _with_earlier(before: Metrics | None, metrics: Metrics) -> Metrics:
    """The metrics of an update, and those of earlier ones that it lacks: with a policy delay most
    updates do not move the policy."""
    if before is None or len(metrics.values) >= len(before.values):
        return metrics
    return replace(metrics, values={**before.values, **metrics.values})


@dataclass(frozen=True, slots=True)
class Episodes:
    """Raw returns and lengths in steps, one of each per episode."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]


def play(
    agent: Agent, env: VectorEnv, episodes: int, *, explore: bool = False, watchers: Watchers = ()
) -> Episodes:
    """Play exactly `episodes`, from a fresh reset.

    Env 0 plays episodes 0, num_envs, ...: which env plays how many is fixed before the first step,
    as counting whichever end first would favour short ones. With `explore`, actions are drawn as
    at the end of training.
    """
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    number = np.arange(env.num_envs)  # of the episode that each env plays
    running, steps = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    obs = env.reset()
    recurrent_state = agent.initial_recurrent_state(env.num_envs)  # apart from that of training
    while number.min() < episodes:
        action = agent.act(
            obs, frame=AFTER_TRAINING, explore=explore, recurrent_state=recurrent_state
        )
        transition = env.step(agent.env_action(action))
        agent.advance(recurrent_state, transition)
        obs = transition.obs
        running += transition.reward
        steps += 1
        for slot in np.flatnonzero(transition.episode_end):
            if number[slot] < episodes:
                returns[number[slot]], lengths[number[slot]] = running[slot], steps[slot]
            number[slot] += env.num_envs
            running[slot] = steps[slot] = 0
        for watch in watchers:
            watch()
    return Episodes(tuple(returns.tolist()), tuple(lengths.tolist()))


def evaluate(agent: Agent, env: VectorEnv) -> float:
    """Mean return of one episode per env, acting greedily."""
    return float(np.mean(play(agent, env, env.num_envs).returns))
