"""Which rows are drawn, how often, and what each then weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.memory.sampler import PrioritizedSampler, Sampler, UniformSampler

# Chi-square of 3 degrees of freedom exceeds this once in a thousand seeds.
CHI_SQUARE_3 = 16.27


def prioritized(capacity: int, td_error: list[float] | None = None, **keys: Any) -> Any:
    options = {"alpha": 1.0, "epsilon": 0.0, "beta": 0.4, "anneal_frames": 100, "seed": 0} | keys
    sampler = PrioritizedSampler(capacity, **options)
    if td_error is not None:
        rows = np.arange(len(td_error))
        sampler.added(rows)
        sampler.update(torch.from_numpy(rows), torch.tensor(td_error))
    return sampler


def priorities(sampler: Sampler) -> list[float]:
    found: list[float] = sampler.state_dict()["priority"].tolist()
    return found


def chi_square(index: Tensor, probability: list[float]) -> float:
    expected = torch.tensor(probability) * len(index)
    counts = torch.bincount(index, minlength=len(probability))
    return float(((counts - expected).square() / expected).sum())


def test_uniform_rows_are_drawn_alike_and_weigh_one() -> None:
    sampler = UniformSampler(seed=0)
    index = sampler.draw(size=4, batches=2, batch_size=2000)
    assert index.shape == (4000,)
    assert chi_square(index, [0.25] * 4) < CHI_SQUARE_3
    assert sampler.weight(index[:3], size=4, batches=1, frame=0).tolist() == [1.0, 1.0, 1.0]


def test_only_filled_rows_are_drawn() -> None:
    assert set(UniformSampler(seed=0).draw(3, 1, 200).tolist()) == {0, 1, 2}
    sampler = prioritized(capacity=100)
    sampler.added(np.arange(3))
    assert set(sampler.draw(3, 1, 200).tolist()) == {0, 1, 2}


def test_rows_are_drawn_in_proportion_to_their_priorities() -> None:
    sampler = prioritized(4, [1.0, 2.0, 3.0, 4.0])
    one_by_one = torch.cat([sampler.draw(4, 1, 1) for _ in range(2000)])
    assert chi_square(one_by_one, [0.1, 0.2, 0.3, 0.4]) < CHI_SQUARE_3
    assert chi_square(one_by_one, [0.25] * 4) > CHI_SQUARE_3  # the test can tell


def test_a_batch_is_spread_evenly_over_the_priorities() -> None:
    # Stratified: each row's count is off by less than one at either end of its share.
    sampler = prioritized(4, [1.0, 2.0, 3.0, 4.0])
    for _ in range(20):
        counts = torch.bincount(sampler.draw(4, 2, 50), minlength=4)
        assert (counts - torch.tensor([10, 20, 30, 40])).abs().max() <= 1


def test_a_minibatch_is_not_a_stretch_of_the_ring() -> None:
    sampler = prioritized(100, [1.0] * 100)
    index = sampler.draw(100, 4, 25)
    assert index.sort().values.tolist() == list(range(100))
    assert all(minibatch.max() - minibatch.min() > 50 for minibatch in index.split(25))


def test_the_sign_of_an_error_does_not_matter_and_a_zero_is_never_drawn() -> None:
    sampler = prioritized(3, [-1.0, 0.0, 3.0])
    index = sampler.draw(3, 1, 400)
    assert torch.bincount(index, minlength=3).tolist() == pytest.approx([100, 0, 300], abs=1)


def test_a_priority_is_the_error_plus_epsilon_to_the_power_alpha() -> None:
    sampler = prioritized(4, [3.0, -8.0, 0.0], alpha=0.5, epsilon=1.0)
    # sqrt(3 + 1), sqrt(8 + 1), sqrt(0 + 1); the fourth row holds nothing yet
    assert priorities(sampler) == pytest.approx([2.0, 3.0, 1.0, 0.0])


def test_alpha_zero_draws_uniformly() -> None:
    sampler = prioritized(4, [0.0, 1.0, 10.0, 100.0], alpha=0.0)
    assert priorities(sampler) == [1.0] * 4


def test_a_new_row_has_the_highest_priority_seen() -> None:
    sampler = prioritized(4, alpha=0.5)
    sampler.added(np.array([0, 1]))
    assert priorities(sampler) == [1.0, 1.0, 0.0, 0.0]
    sampler.update(torch.tensor([0, 1]), torch.tensor([16.0, 0.25]))
    sampler.added(np.array([2]))
    assert priorities(sampler) == [4.0, 0.5, 4.0, 0.0]
    # Seen, not held: after the large error is corrected new rows still enter with it.
    sampler.update(torch.tensor([0, 2]), torch.tensor([0.25, 0.25]))
    sampler.added(np.array([3]))
    assert priorities(sampler) == [0.5, 0.5, 0.5, 4.0]


@pytest.mark.parametrize(("frame", "beta"), [(0, 0.4), (50, 0.7), (100, 1.0), (500, 1.0)])
def test_importance_weights_undo_the_preference_as_beta_grows(frame: int, beta: float) -> None:
    # P = 1/4 and 3/4. Weights (2 P) ** -beta, the rarer row's being the largest: 1 and 3 ** -beta.
    sampler = prioritized(2, [1.0, 3.0])
    weight = sampler.weight(torch.tensor([0, 1]), size=2, batches=1, frame=frame)
    assert weight.tolist() == pytest.approx([1.0, 3.0**-beta])
    assert weight.dtype == torch.float32


def test_weights_are_scaled_by_the_largest_of_their_own_minibatch() -> None:
    sampler = prioritized(3, [1.0, 2.0, 4.0], beta=1.0)
    weight = sampler.weight(torch.tensor([0, 1, 2, 1]), size=3, batches=2, frame=0)
    assert weight.tolist() == pytest.approx([1.0, 0.5, 0.5, 1.0])


def make_sampler(kind: str, seed: int) -> Sampler:
    if kind == "uniform":
        return UniformSampler(seed)
    sampler: Sampler = prioritized(8, seed=seed)
    return sampler


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_a_restored_sampler_draws_the_same_rows(kind: str) -> None:
    original, restored = make_sampler(kind, seed=1), make_sampler(kind, seed=2)
    original.added(np.arange(6))
    original.draw(6, 1, 10)
    original.update(torch.arange(6), torch.tensor([1.0, 5.0, 2.0, 0.5, 3.0, 1.0]))
    restored.load_state_dict(original.state_dict())
    for _ in range(3):
        ours, theirs = original.draw(6, 2, 10), restored.draw(6, 2, 10)
        assert torch.equal(ours, theirs)
        assert torch.equal(original.weight(ours, 6, 2, 7), restored.weight(theirs, 6, 2, 7))
    for sampler in (original, restored):
        sampler.added(np.array([6, 7]))  # the highest priority is part of the state, too
    assert torch.equal(original.draw(8, 1, 50), restored.draw(8, 1, 50))


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_another_seed_draws_other_rows(kind: str) -> None:
    draws = []
    for seed in (1, 2, 1):
        sampler = make_sampler(kind, seed)
        sampler.added(np.arange(8))
        draws.append(sampler.draw(8, 1, 50).tolist())
    assert draws[0] == draws[2] != draws[1]
