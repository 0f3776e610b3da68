"""The replay: what it keeps, what a drawn row says about its future, and what it costs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.memory.make import check_fits, replay_bytes
from slm_lab.agent.memory.replay import Replay
from slm_lab.agent.memory.sampler import PrioritizedSampler, Sampler, UniformSampler
from slm_lab.spec import Spec, SpecError
from slm_lab.types import ReplayBatch, Spaces, Transition, on_host

MakeTransition = Callable[..., Transition]


class EveryRow(UniformSampler):
    """Draws each filled row once, in order, so that a test sees the whole replay."""

    def __init__(self) -> None:
        super().__init__(seed=0)

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        return torch.arange(size)


def make_replay(
    capacity: int, num_envs: int = 1, sampler: Sampler | None = None, **keys: Any
) -> Replay:
    options: dict[str, Any] = {"batch_size": 4, "gamma": 0.5} | keys
    spaces = Spaces((1,), "float32", "discrete", (2,))
    return Replay(capacity, num_envs, spaces, sampler or EveryRow(), **options)


def whole(replay: Replay) -> ReplayBatch:
    return replay.sample(1, frame=0)


def fill(
    replay: Replay,
    rewards: list[float],
    terminated: int | None = None,
    truncated: int | None = None,
) -> None:
    """One env with observations 0, 1, 2, ...; the given step ends, on observation 99."""
    for t, reward in enumerate(rewards):
        ends = t in (terminated, truncated)
        transition = Transition(
            obs=np.array([[t + 1]], np.float32),
            next_obs=np.array([[99 if ends else t + 1]], np.float32),
            reward=np.array([reward], np.float32),
            terminated=np.array([t == terminated]),
            truncated=np.array([t == truncated]),
            episode_end=np.array([ends]),
        )
        replay.add(np.array([[t]], np.float32), np.array([t]), transition)


def test_a_drawn_row_is_the_transition_that_was_added() -> None:
    replay = make_replay(8)
    fill(replay, [1.0, 2.0, 3.0])
    batch = whole(replay)
    assert replay.size == 3
    assert batch.obs.tolist() == [[0.0], [1.0], [2.0]]
    assert batch.action.tolist() == [0, 1, 2]
    assert batch.reward.tolist() == [1.0, 2.0, 3.0]
    assert batch.next_obs.tolist() == [[1.0], [2.0], [3.0]]
    assert batch.discount.tolist() == [0.5] * 3
    assert batch.weight.tolist() == [1.0] * 3
    assert batch.index.tolist() == [0, 1, 2]


def test_a_full_ring_forgets_its_oldest_rows() -> None:
    replay = make_replay(3)
    fill(replay, [0.0, 1.0, 2.0, 3.0, 4.0])
    assert replay.size == 3
    batch = whole(replay)
    # Slots hold steps 3, 4, 2: the seam lies between 4 and 2, and 4 still knows its successor 5.
    assert batch.obs.flatten().tolist() == [3.0, 4.0, 2.0]
    assert batch.next_obs.flatten().tolist() == [4.0, 5.0, 3.0]


def test_a_termination_has_no_future_and_a_truncation_keeps_its_own() -> None:
    terminated, truncated = make_replay(8), make_replay(8)
    fill(terminated, [1.0] * 3, terminated=1)
    fill(truncated, [1.0] * 3, truncated=1)
    assert whole(terminated).discount.tolist() == [0.5, 0.0, 0.5]
    assert whole(truncated).discount.tolist() == [0.5, 0.5, 0.5]
    # The final observation, not the first one of the next episode.
    assert whole(truncated).next_obs.flatten().tolist() == [1.0, 99.0, 3.0]


def test_a_three_step_return_sums_and_discounts() -> None:
    replay = make_replay(8, n_step=3)
    fill(replay, [1.0, 2.0, 4.0, 8.0])
    batch = whole(replay)
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 + 8/4 = 6; near the newest row there are fewer: 4 + 8/2, 8
    assert batch.reward.tolist() == [3.0, 6.0, 8.0, 8.0]
    assert batch.discount.tolist() == [0.125, 0.125, 0.25, 0.5]
    assert batch.next_obs.flatten().tolist() == [3.0, 4.0, 4.0, 4.0]


def test_a_three_step_return_stops_at_an_ending() -> None:
    terminated, truncated = make_replay(8, n_step=3), make_replay(8, n_step=3)
    fill(terminated, [1.0, 2.0, 4.0, 8.0], terminated=1)
    fill(truncated, [1.0, 2.0, 4.0, 8.0], truncated=1)
    assert whole(terminated).reward.tolist() == [2.0, 2.0, 8.0, 8.0]
    assert whole(terminated).discount.tolist() == [0.0, 0.0, 0.25, 0.5]
    assert whole(truncated).reward.tolist() == [2.0, 2.0, 8.0, 8.0]
    assert whole(truncated).discount.tolist() == [0.25, 0.5, 0.25, 0.5]
    assert whole(truncated).next_obs.flatten().tolist() == [99.0, 99.0, 4.0, 4.0]


def test_a_three_step_return_does_not_reach_beyond_a_lost_episode() -> None:
    replay = make_replay(8, n_step=3)
    fill(replay, [1.0, 2.0])
    replay.truncate_episodes()
    fill(replay, [4.0, 8.0])
    # 1 + 2/2 and 2, each with the value of what came next; then 4 + 8/2 and 8
    assert whole(replay).reward.tolist() == [2.0, 2.0, 8.0, 8.0]
    assert whole(replay).discount.tolist() == [0.25, 0.5, 0.25, 0.5]
    assert whole(replay).next_obs.flatten().tolist() == [2.0, 2.0, 2.0, 2.0]


def test_an_n_step_return_does_not_cross_the_seam_of_the_ring() -> None:
    replay = make_replay(3, n_step=3)
    fill(replay, [1.0, 2.0, 4.0, 8.0])  # slots hold steps 3, 1, 2
    assert whole(replay).reward.tolist() == [8.0, 2 + 2 + 2, 4 + 4]
    assert whole(replay).discount.tolist() == [0.5, 0.125, 0.25]


@dataclass
class Step:
    """One step of one env, as a list would keep it."""

    obs: float
    next_obs: float
    reward: float
    terminated: bool
    truncated: bool


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, int, int, list[list[Step]]]:
    """(capacity, num_envs, n_step, steps [T][B]): episodes of any length, ended either way."""
    num_envs = draw(st.integers(1, 3))
    capacity = draw(st.integers(num_envs, 20))
    kinds = draw(
        st.lists(st.lists(st.sampled_from("....xo"), min_size=num_envs, max_size=num_envs),
                 min_size=1, max_size=25)
    )  # fmt: skip
    steps = [
        [
            Step(
                obs=10 * t + env,
                next_obs=1000 + 10 * t + env if kind != "." else 10 * (t + 1) + env,
                reward=float(3 * t + env),
                terminated=kind == "x",
                truncated=kind == "o",
            )
            for env, kind in enumerate(row)
        ]
        for t, row in enumerate(kinds)
    ]
    return capacity, num_envs, draw(st.integers(1, 4)), steps


def add(replay: Replay, row: list[Step]) -> None:
    def column(values: list[Any], dtype: Any) -> np.ndarray:
        return np.array(values, dtype)

    obs = column([[s.obs] for s in row], np.float32)
    transition = Transition(
        obs=obs,
        next_obs=column([[s.next_obs] for s in row], np.float32),
        reward=column([s.reward for s in row], np.float32),
        terminated=column([s.terminated for s in row], bool),
        truncated=column([s.truncated for s in row], bool),
        episode_end=column([s.terminated or s.truncated for s in row], bool),
    )
    replay.add(obs, np.zeros(len(row), np.int64), transition)


def expected_future(lane: list[Step], t: int, n_step: int) -> tuple[float, float, float]:
    """(reward, discount, next obs) of step t by a plain loop over one env's own steps."""
    total, power = 0.0, 1.0
    for step in lane[t : t + n_step]:
        total += power * step.reward
        power *= 0.5
        if step.terminated or step.truncated:
            break
    return total, 0.0 if step.terminated else power, step.next_obs


