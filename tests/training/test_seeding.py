"""Every random stream of a run, from one recorded seed."""

from __future__ import annotations

from dataclasses import astuple

from slm_lab.training.seeding import draw_seed, replay_seeds, session_seeds


def test_the_same_numbers_give_the_same_streams():
    assert session_seeds(7, 0, 1) == session_seeds(7, 0, 1)


def test_every_stream_of_every_session_differs():
    seeds = [
        session_seeds(random_seed, trial, session)
        for random_seed in (0, 1)
        for trial in range(3)
        for session in range(4)
    ]
    numbers = [number for s in seeds for number in (s.env, s.eval_env, s.agent)]
    assert len(set(numbers)) == len(numbers) == 72


def test_a_session_does_not_depend_on_how_many_there_are():
    assert session_seeds(3, 0, 0) != session_seeds(3, 1, 0)
    assert session_seeds(3, 0, 1) != session_seeds(3, 1, 0)


def test_the_largest_seed_that_a_spec_takes_works():
    assert session_seeds(2**63 - 1, 0, 0) != session_seeds(2**63 - 2, 0, 0)


def test_a_drawn_seed_is_new_each_time_and_short_enough_to_type():
    seeds = {draw_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_replay_draws_from_no_stream_of_training_whatever_the_seed():
    trained = {stream for seed in range(20) for stream in astuple(session_seeds(seed, 0, 1))}
    replayed = {stream for seed in range(20) for stream in replay_seeds(seed, 0, 1)}
    assert (len(trained), len(replayed)) == (60, 40)
    assert not trained & replayed
