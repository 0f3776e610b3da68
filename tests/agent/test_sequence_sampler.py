"""Sequences out of a ring of slots, in numbers small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.memory.sampler import PrioritizedSampler, SequenceSampler, UniformSampler


class Scripted(UniformSampler):
    """Draws what it is told; remembers the priorities it is given."""

    def __init__(self, *rows: int) -> None:
        super().__init__(0)
        self.rows = rows
        self.updated: dict[int, float] = {}

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        assert len(self.rows) == batches * batch_size
        return torch.tensor(self.rows)

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        return index / 10

    def update(self, index: Tensor, td_error: Tensor) -> None:
        self.updated |= dict(zip(index.tolist(), td_error.tolist(), strict=True))


def sampler_of(starts: Scripted, *, length: int, batch_size: int, written: int) -> SequenceSampler:
    """Two envs, a ring of 5 slots, of which `written` steps have been added so far."""
    sampler = SequenceSampler(starts, length, batch_size=batch_size, slots=5, num_envs=2)
    for step in range(written):
        sampler.added(step % 5 * 2 + np.arange(2))
    return sampler


def test_a_start_brings_the_steps_of_its_env_that_follow() -> None:
    # Rows are slot * 2 + env. Row 0 is slot 0 of env 0, row 3 slot 1 of env 1.
    sampler = sampler_of(Scripted(0, 3), length=3, batch_size=6, written=5)
    assert sampler.draw(10, 1, 6).view(3, 2).tolist() == [[0, 3], [2, 5], [4, 7]]


def test_sequences_run_through_the_seam_of_the_ring_but_never_past_the_newest_row() -> None:
    # 7 steps: slots 0 and 1 hold the newest, slot 2 the oldest; time runs 2 3 4 0 1.
    sampler = sampler_of(Scripted(8, 2), length=3, batch_size=6, written=7)
    index = sampler.draw(10, 1, 6).view(3, 2)
    assert index[:, 0].tolist() == [8, 0, 2]  # slots 4 0 1
    assert index[:, 1].tolist() == [8, 0, 2]  # slot 1 starts no whole sequence: 4 is the latest


def test_a_half_filled_ring_is_drawn_from_as_far_as_it_goes() -> None:
    sampler = sampler_of(Scripted(0, 5), length=3, batch_size=6, written=3)
    assert sampler.draw(6, 1, 6).view(3, 2).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_minibatches_lie_side_by_side() -> None:
    sampler = sampler_of(Scripted(0, 1, 2, 3), length=2, batch_size=4, written=5)
    first, second = sampler.draw(10, 2, 4).view(2, 2, 2).tolist()
    assert first == [[0, 1], [2, 3]]
    assert second == [[2, 3], [4, 5]]


def test_combined_replay_ends_a_draw_with_the_newest_sequence_of_each_env() -> None:
    sampler = SequenceSampler(Scripted(0, 0, 0), 2, batch_size=6, slots=5, num_envs=2, use_cer=True)
    for step in range(5):
        sampler.added(step * 2 + np.arange(2))
    assert sampler.draw(10, 1, 6).view(2, 3).tolist() == [[0, 6, 7], [2, 8, 9]]


def test_a_sequence_has_the_weight_and_priority_of_its_start() -> None:
    starts = Scripted(0, 3)
    sampler = sampler_of(starts, length=2, batch_size=4, written=5)
    index = sampler.draw(10, 1, 4)
    weight = sampler.weight(index, 10, 1, 0)
    assert weight.tolist() == pytest.approx([0.0, 0.3, 0.0, 0.3])
    sampler.update(index, torch.tensor([1.0, -4.0, -3.0, 0.0]))
    # 0.9 of the largest error and 0.1 of their mean: of 1 and 3, and of 4 and 0
    assert starts.updated == pytest.approx({0: 0.9 * 3 + 0.1 * 2, 3: 0.9 * 4 + 0.1 * 2})


def test_a_restored_sampler_draws_the_same_sequences() -> None:
    def make() -> SequenceSampler:
        starts = PrioritizedSampler(10, alpha=0.6, epsilon=0.1, beta=0.4, anneal_frames=100, seed=3)
        return SequenceSampler(starts, 2, batch_size=4, slots=5, num_envs=2)

    sampler, other = make(), make()
    for step in range(7):
        sampler.added(step % 5 * 2 + np.arange(2))
    sampler.draw(10, 1, 4)
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(sampler.draw(10, 2, 4), other.draw(10, 2, 4))
