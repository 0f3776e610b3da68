import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env import EnvError, check_env


class Broken(gym.Env):
    """One fault at a time."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault):
        self.fault = fault
        self.unseeded = np.random.default_rng()
        self.t = self.episode = 0

    def observe(self):
        obs = self.np_random.uniform(-1, 1, 2)
        if self.fault == "bounds":
            obs[1] = 3.0
        if self.fault == "nan" and self.t == 3:
            obs[0] = np.nan
        if self.fault == "unseeded":
            obs = self.unseeded.uniform(-1, 1, 2)
        if self.fault == "leak":
            obs[0] = min(1.0, self.episode / 1000)
        return obs.astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        reward = np.inf if self.fault == "reward" and self.t == 2 else 1.0
        return self.observe(), reward, self.t == 5 and self.fault != "endless", False, {}


@pytest.fixture(autouse=True)
def registered():
    gym.register("Broken-v0", entry_point=lambda **kwargs: Broken(**kwargs))
    yield
    gym.registry.pop("Broken-v0")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("bounds", "observations: outside the bounds of observation_space at [(1,)]"),
        ("nan", "observations: NaN or infinite"),
        ("reward", "reward: NaN or infinite"),
        ("endless", "episodes: none ended in 100 steps of 2 envs"),
        ("unseeded", "seed: two envs with the same seed and actions diverge"),
        ("leak", "resume: a saved episode, replayed, gives other observations"),
    ],
)
def test_every_fault_is_found(env_spec, fault, expected):
    report = check_env(env_spec("Broken-v0", num_envs=2, fault=fault), frames=200)
    assert not report.ok
    assert any(problem.startswith(expected) for problem in report.problems), report.format()


def test_a_sound_env_has_no_problems(env_spec):
    report = check_env(env_spec("Broken-v0", num_envs=2, fault=None), frames=200)
    assert report.ok, report.format()
    assert report.restorable
    assert (report.frames, report.episodes, report.mean_length) == (200, 40, 5)
    assert report.mean_return == 5


def test_an_env_is_checked_by_id_and_the_report_reads_well():
    text = check_env("CartPole-v1", frames=400).format()
    assert "CartPole-v1 x 4 (gymnasium)" in text
    assert "(4,) float32" in text
    assert "discrete (2,)" in text
    assert "frames/s" in text
    assert text.endswith("ok")


def test_envpool_is_checked_through_its_own_back_end(env_spec):
    report = check_env(env_spec("CartPole-v1", num_envs=2, backend="envpool"), frames=400)
    assert report.ok, report.format()
    assert (report.backend, report.restorable) == ("envpool", False)


def test_an_env_that_cannot_be_made_is_an_error():
    with pytest.raises(EnvError, match="not registered"):
        check_env("Nothing-v0")
