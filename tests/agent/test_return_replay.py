"""Past steps and the return that really followed them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from slm_lab.agent.memory.return_replay import ReturnReplay
from slm_lab.agent.memory.sampler import PrioritizedSampler, Sampler, UniformSampler
from slm_lab.types import Spaces


class EveryRow(UniformSampler):
    """Draws each filled row once, in order."""

    def __init__(self) -> None:
        super().__init__(seed=0)

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        return torch.arange(size)


def raw(reward: Tensor) -> Tensor:
    return reward


def make_replay(
    capacity: int = 20, num_envs: int = 1, sampler: Sampler | None = None, **keys: Any
) -> ReturnReplay:
    options: dict[str, Any] = {"batch_size": 4, "gamma": 0.5, "transform_reward": raw} | keys
    spaces = Spaces((1,), "float32", "discrete", (2,))
    return ReturnReplay(capacity, num_envs, spaces, sampler or EveryRow(), **options)


def add(replay: ReturnReplay, t: int, rewards: list[float], ended: list[bool]) -> None:
    """One step of every env; env e sees 10 t + e."""
    obs = np.array([[10.0 * t + env] for env in range(len(rewards))], np.float32)
    action = np.full(len(rewards), t)
    replay.add(obs, action, np.array(rewards, np.float32), np.array(ended))


def episode(replay: ReturnReplay, rewards: list[float]) -> None:
    for t, reward in enumerate(rewards):
        add(replay, t, [reward], [t == len(rewards) - 1])


def test_a_row_keeps_the_discounted_return_of_its_own_episode() -> None:
    replay = make_replay()
    episode(replay, [1.0, 2.0, 4.0])
    episode(replay, [8.0])
    batch = replay.sample(1, frame=0)
    # 1 + (2 + 4/2)/2 = 3, 2 + 4/2 = 4, 4; the next episode's 8 belongs to nobody before it
    assert batch.return_.tolist() == [3.0, 4.0, 4.0, 8.0]
    assert batch.obs.flatten().tolist() == [0.0, 10.0, 20.0, 0.0]
    assert batch.action.tolist() == [0, 1, 2, 0]
    assert batch.weight.tolist() == [1.0] * 4


def test_all_returns_are_on_todays_scale_of_rewards() -> None:
    scale = 1.0
    replay = make_replay(transform_reward=lambda reward: reward * scale, rescales=True)
    episode(replay, [1.0, 2.0, 4.0])
    scale = 0.5
    episode(replay, [8.0])
    assert replay.sample(1, frame=0).return_.tolist() == [1.5, 2.0, 2.0, 4.0]
    scale = 2.0
    assert replay.sample(1, frame=0).return_.tolist() == [6.0, 8.0, 8.0, 16.0]


def test_returns_computed_anew_are_those_of_before_also_across_the_seam() -> None:
    kept, anew = make_replay(4), make_replay(4, rescales=True)
    for replay in (kept, anew):
        episode(replay, [1.0, 2.0, 4.0])
        episode(replay, [8.0, 16.0])  # its last row is in slot 0, where the first episode began
        assert replay.sample(1, frame=0).return_.tolist() == [16.0, 4.0, 4.0, 16.0]


def test_a_running_episode_is_not_there_yet() -> None:
    replay = make_replay()
    add(replay, 0, [1.0], [False])
    add(replay, 1, [1.0], [False])
    assert replay.size == 0
    add(replay, 2, [4.0], [True])
    assert replay.sample(1, 0).return_.tolist() == [2.5, 3.0, 4.0]


def test_episodes_of_envs_side_by_side_do_not_mix() -> None:
    replay = make_replay(num_envs=2)
    add(replay, 0, [1.0, 10.0], [False, False])
    add(replay, 1, [2.0, 20.0], [False, True])
    add(replay, 2, [4.0, 40.0], [True, False])
    batch = replay.sample(1, 0)
    assert batch.obs.flatten().tolist() == [1.0, 11.0, 0.0, 10.0, 20.0]
    assert batch.return_.tolist() == [20.0, 20.0, 3.0, 4.0, 4.0]


@given(
    st.integers(1, 12), st.lists(st.lists(st.integers(-4, 4), min_size=1, max_size=9), max_size=6)
)
def test_the_ring_keeps_the_latest_rows_of_any_episodes(
    capacity: int, episodes: list[list[int]]
) -> None:
    replay = make_replay(capacity)
    truth: list[float] = []
    for rewards in episodes:
        episode(replay, [float(r) for r in rewards])
        truth += [sum(r * 0.5**k for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
    assert replay.size == min(capacity, len(truth))
    if truth:
        assert sorted(replay.sample(1, 0).return_.tolist()) == sorted(truth[-capacity:])


def test_rows_are_copies_of_the_envs_buffers() -> None:
    replay = make_replay()
    obs, action = np.array([[1.0]], np.float32), np.array([1])
    replay.add(obs, action, np.ones(1, np.float32), np.array([False]))
    obs.fill(77)
    action.fill(77)
    replay.add(obs, action, np.ones(1, np.float32), np.array([True]))
    assert replay.sample(1, 0).obs.flatten().tolist() == [1.0, 77.0]
    assert replay.sample(1, 0).action.tolist() == [1, 77]


def test_priorities_follow_what_was_learned() -> None:
    sampler = PrioritizedSampler(8, alpha=1.0, epsilon=0.0, beta=1.0, anneal_frames=100, seed=0)
    replay = make_replay(8, sampler=sampler, batch_size=100)
    episode(replay, [1.0, 1.0])
    replay.update_priorities(torch.tensor([0, 1]), torch.tensor([0.0, 2.0]))
    batch = replay.sample(1, 0)
    assert set(batch.index.tolist()) == {1}
    episode(replay, [1.0])  # enters with the highest priority, 2
    assert sampler.state_dict()["priority"][:3].tolist() == [0.0, 2.0, 2.0]


def test_combined_replay_holds_the_newest_rows() -> None:
    replay = make_replay(5, sampler=UniformSampler(0), use_cer=True)
    episode(replay, [1.0] * 4)
    assert replay.sample(1, 0).index.tolist() == [3, 2, 1, 0]
    episode(replay, [1.0] * 2)  # rows 4 and 0
    assert replay.sample(2, 0).index[-2:].tolist() == [0, 4]
    assert len(replay.sample(2, 0).index) == 8


def test_combined_replay_holds_the_rows_of_all_episodes_since_the_last_sample() -> None:
    replay = make_replay(20, sampler=UniformSampler(0), use_cer=True)
    for _ in range(3):
        episode(replay, [1.0])
    assert replay.sample(1, 0).index[-3:].tolist() == [2, 1, 0]


def test_an_episode_that_was_lost_counts_as_far_as_it_came() -> None:
    replay = make_replay()
    add(replay, 0, [1.0], [False])
    add(replay, 1, [2.0], [False])
    replay.truncate_episodes()
    episode(replay, [8.0])
    assert replay.sample(1, 0).return_.tolist() == [2.0, 2.0, 8.0]
