"""Envs in worker processes give what they give in this process, and end with it."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from slm_lab.env import EnvError, VectorEnv, check_env, make_env
from slm_lab.env.check import measure_random_policy
from slm_lab.env.subprocess import SubprocessVectorEnv, WorkerError
from slm_lab.env.vector import GymnasiumVectorEnv
from slm_lab.spec.env import EnvSpec

MODULE = '''
import os

import gymnasium as gym
import numpy as np

PART = gym.spaces.Dict({"at": gym.spaces.Box(-1, 1, (2,)), "on": gym.spaces.Discrete(3)})
SPACES = {
    "image": (gym.spaces.Box(0, 255, (6, 5, 3), np.uint8), gym.spaces.Discrete(3, start=-1)),
    "dict": (PART, gym.spaces.MultiDiscrete([2, 3], start=[1, 0])),
    "bits": (gym.spaces.Box(-1, 1, (2,), np.float64), gym.spaces.MultiBinary([2, 2])),
    "box": (gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-3, 5, (2, 2), np.float64)),
}


class Drawing(gym.Env):
    """Draws observations and endings from its generator; the reward shows the action it got."""

    def __init__(self, kind="box", fault=None, at=5):
        self.observation_space, self.action_space = SPACES[kind]
        self.fault, self.at, self.t = fault, at, 0
        if fault == "constructor":
            raise RuntimeError("no display")

    def draw(self):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        obs = self.observation_space.sample()
        return obs + np.float32(9) if self.fault == "bounds" else obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action):
        self.t += 1
        if self.t == self.at and self.fault == "raise":
            raise RuntimeError("the pole broke")
        if self.t == self.at and self.fault == "exit":
            raise SystemExit(3)
        seen = float(np.sum(np.asarray(action) * np.pi))
        ends = self.np_random.random(2) < 0.1
        return self.draw(), seen, bool(ends[0]), bool(ends[1]), {}


class Unseeded(Drawing):
    def draw(self):
        return np.frombuffer(os.urandom(8), np.uint32) / np.float32(2**32)


gym.register("Drawing-v0", Drawing)
gym.register("Unseeded-v0", Unseeded)
'''
DRAWING, UNSEEDED = "drawing_envs:Drawing-v0", "drawing_envs:Unseeded-v0"
STEPS = 60


@pytest.fixture(scope="module", autouse=True)
def drawing_envs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("drawing")
    (folder / "drawing_envs.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    for env_id in ("Drawing-v0", "Unseeded-v0"):
        gym.registry.pop(env_id, None)


@pytest.fixture
def make(env_spec: Callable[..., EnvSpec]) -> Iterator[Callable[..., VectorEnv]]:
    """Makes three envs in two worker processes, if not told otherwise."""
    made = []

    def make_one(name: str = DRAWING, seed: int = 3, **keys: Any) -> VectorEnv:
        keys = {"num_envs": 3, "num_threads": 2, "backend": "subprocess"} | keys
        made.append(make_env(env_spec(name, **keys), seed=seed))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def here(make: Callable[..., VectorEnv], *name: str, **keys: Any) -> VectorEnv:
    """The same env, in this process."""
    return make(*name, **keys, backend="gymnasium", num_threads=None)


def play(env: VectorEnv, steps: int = STEPS) -> list[list[np.ndarray]]:
    """Everything that random steps give, copied."""
    return [[np.array(a) for a in astuple(env.step(env.sample_action()))] for _ in range(steps)]


def assert_same(left: list[list[np.ndarray]], right: list[list[np.ndarray]]) -> None:
    for ours, theirs in zip(left, right, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def workers_of(env: VectorEnv) -> list[psutil.Process]:
    assert isinstance(env, SubprocessVectorEnv)
    return [psutil.Process(worker.process.pid) for worker in env._workers]


# Numbers


@pytest.mark.parametrize("kind", ["image", "dict", "bits", "box"])
def test_the_same_seed_gives_what_it_gives_in_this_process(make, kind):
    env, inside = make(kind=kind), here(make, kind=kind)
    assert env.spaces == inside.spaces
    np.testing.assert_array_equal(env.reset(), inside.reset())
    assert_same(play(env), play(inside))
    np.testing.assert_array_equal(env.reset(), inside.reset())
    assert_same(play(env), play(inside))
    assert env.episodes.state_dict() == inside.episodes.state_dict()
    assert env.episodes.count > 10


@pytest.mark.parametrize("workers", [1, 3, 9])
def test_the_number_of_workers_changes_no_number(make, workers):
    env, inside = make("CartPole-v1", num_threads=workers), here(make, "CartPole-v1")
    assert len(workers_of(env)) == min(workers, 3)
    np.testing.assert_array_equal(env.reset(), inside.reset())
    assert_same(play(env), play(inside))


def test_frames_are_stacked_as_in_this_process(make):
    keys = {"kind": "image", "frame_stack": 3}
    env, inside = make(**keys), here(make, **keys)
    np.testing.assert_array_equal(env.reset(), inside.reset())
    assert_same(play(env), play(inside))
    np.testing.assert_array_equal(env.obs, inside.obs)


def test_the_last_obs_stays_valid_through_the_next_step(make):
    env = make(num_threads=1)
    obs = env.reset()
    for _ in range(STEPS):
        before = obs.copy()
        step = env.step(env.sample_action())
        np.testing.assert_array_equal(obs, before)
        assert not np.shares_memory(obs, step.obs)
        assert (step.next_obs is step.obs) == (not step.episode_end.any())
        obs = step.obs
        assert env.obs is obs


def test_there_is_a_worker_for_each_core_but_none_without_an_env(env_spec):
    spec = env_spec("CartPole-v1", num_envs=2, backend="subprocess")
    for cores, expected in ((1, 1), (8, 2)):
        env = make_env(spec, seed=0, cores=cores)
        assert len(workers_of(env)) == expected
        env.close()


def test_a_worker_imports_no_torch():
    """Which would take it a second and 200 MB."""
    code = "import sys, slm_lab.env.subprocess; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Saved states


@pytest.mark.parametrize("name", [DRAWING, "Pendulum-v1"])
def test_a_saved_state_is_that_of_this_process_and_goes_on_in_either(make, name):
    env, inside = make(name), here(make, name)
    env.reset(), inside.reset()
    play(env), play(inside)
    states = [env.state_dict(), inside.state_dict()]
    np.testing.assert_equal(states[0], states[1])
    expected = play(inside)
    others = make(name), here(make, name), env  # the last one over a running env
    for other, state in zip(others, (*states, states[0]), strict=True):
        other.load_state_dict(state)
        assert other.restorable
        assert_same(play(other), expected)


def test_an_env_saved_before_its_first_reset_starts_as_it_would_have(make):
    env, resumed = here(make), make(num_threads=1)
    resumed.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(resumed.reset(), env.reset())


def test_what_cannot_be_replayed_begins_anew_with_the_same_warning(make, warnings_logged):
    endings = []
    for keys in ({"num_threads": 2}, {"backend": "gymnasium"}):
        env, resumed = here(make, UNSEEDED), make(UNSEEDED, **keys)
        env.reset()
        play(env)
        resumed.load_state_dict(env.state_dict())
        assert resumed.episodes.running_length() == 0
        assert resumed.episodes.count == env.episodes.count
        assert resumed.state_dict()["running"] == []
        endings.append(resumed.restorable)
    assert endings == [False, False]
    assert len(warnings_logged) == 2
    assert len(set(warnings_logged)) == 1


def test_another_number_of_envs_is_refused(make):
    env = here(make, num_envs=2)
    with pytest.raises(EnvError, match=r"env.num_envs: found 3, .* holds 2 envs"):
        make(num_threads=1).load_state_dict(env.state_dict())


# Errors and ends


def test_an_env_that_raises_is_named_with_its_worker_and_all_workers_end(make):
    env = make(fault="raise", at=5)
    env.reset()
    workers = workers_of(env)
    play(env, 4)
    with pytest.raises(WorkerError) as raised:
        play(env, 1)
    assert str(raised.value) == (
        "env.name: worker 0 of 2, with envs 0 to 1 of `drawing_envs:Drawing-v0`, failed: "
        "RuntimeError: the pole broke"
    )
    assert 'raise RuntimeError("the pole broke")' in str(raised.value.__cause__)
    assert raised.value.exit_code == 1
    assert not any(worker.is_running() for worker in workers)
    with pytest.raises(EnvError, match="the workers of this env were closed"):
        env.step(env.sample_action())


def test_a_constructor_that_raises_is_an_error_of_its_worker(make):
    with pytest.raises(WorkerError, match=r"worker 0 of 1, .* failed: RuntimeError: no display"):
        make(fault="constructor", num_threads=1)


def test_a_wrong_argument_is_refused_in_the_words_of_this_process(make):
    messages = []
    for backend in ("subprocess", "gymnasium"):
        with pytest.raises(EnvError, match=r"env.kwargs: .*gravity") as raised:
            make("CartPole-v1", gravity=3, num_threads=1, backend=backend)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_killed_worker_is_named_and_the_others_end(make):
    env = make()
    env.reset()
    workers = workers_of(env)
    workers[1].kill()
    with pytest.raises(WorkerError) as raised:
        play(env)
    assert str(raised.value) == (
        "env.backend: worker 1 of 2, with env 2 of `drawing_envs:Drawing-v0`, was killed by "
        "SIGKILL, as processes are when the memory is full"
    )
    assert not any(worker.is_running() for worker in workers)


def test_an_env_that_exits_is_named(make):
    env = make(fault="exit", num_threads=1)
    env.reset()
    with pytest.raises(WorkerError, match=r"worker 0 of 1.* ended with exit code 3"):
        play(env)


def test_a_signal_to_stop_is_for_the_session_to_act_on(make):
    """Ctrl-C reaches every process of a terminal; the session still has to save its envs."""
    env = make(num_threads=1)
    env.reset()
    for worker in workers_of(env):
        worker.send_signal(signal.SIGINT)
        worker.send_signal(signal.SIGTERM)
    play(env)
    assert len(env.state_dict()["running"]) == 3


def test_workers_end_with_an_env_that_is_dropped(make, env_spec):
    env = make_env(env_spec("CartPole-v1", backend="subprocess"), seed=0)
    workers = workers_of(env)
    del env
    gc.collect()
    assert psutil.wait_procs(workers, 5)[1] == []


SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
from slm_lab.env import make_env
from slm_lab.spec import EnvSpec

class Counting(gym.Env):
    observation_space = gym.spaces.Box(0, 99, (1,))
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        if len(sys.argv) > 1:
            import time
            time.sleep(600)
        return np.full(1, START + action, np.float32), 0.0, False, False, {}

START = 40
gym.register("Counting-v0", ENTRY)
tree = {"name": "Counting-v0", "num_envs": 2, "max_frame": 9, "backend": "subprocess"}
env = make_env(EnvSpec.model_validate(tree | {"num_threads": 2}), seed=0)
env.reset()
print([worker.process.pid for worker in env._workers], flush=True)
print(env.step(np.array([1, 0])).obs.tolist())
"""


