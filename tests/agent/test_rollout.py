"""On-policy memories: what is stored, where, and that it is copied."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
from slm_lab.types import Spaces, Transition

MakeTransition = Callable[..., Transition]


def rollout_memory(length: int = 3, num_envs: int = 2, obs_dtype: str = "float32") -> RolloutMemory:
    return RolloutMemory(length, num_envs, Spaces((1,), obs_dtype, "discrete", (2,)))


def column(*values: float) -> np.ndarray:
    """One observation of one number per env."""
    return np.array(values, np.float32)[:, None]


def test_a_rollout_is_time_major_with_one_observation_row_more(transition: MakeTransition) -> None:
    memory = rollout_memory()
    for t in range(3):
        assert not memory.ready
        now, after = [[10.0 + t], [20.0 + t]], [[11.0 + t], [21.0 + t]]
        memory.add(np.array(now), np.array([t, -t]), transition(after, after, [t, 2 * t]))
    assert memory.ready
    rollout = memory.take()
    assert rollout.obs[..., 0].tolist() == [[10, 20], [11, 21], [12, 22], [13, 23]]
    assert rollout.action.tolist() == [[0, 0], [1, -1], [2, -2]]
    assert rollout.reward.tolist() == [[0, 0], [1, 2], [2, 4]]
    assert not rollout.terminated.any()
    assert not rollout.truncated.any()
    assert rollout.final_index.tolist() == []
    assert rollout.final_obs.shape == (0, 1)


def test_the_final_observation_is_kept_for_truncated_steps_only(transition: MakeTransition) -> None:
    memory = rollout_memory()
    none = np.zeros(2, np.int64)
    # Step 0: env 0 terminates. Step 1: env 1 is truncated at 91. Step 2: env 0 is truncated at 92.
    memory.add(
        column(0, 0), none, transition([[0], [1]], [[90], [1]], [1, 1], terminated=[True, False])
    )
    memory.add(
        column(0, 1), none, transition([[1], [0]], [[1], [91]], [1, 1], truncated=[False, True])
    )
    memory.add(
        column(1, 0), none, transition([[0], [1]], [[92], [1]], [1, 1], truncated=[True, False])
    )
    rollout = memory.take()
    assert rollout.terminated.tolist() == [[True, False], [False, False], [False, False]]
    assert rollout.truncated.tolist() == [[False, False], [False, True], [True, False]]
    assert rollout.final_index.tolist() == [3, 4]  # t * B + b
    assert rollout.final_obs.tolist() == [[91.0], [92.0]]
    # The last row is what to act on next: after the truncation, the next episode's start.
    assert rollout.obs[3, :, 0].tolist() == [0.0, 1.0]


def test_what_the_env_hands_out_is_copied(transition: MakeTransition) -> None:
    memory = rollout_memory(length=1, num_envs=1)
    obs, action = column(1.0), np.array([1])
    step = transition([[2.0]], [[3.0]], [4.0], truncated=[True])
    memory.add(obs, action, step)
    for array in (obs, action, step.obs, step.next_obs, step.reward, step.truncated):
        array[:] = 0  # the env reuses its buffers
    rollout = memory.take()
    assert rollout.obs[..., 0].tolist() == [[1.0], [2.0]]
    assert rollout.final_obs.tolist() == [[3.0]]
    assert rollout.action.tolist() == [[1]]
    assert rollout.reward.tolist() == [[4.0]]
    assert rollout.truncated.tolist() == [[True]]


def test_after_take_a_new_rollout_begins(transition: MakeTransition) -> None:
    memory = rollout_memory(length=1, num_envs=1)
    cut = transition([[0.0]], [[9.0]], [1.0], truncated=[True])
    memory.add(column(1.0), np.array([0]), cut)
    memory.take()
    assert not memory.ready
    memory.add(column(5.0), np.array([1]), transition([[6.0]], [[6.0]], [7.0]))
    rollout = memory.take()
    assert rollout.obs[..., 0].tolist() == [[5.0], [6.0]]
    assert rollout.reward.tolist() == [[7.0]]
    assert not rollout.truncated.any()
    assert len(rollout.final_index) == len(rollout.final_obs) == 0


def test_episodes_that_were_lost_are_truncated_where_they_were(transition: MakeTransition) -> None:
    memory = rollout_memory(length=2, num_envs=3)
    ends = transition(
        [[1], [0], [0]], [[1], [9], [8]], [1, 1, 1], [False, True, False], [False, False, True]
    )
    memory.add(column(0, 0, 0), np.zeros(3, np.int64), ends)
    memory.truncate_episodes(column(70, 71, 72))
    goes_on = transition([[6], [6], [6]], [[6], [6], [6]], [2, 2, 2])
    memory.add(column(5, 5, 5), np.zeros(3, np.int64), goes_on)
    rollout = memory.take()
    # Env 0 was running. Those of the others had ended already, and stay as they ended.
    assert rollout.terminated.tolist() == [[False, True, False], [False] * 3]
    assert rollout.truncated.tolist() == [[True, False, True], [False] * 3]
    finals = dict(
        zip(rollout.final_index.tolist(), rollout.final_obs.flatten().tolist(), strict=True)
    )
    assert finals == {2: 8.0, 0: 70.0}


def test_a_rollout_without_a_step_has_nothing_to_lose(transition: MakeTransition) -> None:
    memory = rollout_memory(length=1, num_envs=1)
    memory.truncate_episodes(column(70))
    memory.add(column(0), np.array([0]), transition([[1]], [[1]], [1]))
    assert not memory.take().truncated.any()


def test_images_stay_bytes(transition: MakeTransition) -> None:
    memory = rollout_memory(length=1, num_envs=1, obs_dtype="uint8")
    step = transition([[255]], [[254]], [0.0], truncated=[True])
    memory.add(np.array([[200]], np.uint8), np.array([0]), step)
    rollout = memory.take()
    assert rollout.obs.dtype == rollout.final_obs.dtype == torch.uint8
    assert rollout.obs[..., 0].tolist() == [[200], [255]]


class Episodes:
    """Feeds an EpisodeMemory, one call per env step."""

    def __init__(self, memory: EpisodeMemory, transition: MakeTransition) -> None:
        self.memory = memory
        self._transition = transition

    def add(
        self, obs: list[float], reward: list[float], ended: str = "", final: float = 0.0
    ) -> None:
        """`ended` has one letter per env: t terminated, c cut by time, . running."""
        flags = ended or "." * len(obs)
        step = self._transition(
            [[-1.0]] * len(obs),
            [[final]] * len(obs),
            reward,
            [flag == "t" for flag in flags],
            [flag == "c" for flag in flags],
        )
        self.memory.add(column(*obs), np.arange(len(obs)), step)


def test_only_whole_episodes_are_taken_and_running_ones_stay(transition: MakeTransition) -> None:
    memory = EpisodeMemory(2, num_envs=2, obs_dtype="float32")
    episodes = Episodes(memory, transition)
    episodes.add([1, 10], [1, 1])
    episodes.add([2, 11], [2, 2], ended=".t", final=99)  # env 1 finishes first
    episodes.add([3, 20], [3, 3])
    before = memory.ready
    episodes.add([4, 21], [4, 4], ended="c.", final=5)
    assert (before, memory.ready) == (False, True)
    rollout = memory.take()
    # Finished episodes end to end in one lane; env 1's second episode (20, 21) still runs.
    assert rollout.obs[..., 0].tolist() == [[10], [11], [1], [2], [3], [4], [5]]
    assert rollout.reward.tolist() == [[1], [2], [1], [2], [3], [4]]
    assert rollout.action.tolist() == [[1], [1], [0], [0], [0], [0]]
    assert rollout.terminated[:, 0].tolist() == [False, True, False, False, False, False]
    assert rollout.truncated[:, 0].tolist() == [False] * 5 + [True]
    assert rollout.final_index.tolist() == [5]
    assert rollout.final_obs.tolist() == [[5.0]]
    assert not memory.ready

    episodes.add([30, 22], [0, 5], ended="tt", final=23)
    assert memory.take().obs[..., 0].tolist() == [[30], [20], [21], [22], [23]]


def test_episode_memory_copies_too(transition: MakeTransition) -> None:
    memory = EpisodeMemory(1, num_envs=1, obs_dtype="float32")
    obs, action = column(1.0), np.array([1])
    step = transition([[0.0]], [[2.0]], [3.0], truncated=[True])
    memory.add(obs, action, step)
    for array in (obs, action, step.next_obs, step.reward):
        array[:] = 0
    rollout = memory.take()
    assert rollout.obs[..., 0].tolist() == [[1.0], [2.0]]
    assert rollout.final_obs.tolist() == [[2.0]]
    assert (rollout.action.item(), rollout.reward.item()) == (1, 3.0)


@pytest.mark.parametrize(
    ("keep_above", "kept"),
    [
        (1.0, [1.0, 2.0, 3.0, 4.0]),  # everything
        (0.5, [3.0, 4.0]),  # the median is 2.5
        (0.75, [4.0]),  # the third quartile is 3.25
        (0.0, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_cross_entropy_learns_from_the_better_episodes(
    transition: MakeTransition, keep_above: float, kept: list[float]
) -> None:
    memory = EpisodeMemory(4, num_envs=1, obs_dtype="float32", keep_above=keep_above)
    episodes = Episodes(memory, transition)
    for total in (1.0, 2.0, 3.0, 4.0):
        episodes.add([total], [total], ended="t")
    assert memory.take().reward[:, 0].tolist() == kept


def test_the_total_of_an_episode_decides_not_its_last_reward(transition: MakeTransition) -> None:
    memory = EpisodeMemory(2, num_envs=1, obs_dtype="float32", keep_above=0.5)
    episodes = Episodes(memory, transition)
    episodes.add([1], [10])
    episodes.add([2], [0], ended="t")
    episodes.add([3], [5], ended="t")
    assert memory.take().obs[:2, 0, 0].tolist() == [1.0, 2.0]


def test_a_lost_episode_is_whole_and_truncated(transition: MakeTransition) -> None:
    memory = EpisodeMemory(1, num_envs=2, obs_dtype="float32")
    episodes = Episodes(memory, transition)
    episodes.add([1, 10], [1, 1], ended=".t")
    memory.take()
    memory.truncate_episodes(column(70, 71))
    rollout = memory.take()  # of env 1 there was nothing to lose
    assert rollout.obs.flatten().tolist() == [1.0, 70.0]
    assert rollout.truncated.flatten().tolist() == [True]
    assert rollout.terminated.flatten().tolist() == [False]
    assert rollout.final_obs.flatten().tolist() == [70.0]
