"""EnvSpec in, batched env out.

`env.name` is a Gymnasium id (`CartPole-v1`), or `module:EnvId` (`my_pkg.envs:MyEnv-v0`): the
module is imported first, from the working directory if need be, and registers the id; whether it
may be, `spec/named_module.py` decides. A name
`playground/<Name>` is an env of MuJoCo Playground, which is a registry of its own.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import gymnasium as gym
import torch
from loguru import logger

from slm_lab.env.ale_backend import AtariEnv, make_atari
from slm_lab.env.envpool_backend import EnvpoolVectorEnv, make_pool
from slm_lab.env.error import EnvError
from slm_lab.env.playground import PREFIX, find_task
from slm_lab.env.playground_jax import make_playground_jax
from slm_lab.env.playground_pool import make_playground_pool
from slm_lab.env.vector import GymnasiumVectorEnv, VectorEnv
from slm_lab.env.wrapper import FrameStack
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.named_module import import_named_module, module_of

# Python package an env needs -> extra of slm-lab that brings it.
EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "envpool": "envpool"}

# Frames/s of 16 envs under random actions, no agent: (gymnasium, envpool on 2 threads). Best of 3
# rounds of half a second on 2 busy cores, so read the ratio, not the number.
# On one thread envpool gains less (Humanoid nothing, Reacher most: 40k), and it cannot resume
# exactly, so `auto` takes it only for a spec that asks for threads. Left out, as no clear win:
# HalfCheetah 23k / 25k, Swimmer 14k / 19k, Pusher 17k / 18k; CartPole x 4 69k / 36k.
# Over 12k random frames mean reward and episode length of these ids agree between the two within
# sampling noise. Humanoid (3.2k / 6.1k) stays out until the different spread of some of its
# contact-force observations is explained.
FASTER_ON_ENVPOOL = {
    "Ant-v5": (3_900, 7_300),
    "Hopper-v5": (8_300, 17_000),
    "Reacher-v5": (23_000, 42_000),
    "Walker2d-v5": (7_400, 12_400),
}


def make_env(spec: EnvSpec, *, seed: int, render: bool = False) -> VectorEnv:
    """All random streams (one per env, one for random actions) are spawned from `seed`.

    `render` asks for `VectorEnv.render()`, which envpool has not: Gymnasium is used instead.
    """
    env: VectorEnv
    if spec.name.startswith(PREFIX):
        env = make_playground_env(spec, seed=seed)
        return stacked(env, spec)
    backend = choose_backend(spec, render=render)
    if backend == "ale":
        return make_atari_env(spec, seed=seed, render=render)
    if backend == "envpool":
        pool = make_pool(
            spec.name,
            num_envs=spec.num_envs,
            seed=seed,
            num_threads=spec.num_threads or 1,
            max_t=spec.max_t,
            kwargs=spec.kwargs,
        )
        env = EnvpoolVectorEnv(pool, num_envs=spec.num_envs, seed=seed)
    else:
        envs = make_gymnasium_envs(spec, render=render)
        env = GymnasiumVectorEnv(envs, seed=seed, threads=spec.num_threads or 1)
    return stacked(env, spec)


def stacked(env: VectorEnv, spec: EnvSpec) -> VectorEnv:
    if spec.frame_stack == 1:
        return env
    if env.spaces.privileged:
        raise EnvError("env.frame_stack: cannot stack an observation that is partly env.privileged")
    return FrameStack(env, spec.frame_stack, spec.frame_op)


def make_playground_env(spec: EnvSpec, *, seed: int) -> VectorEnv:
    task = find_task(spec.name)
    if choose_playground_backend(spec) == "envpool":
        return make_playground_pool(
            task,
            num_envs=spec.num_envs,
            seed=seed,
            num_threads=spec.num_threads or 1,
            max_t=spec.max_t,
            privileged=spec.privileged,
            kwargs=spec.kwargs,
        )
    return make_playground_jax(
        task,
        num_envs=spec.num_envs,
        seed=seed,
        max_t=spec.max_t,
        privileged=spec.privileged,
        device=spec.device,
        kwargs=spec.kwargs,
    )


def choose_playground_backend(spec: EnvSpec) -> Literal["envpool", "playground"]:
    """`auto` takes the real package on a CUDA device, which is what it is made for, and envpool's
    C++ tasks on a CPU; a CPU without envpool takes the package too, if it is there.
    """
    if spec.backend in ("envpool", "playground"):
        return spec.backend
    if spec.backend != "auto":
        raise EnvError(
            f"env.backend: `{spec.backend}` cannot play `{spec.name}`, an env of MuJoCo Playground."
            " Expected auto, envpool or playground."
        )
    has_package = importlib.util.find_spec("mujoco_playground") is not None
    has_envpool = importlib.util.find_spec("envpool") is not None
    if not has_package and not has_envpool:
        raise EnvError(
            f"env.name: `{spec.name}` is an env of MuJoCo Playground, which is not installed. Run "
            "`pip install 'slm-lab[playground]'` for a CUDA device, "
            "or `pip install 'slm-lab[envpool]'` for CPUs."
        )
    wants_cuda = torch.cuda.is_available() if spec.device is None else spec.device != "cpu"
    return "playground" if has_package and (wants_cuda or not has_envpool) else "envpool"


def choose_backend(
    spec: EnvSpec, *, render: bool = False
) -> Literal["gymnasium", "envpool", "ale"]:
    """Of an env that is not MuJoCo Playground's.

    `auto` takes ale-py's own batch for Atari games, for others Gymnasium, which resumes exactly,
    unless envpool is clearly faster.

    An explicit `envpool` needs an id that envpool has and kwargs that it supports.
    """
    if spec.backend == "ale" or (spec.backend == "auto" and spec.name.startswith("ALE/")):
        return "ale"
    if render or spec.backend == "gymnasium":
        return "gymnasium"
    if spec.backend == "envpool":
        return "envpool"
    if spec.backend != "auto":
        raise EnvError(
            f"env.backend: `{spec.backend}` plays `playground/...` only, found env.name "
            f"`{spec.name}`. Expected auto, gymnasium, envpool or ale."
        )
    envpool_pays = (
        spec.name in FASTER_ON_ENVPOOL
        and spec.num_envs >= 8
        and (spec.num_threads or 1) >= 2
        and not spec.kwargs  # envpool may name or mean them differently
        and importlib.util.find_spec("envpool") is not None
    )
    return "envpool" if envpool_pays else "gymnasium"


def make_atari_env(spec: EnvSpec, *, seed: int, render: bool = False) -> AtariEnv:
    if not spec.name.startswith("ALE/"):
        raise EnvError(
            f"env.backend: `ale` plays Atari games only, found env.name `{spec.name}`. "
            "Expected an id such as `ALE/Pong-v5`. Set env.backend to `auto`."
        )
    env_id = import_module_of(spec)
    try:
        registered = gym.spec(env_id).kwargs
    except gym.error.Error as error:
        raise unknown_id(env_id, error) from error
    games = make_atari(
        registered,
        num_envs=spec.num_envs,
        frame_stack=spec.frame_stack if spec.frame_stack > 1 else 4,
        num_threads=spec.num_threads,
        max_t=spec.max_t,
        kwargs=spec.kwargs,
    )
    return AtariEnv(games, seed=seed, render=render)


def make_gymnasium_envs(spec: EnvSpec, *, render: bool = False) -> list[gym.Env[Any, Any]]:
    """`num_envs` env objects; with `render`, they draw (if they can)."""
    env_id = import_module_of(spec)
    first = make_gymnasium_env(env_id, spec)
    options: dict[str, Any] = {}
    if render and "rgb_array" in first.metadata.get("render_modes", ()):
        first.close()
        options["render_mode"] = "rgb_array"
        first = make_gymnasium_env(env_id, spec, **options)
    others = (make_gymnasium_env(env_id, spec, **options) for _ in range(spec.num_envs - 1))
    return [first, *others]


def make_gymnasium_env(env_id: str, spec: EnvSpec, **options: Any) -> gym.Env[Any, Any]:
    try:
        registered = copy.copy(gym.spec(env_id))
    except gym.error.Error as error:
        raise unknown_id(env_id, error) from error
    registered.order_enforce = False  # the vector env calls reset and step in order
    options = {**spec.kwargs, **options}
    try:
        with mujoco_warnings_to_log(registered):
            return gym.make(
                registered, max_episode_steps=spec.max_t, disable_env_checker=True, **options
            )
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise missing_package(env_id, error) from error
    except TypeError as error:
        raise EnvError(
            f"env.kwargs: `{env_id}` cannot be made with {options}: {error}. "
            "Expected arguments of the env's constructor. Remove or rename the wrong one."
        ) from error


def render_fps(spec: EnvSpec) -> float:
    """Pictures per second at which the env's time is our time; 30 where it does not say."""
    if spec.name.startswith((PREFIX, "ALE/")):  # `env.kwargs` are those of a batch of envs
        return 30.0
    env = make_gymnasium_env(import_module_of(spec), spec)
    env.close()
    return float(env.metadata.get("render_fps") or 30)


