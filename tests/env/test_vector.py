"""The contract of a batched env, on scripted episodes and on both back-ends."""

from dataclasses import astuple

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env import EnvError, make_env
from slm_lab.env.episode_log import EpisodeLog
from slm_lab.env.registry import make_gymnasium_envs
from slm_lab.env.vector import EpisodeStats, GymnasiumVectorEnv, shares, spawn_streams

ACTION = np.zeros(2, np.int64)


def test_an_ending_shows_the_final_obs_and_the_next_episode_at_once(scripted):
    """Env 0 terminates at step 3, env 1 is truncated at step 4. Observations are (episode, t)."""
    assert scripted.reset().tolist() == [[0, 0], [0, 0]]
    steps = []
    for _ in range(5):
        step = scripted.step(ACTION)
        steps.append(
            [
                a.tolist()
                for a in (step.next_obs, step.obs, step.reward, step.terminated, step.truncated)
            ]
        )
    assert steps == [
        [[[0, 1], [0, 1]], [[0, 1], [0, 1]], [1, 1], [False, False], [False, False]],
        [[[0, 2], [0, 2]], [[0, 2], [0, 2]], [2, 2], [False, False], [False, False]],
        [[[0, 3], [0, 3]], [[1, 0], [0, 3]], [3, 3], [True, False], [False, False]],
        [[[1, 1], [0, 4]], [[1, 1], [1, 0]], [1, 4], [False, False], [False, True]],
        [[[1, 2], [1, 1]], [[1, 2], [1, 1]], [2, 1], [False, False], [False, False]],
    ]


def test_an_episode_ends_where_it_terminates_or_is_truncated(scripted):
    """Episodes of 3 and of 4 steps."""
    scripted.reset()
    ends = np.stack([scripted.step(ACTION).episode_end.copy() for _ in range(8)])
    assert np.flatnonzero(ends[:, 0]).tolist() == [2, 5]
    assert np.flatnonzero(ends[:, 1]).tolist() == [3, 7]


def test_no_step_is_dead(scripted):
    """24 steps are 8 episodes of 3 and 6 episodes of 4; a dead step would earn 0 and shift them."""
    scripted.reset()
    for _ in range(24):
        step = scripted.step(ACTION)
        assert (step.reward > 0).all()
        assert (step.next_obs[:, 1] > 0).all(), "a reset observation stood in for a successor"
    assert scripted.episodes.count == 8 + 6
    assert set(zip(scripted.episodes.returns, scripted.episodes.lengths, strict=True)) == {
        (1 + 2 + 3, 3),
        (1 + 2 + 3 + 4, 4),
    }


def test_envs_that_end_together_get_back_their_own_first_obs(scripted):
    """At step 12 env 0 ends its fourth episode and env 1 its third."""
    scripted.reset()
    for _ in range(12):
        step = scripted.step(ACTION)
    assert step.next_obs.tolist() == [[3, 3], [2, 4]]
    assert step.obs.tolist() == [[4, 0], [3, 0]]


def test_obs_and_next_obs_share_memory_only_while_nothing_ends(scripted):
    scripted.reset()
    assert [(s := scripted.step(ACTION)).obs is s.next_obs for _ in range(5)] == [
        True, True, False, False, True,
    ]  # fmt: skip


def test_the_last_obs_stays_valid_through_the_next_step(scripted):
    obs = scripted.reset()
    for _ in range(9):
        before = obs.copy()
        step = scripted.step(ACTION)
        np.testing.assert_array_equal(obs, before)
        assert not np.shares_memory(obs, step.obs)
        assert not np.shares_memory(obs, step.next_obs)
        obs = step.obs
        assert scripted.obs is obs


def test_a_reset_in_mid_episode_abandons_its_return(scripted):
    scripted.reset()
    scripted.step(ACTION)
    assert scripted.reset().tolist() == [[1, 0], [1, 0]]
    for _ in range(3):
        scripted.step(ACTION)
    assert list(scripted.episodes.returns) == [1 + 2 + 3]


