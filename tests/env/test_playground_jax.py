"""The real MuJoCo Playground on JAX: three DM Control envs, compiled once for the whole file.

Two envs each, and episodes of 3 decisions, so that every ending is near.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from slm_lab.env import EnvError, make_env
from slm_lab.env.playground import TASKS
from slm_lab.env.vector import VectorEnv
from slm_lab.spec.env import EnvSpec

pytest.importorskip("mujoco_playground")

# JAX, flax and their kin warn about each other's deprecations while they load and compile.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DECISIONS = 3
MakeSpec = Callable[..., EnvSpec]


@pytest.fixture
def make(env_spec: MakeSpec) -> Callable[..., VectorEnv]:
    """Envs of one name and the same settings share a compiled program."""

    def build(name: str, seed: int = 0, **keys: object) -> VectorEnv:
        keys = {"num_envs": 2, "max_t": DECISIONS, "backend": "playground", **keys}
        return make_env(env_spec(f"playground/{name}", **keys), seed=seed)

    return build


def play(env: VectorEnv, action: float = 0.3, decisions: int = DECISIONS):
    """(rows handed out to act on, the last transition)."""
    starts = [env.reset().copy()]
    for _ in range(decisions):
        step = env.step(np.full((env.num_envs, *env.spaces.action_sizes), action, np.float32))
        starts.append(step.obs.copy())
    return starts, step


@pytest.mark.parametrize(
    ("name", "obs"), [("CartpoleBalance", 5), ("PendulumSwingup", 3), ("PointMass", 4)]
)
def test_an_env_steps_ends_and_begins_anew(make, name, obs):
    env = make(name)
    assert (env.backend, env.spaces.obs_shape) == ("playground", (obs,))
    starts, step = play(env)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert np.isfinite(step.reward).all()
    assert list(env.episodes.lengths) == [DECISIONS, DECISIONS]
    assert not np.array_equal(step.obs, step.next_obs)
    assert not np.array_equal(step.obs, starts[0])  # a full reset: another random state
    assert not np.array_equal(starts[0][0], starts[0][1])  # each env its own


def test_the_final_observation_is_the_one_before_the_reset(make):
    """Playground's own wrapper would show the next episode's first observation instead."""
    _, cut = play(make("CartpoleBalance"))
    _, goes_on = play(make("CartpoleBalance", max_t=100))
    assert cut.truncated.all()
    assert not goes_on.truncated.any()
    assert np.array_equal(cut.next_obs, goes_on.next_obs)
    assert not np.array_equal(cut.obs, goes_on.obs)


def test_the_same_seed_repeats_and_another_does_not(make):
    first, second, other = (play(make("CartpoleBalance", seed))[0] for seed in (0, 0, 1))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_saved_env_goes_on_bit_for_bit(make):
    env, resumed = make("CartpoleBalance"), make("CartpoleBalance", seed=5)
    assert env.restorable
    play(env, decisions=2)  # in mid-episode
    resumed.load_state_dict(env.state_dict())
    assert np.array_equal(env.obs, resumed.obs)
    for _ in range(4):
        action = env.sample_action()
        assert np.array_equal(action, resumed.sample_action())
        expected, found = env.step(action), resumed.step(action)
        assert np.array_equal(expected.obs, found.obs)
        assert np.array_equal(expected.next_obs, found.next_obs)
        assert np.array_equal(expected.truncated, found.truncated)
    assert list(env.episodes.returns) == list(resumed.episodes.returns)


def test_another_number_of_envs_cannot_be_resumed(make):
    env = make("CartpoleBalance")
    env.reset()
    saved = env.state_dict()
    saved["running"] = [leaf[:1] for leaf in saved["running"]]  # as of one env
    with pytest.raises(EnvError, match=r"env.num_envs"):
        make("CartpoleBalance").load_state_dict(saved)


def test_without_full_resets_every_episode_begins_as_the_first(make):
    starts, step = play(make("CartpoleBalance", full_reset=False))
    assert step.truncated.all()
    assert np.allclose(step.obs, starts[0])


def test_a_repeated_action_is_that_many_steps(make):
    once, four = make("PendulumSwingup", action_repeat=1, max_t=8), make("PendulumSwingup")
    assert np.array_equal(once.reset(), four.reset())
    action = np.full((2, 1), 0.7, np.float32)
    total = np.zeros(2)
    for _ in range(4):
        single = once.step(action)
        total += single.reward
    repeated = four.step(action)
    assert np.allclose(single.next_obs, repeated.next_obs, atol=1e-5)
    assert np.allclose(total, repeated.reward)


def test_a_wrong_key_or_impl_is_named(make):
    with pytest.raises(EnvError, match=r"env.impl: found `cuda`"):
        make("CartpoleBalance", impl="cuda")
    with pytest.raises(EnvError, match=r"env.kwargs: MuJoCo Playground cannot make"):
        make("CartpoleBalance", gravity_well=3)


def test_a_device_that_is_not_there_is_named(make):
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("this machine has one")
    with pytest.raises(EnvError, match=r"env.device: found `cuda`"):
        make("CartpoleBalance", device="cuda")


def test_models_that_cannot_be_downloaded_say_so(make, tmp_path, monkeypatch):
    """git is pointed at a folder that does not exist, as good as no network."""
    from mujoco_playground._src import mjx_env

    monkeypatch.setattr(mjx_env, "EXTERNAL_DEPS_PATH", tmp_path / "deps")
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", tmp_path / "deps" / "mujoco_menagerie")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{tmp_path}/nowhere/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/")
    with pytest.raises(EnvError, match=r"downloads from GitHub .* env.backend to `envpool`"):
        make("Go1Getup")
    gc.collect()  # Playground leaves git's pipes open: let them be found here, not by another test


def test_our_table_agrees_with_playgrounds_registry():
    """Names and episode lengths; action repeats where ours is not a choice of our own."""
    from mujoco_playground import registry

    assert set(registry.ALL_ENVS) >= set(TASKS)
    for name, task in TASKS.items():
        config = registry.get_default_config(name)
        assert task.episode_length == config.episode_length, name
        if name != "PendulumSwingup":
            assert task.action_repeat == config.action_repeat, name