def script(tmp_path: Path, entry: str, *arguments: str) -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT.replace("ENTRY", entry))
    return [sys.executable, str(tmp_path / "train.py"), *arguments]


@pytest.mark.parametrize("entry", ["lambda **keys: Counting(**keys)", "'__main__:Counting'"])
def test_a_script_may_register_its_own_env_and_needs_no_guard(tmp_path, entry):
    command = script(tmp_path, entry)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["[[41.0], [40.0]]"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_workers_end_with_a_killed_session_even_within_a_step(tmp_path):
    command = script(tmp_path, "Counting", "slow")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        pids = json.loads(session.stdout.readline())
        workers = [psutil.Process(pid) for pid in pids]
        session.kill()
    assert psutil.wait_procs(workers, 10)[1] == []


# What is refused


class Unsendable(gym.Env[Any, Any]):
    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)


def test_an_env_that_cannot_be_sent_is_refused(make):
    lines = (line for line in "ab")
    gym.register("Unsendable-v0", lambda **_: (Unsendable(), lines)[0])
    try:
        with pytest.raises(EnvError, match=r"env.backend: .*`Unsendable-v0`.* `my_envs:Unsendable"):
            make("Unsendable-v0")
    finally:
        gym.registry.pop("Unsendable-v0")


def test_memory_that_is_too_small_is_an_error_before_the_first_step(make, monkeypatch):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EnvError, match=r"env.num_envs: .* bytes of shared memory.*--shm-size"):
        make("CartPole-v1", num_threads=1)


