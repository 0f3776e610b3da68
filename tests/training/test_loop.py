"""The RL loop: what it counts, when it checkpoints and stops, and greedy evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slm_lab.env.vector import EpisodeStats
from slm_lab.training.loop import Clock, Loop, evaluate
from slm_lab.training.seeding import draw_seed, session_seeds
from slm_lab.types import Metrics, Spaces, Transition
from tests.lives import LosesLives


class CountingEnv:
    """Observation = steps taken so far; env b pays b + 1 per step and ends after `lengths[b]`."""

    backend = "test"
    restorable = True

    def __init__(self, lengths: tuple[int, ...] = (3, 3)) -> None:
        self.num_envs = len(lengths)
        self.spaces = Spaces((1,), "float32", "discrete", (2,))
        self.episodes = EpisodeStats(self.num_envs)
        self.resets = 0
        self.actions: list[np.ndarray] = []
        self._lengths = np.array(lengths)
        self._elapsed = np.zeros(self.num_envs, int)

    @property
    def obs(self) -> np.ndarray:
        return self._elapsed[:, None].astype(np.float32)

    def reset(self) -> np.ndarray:
        self.resets += 1
        self._elapsed[:] = 0
        return self.obs

    def step(self, action: np.ndarray) -> Transition:
        self.actions.append(action)
        self._elapsed += 1
        next_obs = self.obs
        ended = self._elapsed >= self._lengths
        self._elapsed[ended] = 0
        reward = np.arange(1, self.num_envs + 1, dtype=np.float32)
        return Transition(self.obs, next_obs, reward, ended, np.zeros_like(ended), ended)


class RecordingAgent:
    """Acts with the observation it sees, doubles it for the env, learns every third step."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[float], list[float], list[float]]] = []
        self.update_frames: list[int] = []
        self.explored: list[bool] = []
        self.act_frames: list[int] = []
        self._stored = 0

    def initial_recurrent_state(self, num_envs: int) -> None:
        return None

    def advance(self, recurrent_state: None, transition: Transition) -> None:
        pass

    def act(
        self, obs: np.ndarray, *, frame: int = 0, explore: bool = True, recurrent_state: None = None
    ) -> np.ndarray:
        self.explored.append(explore)
        self.act_frames.append(frame)
        return obs[:, 0]

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return 2 * action

    def observe(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self.seen.append((obs[:, 0].tolist(), action.tolist(), transition.next_obs[:, 0].tolist()))
        self._stored += 1

    @property
    def ready(self) -> bool:
        return self._stored == 3

    def update(self, frame: int) -> Metrics:
        self._stored = 0
        self.update_frames.append(frame)
        return Metrics({"loss": float(frame)}, opt_steps=5)


@pytest.fixture
def parts() -> tuple[Any, Any]:
    return RecordingAgent(), CountingEnv()


def never() -> bool:
    return False


def run(loop: Loop, every: int = 1000, should_stop: Callable[[], bool] = never) -> list[int]:
    """The frames at which the loop checkpointed."""
    frames: list[int] = []
    loop.run(lambda: frames.append(loop.clock.frame), every, should_stop)
    return frames


def test_a_frame_is_one_step_of_one_env(parts: tuple[Any, Any]) -> None:
    agent, env = parts
    loop = Loop(agent, env, max_frame=12)
    run(loop)
    assert loop.clock.frame == 12
    assert len(env.actions) == 6


def test_the_agent_observes_what_it_acted_on_and_its_true_successor(
    parts: tuple[Any, Any],
) -> None:
    agent, env = parts
    run(Loop(agent, env, max_frame=8))
    # The third step ends the episode: its successor is 3, yet the next action is taken at 0.
    assert agent.seen == [
        ([0, 0], [0, 0], [1, 1]),
        ([1, 1], [1, 1], [2, 2]),
        ([2, 2], [2, 2], [3, 3]),
        ([0, 0], [0, 0], [1, 1]),
    ]


def test_the_env_executes_the_env_action_while_the_sample_is_stored(
    parts: tuple[Any, Any],
) -> None:
    agent, env = parts
    run(Loop(agent, env, max_frame=4))
    assert [action.tolist() for action in env.actions] == [[0, 0], [2, 2]]
    assert [action for _, action, _ in agent.seen] == [[0, 0], [1, 1]]
    assert all(agent.explored)
    assert agent.act_frames == [0, 2]  # exploration may depend on the frame


def test_updates_and_gradient_steps_are_counted_and_the_latest_metrics_kept(
    parts: tuple[Any, Any],
) -> None:
    agent, env = parts
    loop = Loop(agent, env, max_frame=14)
    run(loop)
    assert agent.update_frames == [6, 12]
    assert (loop.clock.updates, loop.clock.opt_step) == (2, 10)
    assert loop.metrics is not None
    assert loop.metrics.values == {"loss": 12.0}


@pytest.mark.parametrize(
    ("every", "frames"),
    [
        (4, [4, 8, 12]),
        (5, [6, 10, 12]),  # the first frame at or after each multiple
        (100, [12]),  # the end is always a checkpoint
        (12, [12]),  # and only once
        (1, [2, 4, 6, 8, 10, 12]),
    ],
)
def test_checkpoints_come_every_so_many_frames_and_at_the_end(
    parts: tuple[Any, Any], every: int, frames: list[int]
) -> None:
    assert run(Loop(*parts, max_frame=12), every) == frames


def test_a_stop_is_honoured_between_steps(parts: tuple[Any, Any]) -> None:
    loop = Loop(*parts, max_frame=1000)
    run(loop, should_stop=lambda: loop.clock.frame >= 6)
    assert loop.clock.frame == 6


def test_a_resumed_loop_continues_where_the_env_is(parts: tuple[Any, Any]) -> None:
    agent, env = parts
    env.reset()
    env.step(np.zeros(2))
    clock = Clock(frame=6, opt_step=5, updates=1)
    loop = Loop(agent, env, max_frame=8, clock=clock, has_begun=True)
    assert run(loop, every=4) == [8]
    assert env.resets == 1
    assert agent.seen[0][0] == [1, 1]
    assert loop.clock.frame == 8


def test_a_finished_loop_does_nothing(parts: tuple[Any, Any]) -> None:
    agent, env = parts
    assert run(Loop(agent, env, max_frame=8, clock=Clock(frame=8))) == []
    assert agent.seen == []


def test_the_seconds_of_a_session_are_all_accounted_for(parts: tuple[Any, Any]) -> None:
    loop = Loop(*parts, max_frame=200)
    run(loop, every=20)
    parts_of_it = loop.profile
    total = parts_of_it.env + parts_of_it.act + parts_of_it.learn + parts_of_it.other
    assert total == pytest.approx(loop.clock.seconds)
    assert loop.clock.seconds > 0


def test_evaluation_counts_one_greedy_episode_per_env() -> None:
    agent: Any = RecordingAgent()
    env: Any = CountingEnv(lengths=(2, 5))
    # Env 0 earns 1 for 2 steps and its second episode does not count; env 1 earns 2 for 5 steps.
    assert evaluate(agent, env) == pytest.approx((2 + 10) / 2)
    assert agent.explored == [False] * 5
    assert agent.seen == []


def test_evaluation_plays_whole_games_through_lost_lives() -> None:
    agent: Any = RecordingAgent()
    env: Any = LosesLives(CountingEnv(lengths=(2, 5)), steps=2)  # type: ignore[arg-type]
    # Env 1 loses a life at steps 2 and 4, and its game of 5 steps, worth 2 each, goes on.
    assert evaluate(agent, env) == pytest.approx((2 + 10) / 2)


def test_session_seeds_depend_on_all_three_numbers_and_on_nothing_else() -> None:
    assert session_seeds(1, 2, 3) == session_seeds(1, 2, 3)
    seeds = [session_seeds(*numbers) for numbers in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))]
    streams = [stream for s in seeds for stream in (s.env, s.eval_env, s.agent)]
    assert len(set(streams)) == len(streams)


def test_a_drawn_seed_is_easy_to_type() -> None:
    assert all(0 <= draw_seed() < 2**31 for _ in range(100))
