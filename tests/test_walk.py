"""A frame takes a short way from the env to the gradient, so that it can be followed by hand."""

from perf.walk import WALKS, walk


def test_a_frame_of_ppo_passes_fifteen_files_and_not_many_more_calls_between_them():
    way = walk(*WALKS["PPO CartPole"])
    assert len(way.files) <= 15
    assert way.hops <= 45