def test_an_env_of_playground_is_refused(make):
    with pytest.raises(EnvError, match=r"env.backend: `subprocess` cannot play `playground/Cheet"):
        make("playground/CheetahRun")


# In the rest of the lab


def test_an_env_that_is_drawn_stays_in_this_process(env_spec):
    spec = env_spec("CartPole-v1", num_envs=2, backend="subprocess")
    env = make_env(spec, seed=0, render=True)
    env.reset()
    assert isinstance(env, GymnasiumVectorEnv)
    frame = env.render()
    assert frame is not None
    assert frame.ndim == 3
    env.close()


def test_the_check_of_an_env_steps_it_in_workers_and_looks_at_one_here(env_spec):
    keys = {"num_envs": 2, "num_threads": 1, "backend": "subprocess", "fault": "bounds"}
    report = check_env(env_spec(DRAWING, **keys), frames=100)
    assert "Drawing-v0 x 2 (subprocess)" in report.format()
    assert report.restorable
    assert report.problems[-1].startswith("observations: outside the bounds")


def test_the_score_of_random_actions_is_that_of_this_process(env_spec):
    scores = [
        measure_random_policy(env_spec("CartPole-v1", num_threads=2, backend=backend), episodes=10)
        for backend in ("subprocess", "gymnasium")
    ]
    assert scores[0] == scores[1]
