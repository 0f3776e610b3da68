import math

import numpy as np

from slm_lab.env import EpisodeStats


def test_returns_and_lengths_are_counted_per_slot():
    stats = EpisodeStats(2)
    stats.add(np.array([1.0, 10.0]), [])
    stats.add(np.array([2.0, 20.0]), [0])
    stats.add(np.array([3.0, 30.0]), [0, 1])
    assert list(stats.returns) == [1 + 2, 3, 10 + 20 + 30]
    assert list(stats.lengths) == [2, 1, 3]
    assert stats.count == 3
    stats.add(np.array([5.0, 50.0]), [])
    assert stats.running_length(0) == 1


def test_one_env_scores_its_last_return_and_zero_before():
    stats = EpisodeStats(1)
    assert stats.total_reward() == 0.0
    stats.add(np.array([4.0]), [0])
    stats.add(np.array([6.0]), [0])
    assert stats.total_reward() == 6.0


def test_several_envs_score_the_mean_of_the_last_hundred_and_nan_before():
    stats = EpisodeStats(2)
    assert math.isnan(stats.total_reward())
    stats.add(np.array([1000.0, 2000.0]), [0, 1])
    assert stats.total_reward() == 1500.0
    for _ in range(50):
        stats.add(np.array([1.0, 2.0]), [0, 1])
    assert stats.total_reward() == 1.5
    assert stats.count == 102


def test_one_env_too_has_the_mean_return_and_length_of_its_last_hundred():
    stats = EpisodeStats(1)
    assert math.isnan(stats.last_100()[0])
    for episode in range(110):  # episode i has i + 1 steps, of reward 2 each
        for _ in range(episode):
            stats.add(np.array([2.0]), [])
        stats.add(np.array([2.0]), [0])
    assert stats.total_reward() == 220.0
    assert stats.last_100() == (121.0, 60.5)  # lengths 11 to 110


def test_many_small_rewards_add_up_exactly_enough():
    """In float32 the sum would stall: 2^24 + 1 == 2^24."""
    stats = EpisodeStats(1)
    stats.add(np.array([2.0**24], np.float32), [])
    for _ in range(10):
        stats.add(np.array([1.0], np.float32), [])
    stats.add(np.array([0.0], np.float32), [0])
    assert stats.returns[-1] == 2.0**24 + 10


def test_an_abandoned_episode_is_not_counted():
    stats = EpisodeStats(2)
    stats.add(np.array([5.0, 7.0]), [])
    stats.abandon([0])
    stats.add(np.array([1.0, 1.0]), [0, 1])
    assert list(stats.returns) == [1, 8]
    assert list(stats.lengths) == [1, 2]


def test_loaded_statistics_go_on_as_if_never_saved():
    stats, loaded = EpisodeStats(2), EpisodeStats(2)
    stats.add(np.array([1.0, 2.0]), [0])
    loaded.load_state_dict(stats.state_dict())
    for each in (stats, loaded):
        each.add(np.array([3.0, 4.0]), [1])
    assert loaded.state_dict() == stats.state_dict()
    assert list(loaded.returns) == [1, 6]
    assert list(loaded.lengths) == [1, 2]