def test_a_second_reset_goes_on_with_the_stream(env_spec):
    env = make_env(env_spec("CartPole-v1"), seed=0)
    first = np.array(env.reset())
    assert not np.array_equal(first, env.reset())


def test_envs_are_given_plain_ints_for_discrete_actions(make_scripted, monkeypatch):
    single = make_scripted(3, terminates=True, truncates=False)
    given, step = [], single.step

    def recording_step(action):
        given.append(action)
        return step(action)

    monkeypatch.setattr(single, "step", recording_step)
    env = GymnasiumVectorEnv([single], seed=0)
    env.reset()
    env.step(np.array([1]))
    assert given == [1]
    assert type(given[0]) is int


def test_both_endings_at_once_are_both_reported(make_scripted):
    env = GymnasiumVectorEnv([make_scripted(1, terminates=True, truncates=True)], seed=0)
    env.reset()
    step = env.step(np.zeros(1, np.int64))
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [True]
    assert env.episodes.count == 1


def test_dtypes_are_those_of_the_contract(scripted):
    scripted.reset()
    step = scripted.step(ACTION)
    assert [a.dtype for a in (step.obs, step.next_obs, step.reward)] == [np.float32] * 3
    assert [a.dtype for a in (step.terminated, step.truncated)] == [np.bool_] * 2


def test_a_batch_of_the_wrong_size_is_refused(scripted):
    scripted.reset()
    with pytest.raises(EnvError, match=r"found 3 rows for env.num_envs = 2"):
        scripted.step(np.zeros(3, np.int64))


