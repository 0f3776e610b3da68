"""Running statistics of observations and rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.preprocessor import (
    ObsNormalizer,
    Preprocessor,
    RewardTransform,
    RunningMoments,
    make_obs_transform,
    make_reward_transform,
)
from slm_lab.spec import EnvSpec, Spec
from slm_lab.types import Metrics, Spaces


def env_spec(**keys: Any) -> EnvSpec:
    return EnvSpec.model_validate({"name": "CartPole-v1", "max_frame": 100, **keys})


def rewards(steps: int, lanes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random rewards and endings, [T, B]."""
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(steps, lanes, generator=generator) + 0.5
    return reward, torch.rand(steps, lanes, generator=generator) < 0.2


def learned(transform: RewardTransform, reward: Tensor, ended: Tensor | None = None) -> Tensor:
    """What is learned from a stretch of rewards [T, B]: the statistics move first, then scale."""
    transform.observe(reward, torch.zeros_like(reward) > 0 if ended is None else ended)
    return transform(reward)


def test_moments_over_uneven_batches_equal_those_of_everything_at_once() -> None:
    data = np.random.default_rng(0).normal([100.0, -3.0], [5.0, 0.01], (61, 2))
    moments = RunningMoments((2,))
    for batch in np.split(data, [1, 4, 40]):
        moments.update(torch.from_numpy(batch))
    np.testing.assert_allclose(moments.mean, data.mean(0))
    np.testing.assert_allclose(moments.var, data.var(0))
    assert moments.count.item() == 61


def test_moments_keep_precision_far_from_zero() -> None:
    moments = RunningMoments(())
    for _ in range(100):
        moments.update(torch.tensor([1e6 - 1, 1e6 + 1], dtype=torch.float64))
    assert moments.var.item() == pytest.approx(1.0, rel=1e-6)


def test_a_fresh_normalizer_changes_nothing() -> None:
    normalizer = ObsNormalizer((2,), clip=None)
    assert normalizer(torch.tensor([[3.0, -4.0]])).tolist() == [[3.0, -4.0]]


def test_observations_get_zero_mean_and_unit_variance_then_a_clip() -> None:
    normalizer = ObsNormalizer((1,), clip=1.5)
    normalizer.update(torch.tensor([[1.0], [3.0]]))  # mean 2, std 1
    found = normalizer(torch.tensor([[1.0], [2.0], [2.5], [9.0], [-9.0]]))
    assert found.flatten().tolist() == pytest.approx([-1.0, 0.0, 0.5, 1.5, -1.5])


def test_a_constant_dimension_becomes_zero() -> None:
    normalizer = ObsNormalizer((1,), clip=10.0)
    normalizer.update(torch.full((5, 1), 7.0))
    assert normalizer(torch.full((1, 1), 7.0)).item() == 0.0


def test_normalizing_leaves_the_raw_observation_alone() -> None:
    normalizer = ObsNormalizer((1,), clip=10.0)
    normalizer.update(torch.tensor([[1.0], [3.0]]))
    raw = torch.tensor([[5.0]])
    normalizer(raw)
    assert raw.item() == 5.0


def test_a_restored_normalizer_sees_the_same() -> None:
    normalizer, restored = ObsNormalizer((2,), 10.0), ObsNormalizer((2,), 10.0)
    normalizer.update(torch.tensor([[1.0, 2.0], [3.0, 9.0], [0.0, 0.0]]))
    restored.load_state_dict(normalizer.state_dict())
    x, more = torch.tensor([[0.3, 0.7]]), torch.tensor([[5.0, 5.0]])
    assert torch.equal(normalizer(x), restored(x))
    normalizer.update(more)
    restored.update(more)
    assert torch.equal(normalizer(x), restored(x))


def test_saved_statistics_do_not_follow_later_updates() -> None:
    normalizer = ObsNormalizer((1,), None)
    saved = normalizer.state_dict()
    normalizer.update(torch.ones(3, 1))
    assert saved["count"].item() == 0
    assert saved["mean"].item() == 0


def test_acting_never_moves_the_statistics(make_spec: Callable[..., Spec]) -> None:
    spaces = Spaces((1,), "float32", "discrete", (2,))
    agent = make_agent(make_spec("PPO", {"env.normalize_obs": True}), spaces, seed=0)
    before = agent.statistics()["obs_normalizer"]
    for explore in (True, False):
        agent.act(np.full((4, 1), 50.0, np.float32), explore=explore)
    after = agent.statistics()["obs_normalizer"]
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("steps", [1, 5, 8])
def test_the_reward_scale_is_the_std_of_the_discounted_return(steps: int) -> None:
    gamma, lanes = 0.9, 3
    transform = RewardTransform(lanes, gamma, scale=1.0, normalize=True, clip=None)
    running, seen = np.zeros(lanes), []
    for call in range(3):  # the running return carries over from call to call
        reward, ended = rewards(steps, lanes, seed=call)
        for r, end in zip(reward.double().numpy(), ended.numpy(), strict=True):
            running = r + gamma * running
            seen.extend(running)
            running = running * ~end  # an ending starts over, after its own reward counted
        found = learned(transform, reward, ended)
        expected = reward.numpy() / np.sqrt(np.var(seen) + 1e-8)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_rewards_keep_their_sign_when_normalized() -> None:
    transform = RewardTransform(1, 0.9, scale=1.0, normalize=True, clip=None)
    found = learned(transform, torch.tensor([[5.0], [7.0], [6.0]]))
    assert (found > 0).all()


