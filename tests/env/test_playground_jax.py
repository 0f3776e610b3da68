"""The real MuJoCo Playground on JAX: three DM Control envs, compiled once for the whole file.

Two envs each, and episodes of 3 decisions, so that every ending is near.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from slm_lab.env import EnvError, make_env
from slm_lab.env.playground import TASKS
from slm_lab.env.playground_jax import PlaygroundVectorEnv, _shares_memory, as_jax
from slm_lab.env.vector import VectorEnv
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Rows, on_host

pytest.importorskip("mujoco_playground")

# JAX, flax and their kin warn about each other's deprecations while they load and compile.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DECISIONS = 3
MakeSpec = Callable[..., EnvSpec]


@pytest.fixture
def make(env_spec: MakeSpec) -> Callable[..., VectorEnv]:
    """Envs of one name and the same settings share a compiled program."""

    def build(name: str, seed: int = 0, **keys: object) -> VectorEnv:
        small = {"num_envs": 2, "max_t": DECISIONS, "backend": "playground", "dlpack": False}
        keys = {**small, **keys}
        return make_env(env_spec(f"playground/{name}", **keys), seed=seed)

    return build


def play(env: VectorEnv, action: float = 0.3, decisions: int = DECISIONS):
    """(rows handed out to act on, the last transition)."""
    starts = [on_host(env.reset()).copy()]
    for _ in range(decisions):
        step = env.step(np.full((env.num_envs, *env.spaces.action_sizes), action, np.float32))
        starts.append(on_host(step.obs).copy())
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


# Shared memory


@pytest.fixture
def shared(make: Callable[..., VectorEnv]) -> Callable[..., PlaygroundVectorEnv]:
    """CartpoleBalance with `dlpack`; where there is a card, on that."""

    def build(seed: int = 0, **keys: object) -> PlaygroundVectorEnv:
        env = make("CartpoleBalance", seed, dlpack=True, **keys)
        assert isinstance(env, PlaygroundVectorEnv)
        return env

    return build


def actions(steps: int) -> list[np.ndarray]:
    """Some of them outside of the box."""
    return list(np.random.default_rng(0).uniform(-1.5, 1.5, (steps, 2, 1)).astype(np.float32))


def same(ours: Rows, theirs: Rows) -> bool:
    return np.array_equal(on_host(ours), on_host(theirs))


def test_an_observation_is_jaxs_own_memory(shared):
    env = shared()
    assert env.spaces.on_device
    obs = env.reset()
    assert obs.data_ptr() == env._running.obs.unsafe_buffer_pointer()
    step = env.step(torch.zeros(2, 1))
    assert step.obs is step.next_obs is env.obs
    assert step.obs.data_ptr() == env._running.obs.unsafe_buffer_pointer()


def test_an_action_is_torchs_own_memory():
    action = torch.tensor([[0.5], [-0.5]])
    assert as_jax(action).unsafe_buffer_pointer() == action.data_ptr()
    assert from_dlpack(as_jax(action)).data_ptr() == action.data_ptr()


def test_the_step_gets_a_shared_action_that_the_caller_may_write_over(shared):
    env, seen = shared(), []
    env.reset()
    program = env._program

    def step(running, action, *rest):
        seen.append(action)
        return program.step(running, action, *rest)

    env._program = program._replace(step=step)
    action = torch.tensor([[3.0], [-0.5]])
    env.step(action)
    action.zero_()
    assert not isinstance(seen[0], np.ndarray)
    assert from_dlpack(seen[0]).tolist() == [[1.0], [-0.5]]


def test_tensors_and_arrays_show_the_same_episodes(shared, make):
    tensors, arrays = shared(), make("CartpoleBalance")
    assert not arrays.spaces.on_device
    assert same(tensors.reset(), arrays.reset())
    for action in actions(2 * DECISIONS + 1):
        ours, theirs = tensors.step(torch.from_numpy(action)), arrays.step(action)
        assert isinstance(theirs.obs, np.ndarray)
        for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
            assert same(getattr(ours, name), getattr(theirs, name)), name
        assert (ours.obs is ours.next_obs) == (not ours.truncated.any())
    assert list(tensors.episodes.returns) == list(arrays.episodes.returns)


def test_arrays_are_taken_as_actions_too(shared):
    env, other = shared(), shared()
    env.reset()
    other.reset()
    action = env.sample_action()
    assert isinstance(action, np.ndarray)
    assert torch.equal(env.step(action).obs, other.step(torch.from_numpy(action)).obs)


def test_a_tensor_that_is_kept_stays_what_it_was(shared):
    """Memory goes back to JAX only when nobody holds it any more."""
    env = shared()
    kept = [env.reset()]
    for action in actions(20):
        step = env.step(torch.from_numpy(action))
        kept += [step.obs, step.next_obs]
        if len(kept) == 3:
            copies = [rows.clone() for rows in kept]
    assert all(torch.equal(*pair) for pair in zip(copies, kept, strict=False))
    assert all(rows._version == 0 for rows in kept)


@pytest.mark.parametrize("was_shared", [True, False])
def test_saved_in_mid_episode_it_goes_on_in_shared_memory(shared, make, was_shared):
    env, resumed = make("CartpoleBalance", dlpack=was_shared), shared(seed=5)
    play(env, decisions=2)
    saved = env.state_dict()
    assert isinstance(saved["obs"], np.ndarray)
    resumed.load_state_dict(saved)
    assert same(env.obs, resumed.obs)
    for action in actions(4):
        expected, found = env.step(action), resumed.step(action)
        assert same(expected.obs, found.obs)
        assert same(expected.next_obs, found.next_obs)
    assert list(env.episodes.returns) == list(resumed.episodes.returns)


def test_sharing_takes_one_compiled_step(shared):
    """What DLPack brings is bound to a device, what NumPy brings is not: a mix compiles anew."""
    env, resumed = shared(num_envs=1), shared(num_envs=1)  # of a size not compiled so far
    before = env._program.step._cache_size()
    play(env, decisions=DECISIONS + 2)
    resumed.load_state_dict(env.state_dict())
    resumed.step(torch.zeros(1, 1))
    assert env._program.step._cache_size() == before + 1


def test_frames_are_stacked_on_the_host(make):
    env = make("CartpoleBalance", dlpack=True, frame_stack=2, frame_op="concat")
    assert not env.spaces.on_device
    starts, step = play(env)
    assert isinstance(step.obs, np.ndarray)
    assert np.array_equal(step.next_obs[:, :5], starts[-2][:, 5:])


@pytest.mark.parametrize(
    ("asked", "platform", "torch_sees_it", "expected"),
    [
        (None, "cpu", False, False),
        (None, "cpu", True, False),
        (True, "cpu", False, True),
        (None, "gpu", True, True),
        (False, "gpu", True, False),
        (None, "gpu", False, False),
    ],
)
def test_sharing_is_the_default_where_it_saves_copies(
    monkeypatch, asked, platform, torch_sees_it, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: torch_sees_it)
    assert _shares_memory(asked, platform) is expected


def test_sharing_with_a_torch_that_sees_no_card_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvError, match=r"env.dlpack: found true"):
        _shares_memory(True, "gpu")
