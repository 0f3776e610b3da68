import sys

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env import EnvError, make_env
from slm_lab.env.make import FASTER_ON_ENVPOOL, choose_backend


def test_one_env_is_a_batch_of_one(env_spec):
    env = make_env(env_spec("CartPole-v1"), seed=0)
    assert env.reset().shape == (1, 4)
    assert env.backend == "gymnasium"
    assert env.spaces.action_type == "discrete"


def test_kwargs_reach_the_constructor(env_spec):
    env = make_env(env_spec("LunarLander-v3", continuous=True), seed=0)
    assert (env.spaces.action_type, env.spaces.action_sizes) == ("multi_continuous", (2,))


def test_mujoco_compiles_its_models_quietly(env_spec, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_env(env_spec("HalfCheetah-v5", num_envs=2), seed=0).close()
    assert "settotalmass" not in "".join(capfd.readouterr())
    assert list(tmp_path.iterdir()) == [], "MUJOCO_LOG.TXT was left behind"


def test_a_module_in_the_working_directory_registers_its_env(env_spec, tmp_path, monkeypatch):
    (tmp_path / "house_envs.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('Mine-v0', entry_point=CartPoleEnv, max_episode_steps=7)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    try:
        env = make_env(env_spec("house_envs:Mine-v0", num_envs=2), seed=0)
        assert env.reset().shape == (2, 4)
    finally:
        gym.registry.pop("Mine-v0", None)
        sys.modules.pop("house_envs", None)


def test_a_missing_module_is_named(env_spec):
    with pytest.raises(EnvError) as error:
        make_env(env_spec("no_such_pkg.envs:Mine-v0"), seed=0)
    assert "env.name: cannot import `no_such_pkg.envs`" in str(error.value)
    assert "install its package" in str(error.value)


def test_an_unknown_id_names_the_nearest(env_spec):
    with pytest.raises(EnvError, match=r"env.name: `CartPol-v1`.*Did you mean `CartPole-v1`"):
        make_env(env_spec("CartPol-v1"), seed=0)


def test_an_outdated_version_names_the_current_one(env_spec):
    with pytest.raises(EnvError, match="Did you mean `LunarLander-v3`"):
        make_env(env_spec("LunarLander-v2"), seed=0)


def test_an_unknown_id_without_neighbours_tells_how_to_register(env_spec):
    with pytest.raises(EnvError, match="write `module:EnvId`"):
        make_env(env_spec("Zzyzx-v0"), seed=0)


def test_an_unknown_constructor_argument_is_named(env_spec):
    with pytest.raises(EnvError, match=r"env.kwargs: `CartPole-v1` .* 'gravity_well'"):
        make_env(env_spec("CartPole-v1", gravity_well=3), seed=0)


@pytest.mark.parametrize(
    ("name", "package", "modules", "extra"),
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "box2d"),
        ("HalfCheetah-v5", "mujoco", "gymnasium.envs.mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "ale_py", "atari"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_line(
    env_spec, monkeypatch, name, package, modules, extra
):
    for module in [m for m in sys.modules if m.startswith(modules)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # importing it now fails
    with pytest.raises(EnvError) as error:
        make_env(env_spec(name), seed=0)
    assert f"`{name}`" in str(error.value)
    assert f"pip install 'slm-lab[{extra}]'" in str(error.value)


def test_a_missing_envpool_is_named_with_its_install_line(env_spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvError, match=r"pip install 'slm-lab\[envpool\]'"):
        make_env(env_spec("CartPole-v1", backend="envpool"), seed=0)


def test_an_id_envpool_lacks_is_refused(env_spec):
    with pytest.raises(EnvError, match="envpool has no env `probe/Truncated-v0`"):
        make_env(env_spec("probe/Truncated-v0", backend="envpool"), seed=0)


def test_kwargs_envpool_lacks_are_refused(env_spec):
    with pytest.raises(EnvError, match=r"env.kwargs: envpool cannot make `CartPole-v1`"):
        make_env(env_spec("CartPole-v1", backend="envpool", gravity_well=3), seed=0)


def test_a_pool_that_would_score_lives_instead_of_games_is_refused(env_spec):
    with pytest.raises(EnvError, match=r"env\.episodic_life.*ALE/Breakout-v5.*life_loss_info"):
        make_env(env_spec("Breakout-v5", backend="envpool", episodic_life=True), seed=0)


def test_the_playground_backend_plays_nothing_else(env_spec):
    with pytest.raises(EnvError, match=r"env.backend: `playground` plays `playground/...` only"):
        make_env(env_spec("CartPole-v1", backend="playground"), seed=0)


def test_auto_takes_envpool_only_where_threads_were_asked_for_and_pay(env_spec):
    def chosen(name="Hopper-v5", num_envs=16, num_threads=2, **keys):
        return choose_backend(env_spec(name, num_envs=num_envs, num_threads=num_threads, **keys))

    assert chosen() == "envpool"
    assert chosen(num_envs=4) == "gymnasium"
    assert chosen(num_threads=None) == "gymnasium"
    assert chosen(num_threads=1) == "gymnasium"
    assert chosen(name="CartPole-v1") == "gymnasium"
    assert chosen(forward_reward_weight=2.0) == "gymnasium"
    assert chosen(backend="gymnasium") == "gymnasium"


def test_auto_never_chooses_a_back_end_that_is_not_installed(env_spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert choose_backend(env_spec("Hopper-v5", num_envs=16, num_threads=2)) == "gymnasium"


def test_the_table_of_auto_holds_clear_wins_only():
    assert all(envpool > 1.5 * gym_fps for gym_fps, envpool in FASTER_ON_ENVPOOL.values())


@pytest.mark.parametrize("name", sorted(FASTER_ON_ENVPOOL))
def test_the_back_ends_agree_on_the_spaces_of_what_auto_may_choose(env_spec, name):
    spaces = [
        make_env(env_spec(name, backend=backend), seed=0).spaces
        for backend in ("gymnasium", "envpool")
    ]
    assert spaces[0] == spaces[1]


@pytest.mark.parametrize(
    ("name", "obs", "action"),
    [
        ("CartPole-v1", 4, ("discrete", (2,))),
        ("Acrobot-v1", 6, ("discrete", (3,))),
        ("Pendulum-v1", 3, ("continuous", (1,))),
        ("MountainCar-v0", 2, ("discrete", (3,))),
        ("MountainCarContinuous-v0", 2, ("continuous", (1,))),
        ("LunarLander-v3", 8, ("discrete", (4,))),
        ("LunarLanderContinuous-v3", 8, ("multi_continuous", (2,))),
        ("BipedalWalker-v3", 24, ("multi_continuous", (4,))),
        ("Ant-v5", 105, ("multi_continuous", (8,))),
        ("HalfCheetah-v5", 17, ("multi_continuous", (6,))),
        ("Hopper-v5", 11, ("multi_continuous", (3,))),
        ("Humanoid-v5", 348, ("multi_continuous", (17,))),
        ("HumanoidStandup-v5", 348, ("multi_continuous", (17,))),
        ("InvertedDoublePendulum-v5", 9, ("continuous", (1,))),
        ("InvertedPendulum-v5", 4, ("continuous", (1,))),
        ("Pusher-v5", 23, ("multi_continuous", (7,))),
        ("Reacher-v5", 10, ("multi_continuous", (2,))),
        ("Swimmer-v5", 8, ("multi_continuous", (2,))),
        ("Walker2d-v5", 17, ("multi_continuous", (6,))),
    ],
)
def test_the_envs_of_the_benchmarks_can_be_made_and_stepped(env_spec, name, obs, action):
    env = make_env(env_spec(name, num_envs=2), seed=0)
    spaces = env.spaces
    assert env.reset().shape == (2, obs)
    assert (spaces.action_type, spaces.action_sizes) == action
    shape = (2,) if spaces.action_type == "discrete" else (2, *spaces.action_sizes)
    transition = env.step(np.zeros(shape, np.int64 if shape == (2,) else np.float32))
    assert transition.next_obs.shape == (2, obs)
    env.close()


def test_a_playground_env_without_its_package_names_the_extra(env_spec, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvError, match=r"pip install 'slm-lab\[playground\]'"):
        make_env(env_spec("playground/CartpoleBalance"), seed=0)