def test_rewards_are_scaled_then_clipped() -> None:
    transform = RewardTransform(1, 0.9, scale=0.5, normalize=False, clip=(-1.0, 2.0))
    reward = torch.tensor([[-4.0], [-1.0], [2.0], [10.0]])
    found = learned(transform, reward)
    assert found.flatten().tolist() == [-1.0, -0.5, 1.0, 2.0]
    assert reward.flatten().tolist() == [-4.0, -1.0, 2.0, 10.0]


def test_a_constant_scale_cancels_in_normalized_rewards() -> None:
    reward, ended = rewards(20, 2, seed=0)
    plain = RewardTransform(2, 0.9, scale=1.0, normalize=True, clip=None)
    scaled = RewardTransform(2, 0.9, scale=100.0, normalize=True, clip=None)
    torch.testing.assert_close(
        learned(plain, reward, ended), learned(scaled, reward, ended), rtol=1e-4, atol=1e-5
    )


def test_a_restored_reward_transform_continues_exactly() -> None:
    def transform() -> RewardTransform:
        return RewardTransform(2, 0.9, scale=1.0, normalize=True, clip=None)

    original, restored = transform(), transform()
    learned(original, *rewards(6, 2, seed=0))
    restored.load_state_dict(original.state_dict())
    for seed in (1, 2):
        stretch = rewards(6, 2, seed)
        assert torch.equal(learned(original, *stretch), learned(restored, *stretch))


def test_an_env_spec_without_wishes_gets_no_transform() -> None:
    assert make_obs_transform(env_spec(), (4,)) is None
    assert make_reward_transform(env_spec(), 0.99, lanes=4) is None


def test_normalization_clips_at_ten_unless_told() -> None:
    extreme = torch.tensor([[1e6]])
    normalizer = make_obs_transform(env_spec(normalize_obs=True), (1,))
    assert isinstance(normalizer, ObsNormalizer)
    assert normalizer(extreme).item() == 10.0
    tighter = make_obs_transform(env_spec(normalize_obs=True, clip_obs=3), (1,))
    assert tighter is not None
    assert tighter(extreme).item() == 3.0


def test_clip_obs_works_alone() -> None:
    clip = make_obs_transform(env_spec(clip_obs=5), (1,))
    assert clip is not None
    assert clip(torch.tensor([[-9.0, 2.0]])).tolist() == [[-5.0, 2.0]]


@pytest.mark.parametrize(("clip", "expected"), [(2, [-2.0, 2.0]), ([-1, 3], [-1.0, 3.0])])
def test_clip_reward_is_a_number_or_a_pair(clip: Any, expected: list[float]) -> None:
    transform = make_reward_transform(env_spec(clip_reward=clip), 0.99, lanes=1)
    assert transform is not None
    found = learned(transform, torch.tensor([[-50.0], [50.0]]))
    assert found.flatten().tolist() == expected


def test_rewards_are_divided_further_where_returns_would_leave_the_support() -> None:
    def transform(largest: float | None) -> RewardTransform:
        return RewardTransform(1, 0.5, scale=1.0, normalize=True, clip=None, largest_return=largest)

    reward, ended = torch.tensor([[1.0], [1.0]]), torch.tensor([[False], [True]])
    # Returns so far 1 and 1.5: a standard deviation of 0.25.
    plain, wide, narrow = transform(None), transform(7.0), transform(3.0)
    for each in (plain, wide, narrow):
        each.observe(reward, ended)
    assert plain(reward[0]).item() == pytest.approx(4.0, rel=1e-5)
    assert wide(reward[0]).item() == pytest.approx(4.0, rel=1e-5)
    assert narrow(reward[0]).item() == 2.0  # 1.5 becomes 3
    assert narrow.unit == 0.5
    resumed = transform(3.0)
    resumed.load_state_dict(narrow.state_dict())
    assert resumed(reward[0]).item() == 2.0


def test_q_values_are_reported_in_rewards_of_the_env() -> None:
    transform = RewardTransform(1, 0.5, scale=0.5, normalize=False, clip=None)
    preprocessor = Preprocessor(None, transform, torch.device("cpu"))
    metrics = preprocessor.in_env_units(Metrics({"q_value": 3.0, "loss": 1.0}, opt_steps=1))
    assert metrics.values == {"q_value": 6.0, "loss": 1.0}
    plain = Preprocessor(None, None, torch.device("cpu"))
    assert plain.in_env_units(metrics) is metrics