def import_module_of(spec: EnvSpec) -> str:
    """Import `module` of `module:EnvId`, so that it registers its envs, and return `EnvId`."""
    name = spec.name
    module, env_id, origin = module_of(name), name.rpartition(":")[2], spec.origin
    if name.startswith("ALE/"):
        module, origin = "ale_py", None  # named by us, not by the spec
    if not module:
        return env_id
    try:
        import_named_module(module, "env.name", origin)
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            raise missing_package(env_id, error) from error
        raise EnvError(
            f"env.name: cannot import `{module}` of `{name}` ({error}). Expected a module that "
            f"registers `{env_id}`. Run from the folder that holds it, or install its package."
        ) from error
    return env_id


def unknown_id(env_id: str, error: Exception) -> EnvError:
    near = difflib.get_close_matches(env_id, gym.registry, n=3)
    hint = (
        "Did you mean " + " or ".join(f"`{name}`" for name in near) + "?"
        if near
        else "For an env of your own write `module:EnvId`, where importing `module` registers it."
    )
    return EnvError(f"env.name: `{env_id}` is not registered in Gymnasium ({error}). {hint}")


def missing_package(env_id: str, error: Exception) -> EnvError:
    # Gymnasium raises its own error from the ImportError, which knows the package.
    cause = error if isinstance(error, ImportError) else error.__cause__
    package = ((cause.name if isinstance(cause, ImportError) else None) or "").partition(".")[0]
    if package in EXTRAS:
        fix = f"Run `pip install 'slm-lab[{EXTRAS[package]}]'`."
    elif package:
        fix = f"Install the package that provides `{package}`."
    else:
        fix = "Install what it asks for."
    return EnvError(f"env.name: `{env_id}` cannot be imported here ({error}). {fix}")


@contextmanager
def mujoco_warnings_to_log(registered: gym.envs.registration.EnvSpec) -> Iterator[None]:
    """Log what MuJoCo says while it compiles a model, at debug level.

    Left alone it prints the same lines for every env and writes MUJOCO_LOG.TXT where you stand;
    they concern the model file, which is Gymnasium's. Warnings during simulation stay as they are.
    """
    if "mujoco" in str(registered.entry_point) and importlib.util.find_spec("mujoco"):
        importlib.import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    if mujoco is None:
        yield
        return
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: logger.debug("MuJoCo: {}", message))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)