def test_threads_share_the_envs_and_change_no_number(env_spec):
    """Five envs among two threads: the shares are unequal, the order is not."""
    envs = {
        count: make_env(env_spec("CartPole-v1", num_envs=5, num_threads=count), seed=0)
        for count in (1, 2, 9)
    }
    for env in envs.values():
        env.reset()
    for _ in range(200):
        action = envs[1].sample_action()
        alone, *shared = (env.step(action) for env in envs.values())
        for step in shared:
            for ours, theirs in zip(astuple(alone), astuple(step), strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert envs[1].episodes.count > 10
    for env in envs.values():
        env.close()


def test_a_thread_that_fails_is_heard(make_scripted, monkeypatch):
    envs = [make_scripted(9, terminates=True, truncates=False) for _ in range(4)]
    monkeypatch.setattr(envs[3], "step", lambda action: 1 / 0)
    env = GymnasiumVectorEnv(envs, seed=0, threads=2)
    env.reset()
    with pytest.raises(ZeroDivisionError):
        env.step(np.zeros(4, np.int64))
    env.close()


def test_shares_are_even_and_never_empty():
    assert shares(16, 2) == [range(8), range(8, 16)]
    assert shares(5, 2) == [range(2), range(2, 5)]
    assert shares(2, 9) == [range(1), range(1, 2)]
    assert shares(4, 1) == [range(4)]


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_the_same_seed_gives_the_same_stream_and_every_env_its_own(env_spec, backend):
    def rollout(seed):
        env = make_env(env_spec("CartPole-v1", num_envs=3, backend=backend), seed=seed)
        rows = [np.array(env.reset())]
        rows += [np.array(env.step(env.sample_action()).obs) for _ in range(100)]
        env.close()
        return np.stack(rows)

    first = rollout(7)
    np.testing.assert_array_equal(first, rollout(7))
    assert not np.array_equal(first[0], rollout(8)[0])
    assert len(np.unique(first[0], axis=0)) == 3


def test_streams_are_all_different():
    seeds, actions = spawn_streams(0, 100)
    others, other_actions = spawn_streams(1, 100)
    assert len({*seeds, *others}) == 200
    assert actions.integers(1 << 60) != other_actions.integers(1 << 60)


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_cartpole_keeps_the_contract_for_many_episodes(env_spec, backend):
    env = make_env(env_spec("CartPole-v1", num_envs=4, backend=backend, max_t=30), seed=0)
    obs, frames, lengths = np.array(env.reset()), 0, []
    elapsed = np.zeros(4, int)
    for _ in range(500):
        step = env.step(env.sample_action())
        frames += env.num_envs
        elapsed += 1
        ended = step.terminated | step.truncated
        np.testing.assert_array_equal(step.reward, 1.0)  # a dead step would earn 0
        np.testing.assert_array_equal(step.obs[~ended], step.next_obs[~ended])
        # A successor is one time step away: position moves by velocity * 0.02 s.
        np.testing.assert_allclose(step.next_obs[:, 0], obs[:, 0] + 0.02 * obs[:, 1], atol=1e-6)
        # A reset observation lies within 0.05 of the centre; a terminal one is beyond the limits.
        assert (np.abs(step.obs[ended]) <= 0.05).all()
        fallen = (np.abs(step.next_obs[:, 2]) > 0.2094) | (np.abs(step.next_obs[:, 0]) > 2.4)
        np.testing.assert_array_equal(step.terminated, fallen)
        np.testing.assert_array_equal(step.truncated & ~step.terminated, (elapsed == 30) & ~fallen)
        lengths += elapsed[ended].tolist()
        elapsed[ended] = 0
        obs = np.array(step.obs)
    assert step.truncated.dtype == bool
    assert env.episodes.count == len(lengths) > 50
    assert list(env.episodes.lengths) == lengths[-100:]
    assert sum(lengths) + elapsed.sum() == frames == 2000
    env.close()


def test_the_registered_time_limit_truncates(env_spec):
    env = make_env(env_spec("MountainCar-v0"), seed=0)
    env.reset()
    endings = [bool(env.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(200)]
    assert endings == [False] * 199 + [True]


def test_max_t_overrides_the_time_limit(env_spec):
    env = make_env(env_spec("MountainCar-v0", max_t=3), seed=0)
    env.reset()
    steps = [env.step(np.zeros(1, np.int64)) for _ in range(3)]
    assert env.episodes.count == 1
    assert steps[-1].truncated.tolist() == [True]
    assert steps[-1].terminated.tolist() == [False]


def test_rendering_is_by_request(env_spec):
    plain = make_env(env_spec("CartPole-v1"), seed=0)
    plain.reset()
    assert plain.render() is None
    drawn = make_env(env_spec("CartPole-v1", num_envs=2, backend="envpool"), seed=0, render=True)
    drawn.reset()
    frame = drawn.render()
    assert drawn.backend == "gymnasium"
    assert frame is not None
    assert frame.ndim == 3
    assert frame.dtype == np.uint8
    drawn.close()


def test_the_loop_leaves_gymnasiums_order_check_out(env_spec):
    (wrapper,) = make_gymnasium_envs(env_spec("CartPole-v1"))
    names = []
    while isinstance(wrapper, gym.Wrapper):
        names.append(type(wrapper).__name__)
        wrapper = wrapper.env
    assert names == ["TimeLimit"]


def logged_steps(log: EpisodeLog, stats: EpisodeStats, action: list[int], ended: list[int]) -> None:
    log.actions.append(action)
    stats.add(np.zeros(stats.num_envs), ended)
    for slot in ended:
        log.begin(slot, {})


def test_the_log_keeps_only_what_running_episodes_need():
    stats = EpisodeStats(2)
    log = EpisodeLog(2, stats.running_length)
    for step in range(3000):
        ended = [0] * (step % 2 == 1) + [1] * (step % 1500 == 1499)
        logged_steps(log, stats, [step, -step], ended)
    assert len(log.actions) < 1600
    logged_steps(log, stats, [7, 8], [])
    assert log.running(0)["actions"].tolist() == [7]
    assert log.running(1)["actions"].tolist() == [8]


def test_an_endless_episode_is_not_in_the_log_until_it_ends(monkeypatch):
    monkeypatch.setattr(EpisodeLog, "LIMIT", 5)
    stats = EpisodeStats(1)
    log = EpisodeLog(1, stats.running_length)
    complete = []
    for step in range(7):
        logged_steps(log, stats, [0], [0] * (step == 6))
        complete.append(log.complete)
    assert complete == [True] * 5 + [False, True]
    assert len(log.actions) == 5
