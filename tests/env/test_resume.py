"""A saved env, loaded into a new one, goes on bit for bit."""

import json

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env import make_env
from slm_lab.env.episode_log import EpisodeLog
from slm_lab.env.vector import GymnasiumVectorEnv


def play(env, steps):
    """Everything random steps give, copied."""
    trace = []
    for _ in range(steps):
        s = env.step(env.sample_action())
        trace.append([a.copy() for a in (s.obs, s.next_obs, s.reward, s.terminated, s.truncated)])
    return trace


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def through_json(state):
    """What a checkpoint does: arrays aside, everything must survive JSON."""
    if isinstance(state, dict):
        return {key: through_json(value) for key, value in state.items()}
    if isinstance(state, list) and state and isinstance(state[0], dict):
        return [through_json(value) for value in state]
    return state if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("CartPole-v1", 137),
        ("CartPole-v1", 3),
        ("Pendulum-v1", 250),
        ("probe/RepeatPrevious-v0", 21),
        ("LunarLander-v3", 150),
        ("HalfCheetah-v5", 60),
    ],
)
def test_loading_continues_every_running_episode(env_spec, name, steps):
    spec = env_spec(name, num_envs=3)
    env = make_env(spec, seed=3)
    env.reset()
    play(env, steps)
    state = through_json(env.state_dict())
    expected = play(env, 60)

    resumed = make_env(spec, seed=3)
    resumed.load_state_dict(state)
    assert resumed.restorable
    np.testing.assert_array_equal(resumed.obs, state["obs"])
    assert_same(play(resumed, 60), expected)
    assert resumed.episodes.state_dict() == env.episodes.state_dict()


def test_a_resumed_env_can_be_saved_again(env_spec):
    """Actions from before the first save must still be there for the second."""
    spec = env_spec("Pendulum-v1", num_envs=2)
    env = make_env(spec, seed=0)
    env.reset()
    play(env, 30)
    second = make_env(spec, seed=0)
    second.load_state_dict(env.state_dict())
    play(second, 30)
    third = make_env(spec, seed=0)
    third.load_state_dict(second.state_dict())
    play(env, 30)
    assert_same(play(third, 200), play(env, 200))


def test_an_env_may_load_over_a_running_one(env_spec):
    env = make_env(env_spec("CartPole-v1", num_envs=2), seed=0)
    env.reset()
    play(env, 40)
    state = env.state_dict()
    expected = play(env, 40)
    env.load_state_dict(state)
    assert_same(play(env, 40), expected)


def test_stacked_frames_are_restored_too(env_spec):
    spec = env_spec("CartPole-v1", num_envs=2, frame_stack=3)
    env, resumed = make_env(spec, seed=0), make_env(spec, seed=0)
    env.reset()
    play(env, 40)
    resumed.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(resumed.obs, env.obs)
    assert_same(play(resumed, 40), play(env, 40))


def test_an_env_saved_before_its_first_reset_starts_as_it_would_have(env_spec):
    spec = env_spec("CartPole-v1", num_envs=2)
    env, resumed = make_env(spec, seed=5), make_env(spec, seed=5)
    resumed.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(resumed.reset(), env.reset())


class Unrepeatable(gym.Env):
    """Draws from a generator nobody seeds."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.rng.random(1), {}

    def step(self, action):
        return self.rng.random(1), 1.0, False, False, {}


def test_an_env_that_cannot_be_replayed_says_so_and_begins_anew(warnings_logged):
    env, resumed = (GymnasiumVectorEnv([Unrepeatable()], seed=0) for _ in range(2))
    env.reset()
    play(env, 5)
    resumed.load_state_dict(env.state_dict())
    assert not resumed.restorable
    assert "could not be restored" in warnings_logged[0]
    assert resumed.episodes.running_length() == 0
    play(resumed, 5)


def test_an_episode_too_long_to_log_begins_anew(env_spec, monkeypatch, warnings_logged):
    monkeypatch.setattr(EpisodeLog, "LIMIT", 50)
    env, resumed = (make_env(env_spec("Pendulum-v1"), seed=0) for _ in range(2))
    env.reset()
    play(env, 60)
    assert not env.restorable
    resumed.load_state_dict(env.state_dict())
    assert len(warnings_logged) == 1
    assert resumed.episodes.running_length() == 0


def test_another_number_of_envs_is_refused(env_spec):
    env = make_env(env_spec("CartPole-v1", num_envs=2), seed=0)
    env.reset()
    with pytest.raises(ValueError, match=r"env.num_envs: found 3, .* holds 2 envs"):
        make_env(env_spec("CartPole-v1", num_envs=3), seed=0).load_state_dict(env.state_dict())


def test_envpool_carries_its_statistics_on_and_begins_new_episodes(env_spec):
    spec = env_spec("CartPole-v1", num_envs=2, backend="envpool")
    env, resumed = make_env(spec, seed=0), make_env(spec, seed=0)
    env.reset()
    play(env, 100)
    assert not env.restorable
    resumed.load_state_dict(through_json(env.state_dict()))
    assert resumed.episodes.count == env.episodes.count > 0
    assert resumed.episodes.running_length() == 0
    assert (np.abs(resumed.obs) <= 0.05).all()
