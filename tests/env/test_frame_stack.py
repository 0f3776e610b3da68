import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env import EnvError, make_env
from slm_lab.env.vector import GymnasiumVectorEnv
from slm_lab.env.wrapper import FrameStack
from tests.lives import LosesLives

ACTION = np.zeros(2, np.int64)


def test_frames_are_oldest_first_and_padded_with_the_first(scripted):
    env = FrameStack(scripted, 3, "stack")
    assert env.spaces.obs_shape == (3, 2)
    assert env.reset()[0].tolist() == [[0, 0], [0, 0], [0, 0]]
    assert env.step(ACTION).obs[0].tolist() == [[0, 0], [0, 0], [0, 1]]
    assert env.step(ACTION).obs[0].tolist() == [[0, 0], [0, 1], [0, 2]]


def test_a_final_obs_keeps_the_history_of_its_own_episode(scripted):
    env = FrameStack(scripted, 3, "stack")
    env.reset()
    env.step(ACTION)
    env.step(ACTION)
    ending = env.step(ACTION)  # env 0 terminates, env 1 goes on
    assert ending.next_obs[0].tolist() == [[0, 1], [0, 2], [0, 3]]
    assert ending.obs[0].tolist() == [[1, 0], [1, 0], [1, 0]]
    assert ending.next_obs[1].tolist() == ending.obs[1].tolist() == [[0, 1], [0, 2], [0, 3]]
    after = env.step(ACTION)  # now env 1 is truncated
    assert after.next_obs[0].tolist() == after.obs[0].tolist() == [[1, 0], [1, 0], [1, 1]]
    assert after.next_obs[1].tolist() == [[0, 2], [0, 3], [0, 4]]
    assert after.obs[1].tolist() == [[1, 0], [1, 0], [1, 0]]


def test_a_stack_goes_on_over_a_lost_life(scripted):
    env = FrameStack(LosesLives(scripted, steps=3), 3, "stack")
    env.reset()
    env.step(ACTION)
    env.step(ACTION)
    both = env.step(ACTION)  # the game of env 0 is over; env 1 loses a life and goes on
    assert both.terminated.tolist() == [True, True]
    assert both.obs[0].tolist() == [[1, 0], [1, 0], [1, 0]]
    assert both.obs[1].tolist() == [[0, 1], [0, 2], [0, 3]]


def test_concat_joins_vectors_end_to_end(scripted):
    env = FrameStack(scripted, 2, "concat")
    assert env.spaces.obs_shape == (4,)
    env.reset()
    env.step(ACTION)
    assert env.step(ACTION).obs[0].tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("op", ["stack", "concat"])
def test_images_stack_along_their_channels(op):
    class Picture(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (2, 2, 3), np.uint8)
        action_space = gym.spaces.Discrete(2)
        shade = 0

        def picture(self):
            self.shade += 1
            return np.full((2, 2, 3), self.shade, np.uint8)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.picture(), {}

        def step(self, action):
            return self.picture(), 0.0, False, False, {}

    env = FrameStack(GymnasiumVectorEnv([Picture()], seed=0), 2, op)
    assert env.spaces.obs_shape == (6, 2, 2)
    assert env.spaces.obs_dtype == "uint8"
    env.reset()
    assert env.step(np.zeros(1, np.int64)).obs[0, :, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]


def test_the_last_obs_stays_valid_through_the_next_step(scripted):
    env = FrameStack(scripted, 2, "concat")
    obs = env.reset()
    for _ in range(9):
        before = obs.copy()
        step = env.step(ACTION)
        np.testing.assert_array_equal(obs, before)
        assert env.obs is step.obs
        obs = env.obs


def test_the_spec_asks_for_frames(env_spec):
    env = make_env(env_spec("CartPole-v1", num_envs=2, frame_stack=4, frame_op="concat"), seed=0)
    assert env.spaces.obs_shape == (16,)
    assert env.reset().shape == (2, 16)


def test_one_frame_is_no_stack(scripted):
    with pytest.raises(EnvError, match=r"env.frame_stack: found 1"):
        FrameStack(scripted, 1, "stack")
