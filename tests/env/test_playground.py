"""`playground/<Name>` on envpool: the 54 names, their rows, endings and repeated actions."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from slm_lab.env import EnvError, make_env
from slm_lab.env.envpool_backend import (
    EnvpoolVectorEnv,
    RepeatingPool,
    copy_without_textures,
    draw_without_a_window,
)
from slm_lab.env.make import choose_backend
from slm_lab.env.playground import TASKS
from slm_lab.env.registry import render_fps
from slm_lab.env.vector import spawn_streams

pytest.importorskip("envpool")

# Width of Playground's own observation (`state`), of its `privileged_state`, and of the action.
WIDTHS = {
    "AcrobotSwingup": (6, 0, 1),
    "AcrobotSwingupSparse": (6, 0, 1),
    "BallInCup": (8, 0, 2),
    "CartpoleBalance": (5, 0, 1),
    "CartpoleBalanceSparse": (5, 0, 1),
    "CartpoleSwingup": (5, 0, 1),
    "CartpoleSwingupSparse": (5, 0, 1),
    "CheetahRun": (17, 0, 6),
    "FingerSpin": (9, 0, 2),
    "FingerTurnEasy": (12, 0, 2),
    "FingerTurnHard": (12, 0, 2),
    "FishSwim": (24, 0, 5),
    "HopperHop": (15, 0, 4),
    "HopperStand": (15, 0, 4),
    "HumanoidRun": (67, 0, 21),
    "HumanoidStand": (67, 0, 21),
    "HumanoidWalk": (67, 0, 21),
    "PendulumSwingup": (3, 0, 1),
    "PointMass": (4, 0, 2),
    "ReacherEasy": (6, 0, 2),
    "ReacherHard": (6, 0, 2),
    "SwimmerSwimmer6": (25, 0, 5),
    "WalkerRun": (24, 0, 6),
    "WalkerStand": (24, 0, 6),
    "WalkerWalk": (24, 0, 6),
    "ApolloJoystickFlatTerrain": (112, 224, 32),
    "BarkourJoystick": (465, 0, 12),
    "BerkeleyHumanoidJoystickFlatTerrain": (52, 114, 12),
    "BerkeleyHumanoidJoystickRoughTerrain": (52, 114, 12),
    "G1JoystickFlatTerrain": (103, 216, 29),
    "G1JoystickRoughTerrain": (103, 216, 29),
    "Go1Footstand": (45, 94, 12),
    "Go1Getup": (42, 91, 12),
    "Go1Handstand": (45, 94, 12),
    "Go1JoystickFlatTerrain": (48, 123, 12),
    "Go1JoystickRoughTerrain": (48, 123, 12),
    "H1InplaceGaitTracking": (186, 0, 19),
    "H1JoystickGaitTracking": (113, 0, 19),
    "Op3Joystick": (147, 0, 20),
    "SpotFlatTerrainJoystick": (81, 167, 12),
    "SpotGetup": (30, 0, 12),
    "SpotJoystickGaitTracking": (69, 0, 12),
    "T1JoystickFlatTerrain": (85, 180, 23),
    "T1JoystickRoughTerrain": (85, 180, 23),
    "AeroCubeRotateZAxis": (14, 81, 7),
    "AlohaHandOver": (83, 0, 14),
    "AlohaSinglePegInsertion": (82, 0, 14),
    "LeapCubeReorient": (57, 128, 16),
    "LeapCubeRotateZAxis": (32, 105, 16),
    "PandaOpenCabinet": (55, 0, 8),
    "PandaPickCube": (66, 0, 8),
    "PandaPickCubeCartesian": (70, 0, 3),
    "PandaPickCubeOrientation": (66, 0, 8),
    "PandaRobotiqPushCube": (48, 0, 7),
}


def test_there_are_54_names_as_in_the_targets():
    families = Counter(
        "dm_control" if not task.needs_menagerie else "robots" for task in TASKS.values()
    )
    assert families == {"dm_control": 25, "robots": 29}
    assert set(WIDTHS) == set(TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDTHS)
def test_every_name_constructs_and_steps_on_the_cpu(env_spec, name):
    state, privileged, action = WIDTHS[name]
    env = make_env(env_spec(f"playground/{name}", num_envs=2, privileged=True), seed=0)
    assert env.backend == "envpool"
    assert env.spaces.obs_shape == (state + privileged,)
    assert env.spaces.policy_obs_shape == (state,)
    assert env.spaces.privileged == privileged
    assert env.spaces.action_sizes == (action,)
    first = np.array(env.reset())
    for _ in range(3):
        step = env.step(env.sample_action())
    assert np.isfinite(first).all()
    assert np.isfinite(step.next_obs).all()
    assert np.isfinite(step.reward).all()
    assert not np.array_equal(first, step.next_obs)
    env.close()


def test_without_privileged_the_row_is_the_state(env_spec):
    keys = {"num_envs": 1, "backend": "envpool"}
    plain = make_env(env_spec("playground/AeroCubeRotateZAxis", **keys), seed=0)
    both = make_env(env_spec("playground/AeroCubeRotateZAxis", privileged=True, **keys), seed=0)
    assert plain.spaces.privileged == 0
    assert np.array_equal(plain.reset(), both.reset()[:, :14])


@pytest.mark.parametrize(
    ("name", "decisions"), [("CartpoleBalance", 1000), ("PendulumSwingup", 250)]
)
def test_an_episode_is_as_long_as_playground_says(env_spec, name, decisions):
    """1000 control steps; PendulumSwingup takes four of them per decision."""
    env = make_env(env_spec(f"playground/{name}", num_envs=2), seed=0)
    env.reset()
    for _ in range(decisions - 1):
        step = env.step(env.sample_action())
        assert not step.truncated.any()
    step = env.step(env.sample_action())
    assert step.truncated.all()
    assert not step.terminated.any()
    assert list(env.episodes.lengths) == [decisions, decisions]
    env.close()


def test_the_final_observation_outlives_the_reset(env_spec):
    """An episode of 3 decisions in an env that would go on: the fourth obs is what it would be."""
    keys = {"num_envs": 2}
    short = make_env(env_spec("playground/CartpoleBalance", max_t=3, **keys), seed=0)
    long = make_env(env_spec("playground/CartpoleBalance", **keys), seed=0)
    assert np.array_equal(short.reset(), long.reset())
    for _ in range(3):
        action = short.sample_action()
        cut, goes_on = short.step(action), long.step(action)
    assert cut.truncated.all()
    assert not goes_on.truncated.any()
    assert np.array_equal(cut.next_obs, goes_on.next_obs)
    assert np.abs(cut.obs[:, 3:]).max() < 0.1  # a new episode begins nearly at rest
    assert not np.array_equal(cut.obs, cut.next_obs)


def test_every_episode_begins_somewhere_else(env_spec):
    env = make_env(env_spec("playground/CartpoleBalance", num_envs=2, max_t=2), seed=0)
    starts = [np.array(env.reset())]
    for _ in range(4):
        step = env.step(env.sample_action())
        if step.truncated.any():
            starts.append(np.array(step.obs))
    assert len({start.tobytes() for start in starts}) == 3


def test_the_pendulum_shows_its_sine_before_its_cosine(env_spec):
    """As in Playground; dm_control has them the other way. Pushed about, it hangs downwards."""
    env = make_env(env_spec("playground/PendulumSwingup", num_envs=8), seed=0)
    env.reset()
    rows = np.stack([env.step(env.sample_action()).next_obs for _ in range(200)])[100:]
    sine, cosine = rows[..., 0].mean(), rows[..., 1].mean()
    assert cosine < -0.7
    assert abs(sine) < 0.3
    parts = env.codecs.obs.read(rows[-1])
    assert np.array_equal(parts["orientation"], rows[-1][:, [1, 0]])


def test_max_t_counts_decisions_and_action_repeat_can_be_set(env_spec):
    env = make_env(
        env_spec("playground/CartpoleBalance", num_envs=1, max_t=5, action_repeat=3), seed=0
    )
    env.reset()
    for _ in range(5):
        step = env.step(env.sample_action())
    assert step.truncated.all()
    assert 10 < env.episodes.returns[0] <= 15  # 15 control steps of at most 1 each


def test_a_repeated_action_is_that_many_steps(env_spec):
    keys = {"num_envs": 2}
    once = make_env(env_spec("playground/PendulumSwingup", action_repeat=1, **keys), seed=3)
    four = make_env(env_spec("playground/PendulumSwingup", **keys), seed=3)
    assert np.array_equal(once.reset(), four.reset())
    action = np.full((2, 1), 0.7, np.float32)
    total = np.zeros(2)
    for _ in range(4):
        single = once.step(action)
        total += single.reward
    repeated = four.step(action)
    assert np.array_equal(single.next_obs, repeated.next_obs)
    assert np.allclose(total, repeated.reward)


def test_an_episode_that_ends_while_an_action_is_repeated_stays_as_it_ended(
    make_scripted, make_scripted_pool
):
    """Two envs of 2 and 5 steps, three steps per decision: step numbers are the rewards."""
    pool = make_scripted_pool(
        [
            make_scripted(2, terminates=True, truncates=False),
            make_scripted(5, terminates=False, truncates=True),
        ]
    )
    env = EnvpoolVectorEnv(RepeatingPool(pool, 3), num_envs=2, seed=0)
    env.reset()
    step = env.step(np.zeros(2, np.int64))
    assert step.terminated.tolist() == [True, False]
    assert step.next_obs[:, 1].tolist() == [2, 3]  # (episode, step)
    assert step.reward.tolist() == [1 + 2, 1 + 2 + 3]
    assert step.obs[0, 1] == 0  # fresh
    step = env.step(np.zeros(2, np.int64))
    assert step.truncated.tolist() == [False, True]
    assert step.reward.tolist() == [1 + 2, 4 + 5]


def test_leaving_out_textures_changes_no_number(env_spec):
    import envpool

    env = make_env(env_spec("playground/HumanoidStand", num_envs=2), seed=0)
    seeds, _ = spawn_streams(0, 2)
    pool = envpool.make("HumanoidStand-v1", env_type="gymnasium", num_envs=2, seed=seeds)
    whole = EnvpoolVectorEnv(pool, num_envs=2, seed=0, codec=env.codecs.obs)
    assert np.array_equal(env.reset(), whole.reset())
    for _ in range(50):
        action = env.sample_action()
        assert np.array_equal(env.step(action).next_obs, whole.step(action).next_obs)


@pytest.fixture(scope="module")
def drawing():
    """Skipped where there is no OpenGL."""
    try:
        draw_without_a_window()
    except EnvError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["CheetahRun", "PandaPickCube"])  # with a camera, without one
def test_a_watched_env_is_drawn_and_gives_the_same_numbers(env_spec, drawing, name):
    spec = env_spec(f"playground/{name}", num_envs=2)
    watched, other = (make_env(spec, seed=0, render=render) for render in (True, False))
    action = watched.sample_action()
    np.testing.assert_array_equal(watched.reset(), other.reset())
    before = watched.render()
    assert before is not None
    assert before.shape == (360, 960, 3), "side by side"
    assert before.std() > 10, "not a blank picture"
    assert other.render() is None
    for _ in range(20):
        np.testing.assert_array_equal(watched.step(action).obs, other.step(action).obs)
    assert not np.array_equal(np.asarray(watched.render()), before)
    watched.close()
    other.close()


def test_where_mujoco_cannot_draw_the_error_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(EnvError, match=r"--video, --render: .*needs a display.*libegl1"):
        draw_without_a_window.__wrapped__()


def test_a_video_is_as_fast_as_the_robot(env_spec):
    """One decision of PendulumSwingup is 4 control steps of 20 ms."""
    assert render_fps(env_spec("playground/PendulumSwingup")) == pytest.approx(12.5)
    assert render_fps(env_spec("playground/PendulumSwingup", action_repeat=1)) == pytest.approx(50)
    assert render_fps(env_spec("playground/CheetahRun")) == pytest.approx(100)


def test_the_seconds_of_a_control_step_are_those_of_the_robots_configs():
    import envpool

    configs = {task: envpool.make_spec(task.pool_id).config._asdict() for task in TASKS.values()}
    robots = [task for task, config in configs.items() if "ctrl_dt" in config]
    assert len(robots) > 20
    for task in robots:
        assert configs[task]["ctrl_dt"] == pytest.approx(task.control_seconds), task.name


def test_a_bare_model_keeps_the_names_that_materials_use(tmp_path):
    model = tmp_path / "full" / "robot.xml"
    model.parent.mkdir()
    model.write_text(
        '<mujoco><asset><texture type="skybox" builtin="gradient" width="800" height="800"/>'
        '<texture type="2d" file="wood.png"/><texture name="grid" type="2d" file="g.png"/>'
        '<material name="table" texture="wood"/></asset></mujoco>'
    )
    (model.parent / "wood.png").write_bytes(b"picture")
    copy_without_textures(model.parent, tmp_path / "bare")
    text = (tmp_path / "bare" / "robot.xml").read_text()
    assert "800" not in text
    assert 'name="wood"' in text
    assert 'name="grid"' in text
    assert '<material name="table" texture="wood"' in text
    assert (tmp_path / "bare" / "wood.png").read_bytes() == b"picture"


@pytest.mark.slow
def test_a_thousand_envs_share_a_gigabyte(env_spec):
    """With textures they would take 12 GB."""
    before = resident_mb()
    env = make_env(env_spec("playground/CartpoleBalance", num_envs=1024), seed=0)
    env.reset()
    for _ in range(3):
        step = env.step(env.sample_action())
    assert step.reward.shape == (1024,)
    assert resident_mb() - before < 1000
    env.close()


def resident_mb() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_auto_takes_envpool_without_a_cuda_device_and_the_package_with_one(env_spec, monkeypatch):
    pytest.importorskip("mujoco_playground")
    spec = env_spec("playground/CartpoleBalance")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_backend(spec) == "envpool"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert choose_backend(spec) == "playground"
    on_cpu = env_spec("playground/CartpoleBalance", device="cpu")
    assert choose_backend(on_cpu) == "envpool"
    chosen = env_spec("playground/CartpoleBalance", backend="envpool")
    assert choose_backend(chosen) == "envpool"


def test_a_cpu_without_envpool_takes_the_package(env_spec, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "envpool" else real("numpy")
    )
    assert choose_backend(env_spec("playground/CartpoleBalance")) == "playground"


def test_a_misspelt_name_is_told_the_nearest(env_spec):
    with pytest.raises(EnvError, match="Did you mean `playground/CheetahRun`"):
        make_env(env_spec("playground/CheetaRun"), seed=0)


def test_gymnasium_cannot_play_it(env_spec):
    with pytest.raises(EnvError, match=r"env.backend: `gymnasium` cannot play"):
        make_env(env_spec("playground/CheetahRun", backend="gymnasium"), seed=0)


@pytest.mark.parametrize("key", ["impl", "full_reset", "dlpack"])
def test_keys_of_the_jax_backend_are_refused_on_envpool(env_spec, key):
    with pytest.raises(EnvError, match=rf"env.{key}: is for the JAX back-end"):
        make_env(env_spec("playground/CheetahRun", backend="envpool", **{key: "jax"}), seed=0)


def test_a_privileged_observation_is_not_stacked(env_spec):
    spec = env_spec("playground/AeroCubeRotateZAxis", privileged=True, frame_stack=2)
    with pytest.raises(EnvError, match=r"env.frame_stack"):
        make_env(spec, seed=0)
