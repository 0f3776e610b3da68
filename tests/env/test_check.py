import time
import warnings

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


# An env that cannot be played: one line with the fix, and nothing after it


class Sound(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 5, False, {}


class WrongShape(Sound):
    def step(self, action):
        return (np.zeros(3, np.float32), *super().step(action)[1:])


class ResetWithoutSeed(Sound):
    def reset(self):  # type: ignore[override]
        return np.zeros(2, np.float32)


class ResetWithoutInfo(Sound):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class StepOfFour(Sound):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}


class Raises(Sound):
    def step(self, action):
        return dict[str, int]()["speed"] if self.t == 3 else super().step(action)


class RaisesInside(Sound):
    def __init__(self):
        raise FileNotFoundError("map.xml")


class NoReward(Sound):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, None, *rest)


class NoSpace(Sound):
    observation_space = None  # type: ignore[assignment]


class Ragged(Sound):
    def reset(self, *, seed=None, options=None):
        return [[1.0], [1.0, 2.0]], {}


class WrongType(Sound):
    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs.astype(np.float64), info


class OldGym:
    def reset(self):
        return [0.0, 0.0]


class SlowReset(Sound):
    def reset(self, *, seed=None, options=None):
        time.sleep(0.6)
        return super().reset(seed=seed)


class Hangs(Sound):
    def step(self, action):
        time.sleep(60)


class Warns(Sound):
    def step(self, action):
        warnings.warn(f"the motor is {self.t} degrees too hot", stacklevel=2)
        return super().step(action)


@pytest.fixture
def check():
    """Check an env class."""

    def check_class(env, **options):
        gym.register("Unplayable-v0", entry_point=env)
        return check_env("Unplayable-v0", frames=200, **options)

    yield check_class
    gym.registry.pop("Unplayable-v0", None)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (WrongShape, "step 1: observation has the shape (3,), observation_space says (2,)."),
        (ResetWithoutSeed, "reset: takes no seed (ResetWithoutSeed.reset() got an unexpected"),
        (ResetWithoutInfo, "reset: gives an array of shape (2,), as in the old gym; expected (obs"),
        (StepOfFour, "step: gives a tuple of 4; expected 5 values. Return `obs, reward, term"),
        (Raises, "step 4: raised KeyError: 'speed' (test_check.py:"),
        (NoReward, "reward: step gives `None` (NoneType); expected a number."),
        (NoSpace, "observation_space: found `None` (NoneType); expected one of gymnasium.spaces"),
        (Ragged, "reset: observation is `[[1.0], [1.0, 2.0]]` (list), no array of numbers;"),
    ],
)
def test_an_env_that_cannot_be_played_is_one_line_with_the_fix(check, env, says):
    report = check(env)
    (problem,) = report.problems
    assert problem.startswith(says)
    assert "\n" not in problem
    assert report.format().splitlines()[-2:] == [f"problem: {problem}", "1 problem found"]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            RaisesInside,
            r"`Unplayable-v0` cannot be made: it raised FileNotFoundError: map.xml \(test_c",
        ),
        (OldGym, "`Unplayable-v0` is no gymnasium.Env, perhaps one of the old package gym"),
    ],
)
def test_an_env_that_raises_while_it_is_made_is_an_error_in_a_line(check, env, says):
    with pytest.raises(EnvError, match=says):
        check(env)


def test_an_observation_of_another_type_than_its_space_is_told_with_the_fix(check):
    (problem,) = check(WrongType).problems
    assert problem.endswith("It is float64: return np.array(..., np.float32), as the space says.")


def test_a_fault_of_a_number_is_told_with_its_place(env_spec):
    report = check_env(env_spec("Broken-v0", num_envs=2, fault="nan"), frames=200)
    (problem,) = [each for each in report.problems if each.startswith("observations: NaN")]
    assert "in 20 of 100 steps, first observation[0] = nan in env 0 at step 3. A net" in problem


def test_a_slow_reset_is_noted(check):
    (note, cut) = check(SlowReset, seconds=2.0).notes
    assert note.startswith("reset: takes 0.6 s, for which the other envs of the batch wait. Load")
    assert cut.startswith("time: stopped after 2 s, in which it took ")


def test_an_env_that_hangs_is_left_when_the_time_is_over(check):
    report = check(Hangs, seconds=0.5)
    (problem,) = report.problems
    assert problem.startswith("step 1: had not returned after 0.")


def test_what_was_not_checked_is_told_and_is_no_problem(check):
    class SlowStep(Sound):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    report = check(SlowStep, seconds=1.0)
    assert report.problems == ()
    assert "not checked: " in report.notes[-1]
    assert "resume. --seconds gives more." in report.notes[-1]
    assert report.format().endswith("ok, as far as it was checked")


def test_warnings_of_one_kind_are_told_once(check):
    notes = check(Warns).notes
    assert [note for note in notes if "too hot" in note] == [
        "gymnasium: the motor is 0 degrees too hot"
    ]