@given(lives())
def test_every_row_agrees_with_plain_lists_whatever_the_episodes(
    case: tuple[int, int, int, list[list[Step]]],
) -> None:
    capacity, num_envs, n_step, steps = case
    replay = make_replay(capacity, num_envs, n_step=n_step)
    for row in steps:
        add(replay, row)
    kept = min(len(steps), capacity // num_envs)  # a capacity that does not divide is rounded down
    batch = whole(replay)
    assert len(batch.reward) == replay.size == kept * num_envs
    seen = set()
    for i in range(replay.size):
        t, env = divmod(int(batch.obs[i].item()), 10)
        seen.add((t, env))
        lane = [row[env] for row in steps]
        found = batch.reward[i].item(), batch.discount[i].item(), batch.next_obs[i].item()
        assert found == expected_future(lane, t, n_step)
    newest = range(len(steps) - kept, len(steps))
    assert seen == {(t, env) for t in newest for env in range(num_envs)}


def test_rewards_are_clipped_one_by_one_before_they_are_summed() -> None:
    replay = make_replay(8, n_step=3)
    fill(replay, [10.0, 10.0, 10.0])
    batch = replay.sample(1, 0, transform_reward=lambda reward: reward.clamp(-1, 1))
    assert batch.reward.tolist() == [1.75, 1.5, 1.0]  # not 1.0, 1.0, 1.0


@pytest.mark.parametrize(("dtype", "value"), [("float32", 0.1), ("uint8", 255)])
def test_observations_are_kept_in_their_own_dtype(dtype: str, value: float) -> None:
    spaces = Spaces((2, 3), dtype, "discrete", (2,))
    replay = Replay(4, 1, spaces, EveryRow(), batch_size=1, gamma=0.5)
    obs = np.full((1, 2, 3), value, dtype)
    flag = np.array([False])
    replay.add(obs, np.array([0]), Transition(obs, obs, np.ones(1, np.float32), flag, flag, flag))
    batch = whole(replay)
    assert batch.obs.dtype == batch.next_obs.dtype == getattr(torch, dtype)
    assert (batch.obs.numpy() == obs).all()  # float32 exactly, not rounded to half precision


def test_rows_are_copies_of_the_envs_buffers(transition: MakeTransition) -> None:
    replay = make_replay(4)
    obs, action = np.array([[1.0]], np.float32), np.array([1])
    step = transition([[2.0]], [[2.0]], [3.0])
    replay.add(obs, action, step)
    for buffer in (obs, action, on_host(step.next_obs), step.reward):
        buffer.fill(77)
    batch = whole(replay)
    batch.obs.fill_(88)  # nor does a drawn row lead back into the replay
    assert whole(replay).obs.item() == 1.0
    assert whole(replay).action.item() == 1
    assert whole(replay).next_obs.item() == 2.0
    assert whole(replay).reward.item() == 3.0


def test_several_minibatches_come_side_by_side() -> None:
    spaces = Spaces((3, 2), "float32", "multi_continuous", (4,))
    replay = Replay(20, 2, spaces, UniformSampler(0), batch_size=5, gamma=0.9)
    step = Transition(
        np.zeros((2, 3, 2), np.float32),
        np.zeros((2, 3, 2), np.float32),
        np.zeros(2, np.float32),
        *[np.zeros(2, bool)] * 3,
    )
    replay.add(np.zeros((2, 3, 2), np.float32), np.zeros((2, 4), np.float32), step)
    batch = replay.sample(3, frame=0)
    assert batch.obs.shape == batch.next_obs.shape == (15, 3, 2)
    assert batch.action.shape == (15, 4)
    columns = (batch.reward, batch.discount, batch.weight, batch.index)
    assert all(column.shape == (15,) for column in columns)


def test_combined_replay_puts_the_newest_rows_at_the_end_of_a_batch() -> None:
    replay = make_replay(100, sampler=UniformSampler(0), use_cer=True)
    fill(replay, [0.0] * 50)
    whole(replay)
    fill(replay, [0.0] * 3)  # rows 50, 51, 52
    assert whole(replay).index[-3:].tolist() == [52, 51, 50]
    # At most one minibatch of them, and none when nothing is new.
    fill(replay, [0.0] * 10)
    batch = replay.sample(2, frame=0)
    assert batch.index[-4:].tolist() == [62, 61, 60, 59]
    assert len(replay.sample(2, frame=0).index) == 8


def test_combined_replay_finds_the_newest_rows_across_the_seam() -> None:
    replay = make_replay(6, num_envs=2, sampler=UniformSampler(0), use_cer=True)
    row = [Step(0, 1, 0.0, False, False)] * 2
    for _ in range(3):
        add(replay, row)
    whole(replay)
    add(replay, row)  # slot 0 again: rows 0 and 1
    assert whole(replay).index[-2:].tolist() == [1, 0]


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_a_restored_replay_continues_bit_for_bit(kind: str) -> None:
    def make(seed: int) -> Replay:
        sampler: Sampler = UniformSampler(seed)
        if kind == "prioritized":
            sampler = PrioritizedSampler(
                12, alpha=0.6, epsilon=0.1, beta=0.4, anneal_frames=100, seed=seed
            )
        return make_replay(12, num_envs=2, sampler=sampler, use_cer=True, n_step=2)

    def live(replay: Replay, steps: int) -> list[ReplayBatch]:
        batches = []
        for t in range(steps):
            add(replay, [Step(10 * t + e, 10 * t + 10 + e, float(t), t % 5 == e, False)
                         for e in range(2)])  # fmt: skip
            batches.append(replay.sample(2, frame=t))
            replay.update_priorities(batches[-1].index, batches[-1].reward)
        return batches

    original, restored = make(seed=1), make(seed=2)
    live(original, 9)  # the ring has wrapped around
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    for ours, theirs in zip(live(original, 9), live(restored, 9), strict=True):
        for name in ReplayBatch.__slots__:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


LAYOUTS = {
    "vector, discrete": Spaces((5,), "float32", "discrete", (2,)),
    "vector, continuous": Spaces((5,), "float32", "multi_continuous", (3,)),
    "image, discrete": Spaces((4, 8, 8), "uint8", "discrete", (2,)),
}


@pytest.mark.parametrize("spaces", LAYOUTS.values(), ids=LAYOUTS)
def test_the_predicted_bytes_are_the_bytes_taken(spaces: Spaces) -> None:
    replay = Replay(60, 3, spaces, EveryRow(), batch_size=1, gamma=0.9)
    columns = replay.state_dict()["ring"].columns
    assert sum(column.nbytes for column in columns.values()) == replay_bytes(60, spaces)


ATARI = Spaces((4, 84, 84), "uint8", "discrete", (6,))


def test_predicted_bytes_by_hand() -> None:
    # An Atari row: twice 4 * 84 * 84 bytes, an int64 action, a float32 reward, two flags.
    row = 2 * 28_224 + 8 + 4 + 2
    assert replay_bytes(1_000_000, ATARI) == row * 1_000_000


def test_a_replay_that_cannot_fit_is_refused_by_its_key(
    make_spec: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    check_fits(900)
    with pytest.raises(SpecError, match=r"agent\.memory\.max_size: the replay would take"):
        check_fits(901)
    with pytest.raises(SpecError, match=r"agent\.memory\.max_size"):
        make_agent(make_spec("DQN"), Spaces((1,), "float32", "discrete", (2,)), seed=0)


def test_a_replay_smaller_than_one_step_of_all_envs_is_refused(
    make_spec: Callable[..., Spec],
) -> None:
    spec = make_spec("DQN", {"agent.memory": {"name": "Replay", "batch_size": 2, "max_size": 3}})
    with pytest.raises(SpecError, match=r"agent\.memory\.max_size: found 3; .*num_envs = 4"):
        make_agent(spec, Spaces((1,), "float32", "discrete", (2,)), seed=0)
