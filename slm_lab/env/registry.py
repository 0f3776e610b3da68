"""Single envs from Gymnasium's registry, and the errors of an id that it cannot make."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
from loguru import logger

from slm_lab.env.error import EnvError
from slm_lab.env.playground import PREFIX, action_repeat, find_task
from slm_lab.spec.env import GIVEN, EnvSpec, WrapperSpec
from slm_lab.spec.own_class import import_object
from slm_lab.spec.trust import SpecOrigin, import_named_module, module_of

# Python package an env needs -> extra of slm-lab that brings it.
EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "envpool": "envpool"}


class MissingPackage(EnvError):
    """An env whose package is not installed."""


def look_up(spec: EnvSpec) -> None:
    """Raise an EnvError if there is no env of that name, without making it: a MissingPackage where
    that cannot be told here. Nothing that a saved run names is imported."""
    if spec.origin is not None and module_of(spec.name):
        return
    if spec.name.startswith(PREFIX):
        if importlib.util.find_spec("mujoco_playground") is None:  # which may have more
            find_task(spec.name)
    elif spec.backend != "envpool":  # whose own registry does not load in a moment
        find_registered(spec)


def make_gymnasium_envs(spec: EnvSpec, *, render: bool = False) -> list[gym.Env[Any, Any]]:
    """`num_envs` env objects; with `render`, they draw if they can."""
    registered = find_registered(spec)
    first = make_gymnasium_env(spec, registered)
    options: dict[str, Any] = {}
    if render and "rgb_array" in first.metadata.get("render_modes", ()):
        first.close()
        options["render_mode"] = "rgb_array"
        first = make_gymnasium_env(spec, registered, **options)
    others = (make_gymnasium_env(spec, registered, **options) for _ in range(spec.num_envs - 1))
    return [first, *others]


def make_gymnasium_env(
    spec: EnvSpec, registered: gym.envs.registration.EnvSpec, **options: Any
) -> gym.Env[Any, Any]:
    env_id, options = registered.id, {**spec.kwargs, **options}
    try:
        with _mujoco_warnings_to_log(registered):
            env = gym.make(
                registered, max_episode_steps=spec.max_t, disable_env_checker=True, **options
            )
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing_package(env_id, error) from error
    except TypeError as error:
        if "must inherit from" in str(error):
            raise EnvError(
                f"env.name: `{env_id}` is no gymnasium.Env, perhaps one of the old package gym. "
                "Derive its class from gymnasium.Env; `slm-lab env check` then names what else is "
                "to change."
            ) from error
        raise EnvError(
            f"env.kwargs: `{env_id}` cannot be made with {options}: {error}. "
            "Expected arguments of the env's constructor. Remove or rename the wrong one."
        ) from error
    for index, wrapper in enumerate(spec.wrappers):
        env = _wrapped(env, wrapper, f"env.wrappers.{index}", spec.origin)
    return env


def _wrapped(
    env: gym.Env[Any, Any], wrapper: WrapperSpec, key: str, origin: SpecOrigin | None
) -> gym.Env[Any, Any]:
    wrap = import_object(wrapper.name, key, origin)
    arguments = dict(wrapper.kwargs)
    try:
        wrapped = wrap(env, **arguments)
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        raise EnvError(
            f"{key}: `{wrapper.name}` cannot be put around {env} with {arguments}: {error}. "
            "Expected a Gymnasium wrapper and its arguments."
        ) from error
    if not isinstance(wrapped, gym.Env):
        raise EnvError(f"{key}: `{wrapper.name}` gives {wrapped!r}; expected a Gymnasium env.")
    return wrapped


def render_fps(spec: EnvSpec) -> float:
    """Frames per second that show the env in real time; 30 where it does not say."""
    if spec.name.startswith(PREFIX):
        task = find_task(spec.name)
        return 1 / (task.control_seconds * action_repeat(task, dict(spec.kwargs)))
    if spec.name.startswith("ALE/"):  # `env.kwargs` are those of a batch of envs
        return 30.0
    env = make_gymnasium_env(spec, find_registered(spec))
    env.close()
    return float(env.metadata.get("render_fps") or 30)


def find_registered(spec: EnvSpec) -> gym.envs.registration.EnvSpec:
    """What Gymnasium's registry holds under `env.name`, once its module has been imported."""
    env_id = _import_module_of(spec)
    if (own := _made_by_module(spec.name, env_id)) is not None:
        return own
    try:
        registered = copy.copy(gym.spec(env_id))
    except gym.error.Error as error:
        near = difflib.get_close_matches(env_id, gym.registry, n=3)
        hint = (
            "Did you mean " + " or ".join(f"`{name}`" for name in near) + "?"
            if near
            else "For an env of your own write `module:EnvId`, where importing `module` registers "
            "it."
        )
        if env_id.startswith(GIVEN):
            hint = (
                "It was given to train(..., env=...) as an object, and existed in that process "
                "alone: give it again, train(..., env=...) or load_agent(..., env=...), or define "
                "it in a module."
            )
        raise EnvError(
            f"env.name: `{env_id}` is not registered in Gymnasium ({error}). {hint}"
        ) from error
    registered.order_enforce = False  # the vector env calls reset and step in order
    return registered


def _made_by_module(name: str, env_id: str) -> gym.envs.registration.EnvSpec | None:
    """An env class of the module that `env.name` names, or a function of it that makes envs;
    None where the name is that of a registered env."""
    make = getattr(sys.modules.get(module_of(name)), env_id, None)
    if make is None or env_id in gym.registry or not callable(make):
        return None
    is_env = isinstance(make, type) and issubclass(make, gym.Env)
    if not is_env and getattr(make, "__module__", None) != module_of(name):
        return None  # what the module has imported from elsewhere, os.system say
    return gym.envs.registration.EnvSpec(env_id, entry_point=make, order_enforce=False)


def _import_module_of(spec: EnvSpec) -> str:
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
            raise _missing_package(env_id, error) from error
        raise EnvError(
            f"env.name: cannot import `{module}` of `{name}` ({error}). Expected a module that "
            f"registers `{env_id}`. Run from the folder that holds it, or install its package."
        ) from error
    return env_id


def _missing_package(env_id: str, error: Exception) -> MissingPackage:
    # Gymnasium raises its own error from the ImportError, which knows the package.
    cause = error if isinstance(error, ImportError) else error.__cause__
    package = ((cause.name if isinstance(cause, ImportError) else None) or "").partition(".")[0]
    if package in EXTRAS:
        fix = f"Run `pip install 'slm-lab[{EXTRAS[package]}]'`."
    elif package:
        fix = f"Install the package that provides `{package}`."
    else:
        fix = "Install what it asks for."
    return MissingPackage(f"env.name: `{env_id}` cannot be imported here ({error}). {fix}")


@contextmanager
def _mujoco_warnings_to_log(registered: gym.envs.registration.EnvSpec) -> Iterator[None]:
    """Send MuJoCo's warnings about a model file to the log, at debug level.

    MuJoCo would print the same lines for every env and write MUJOCO_LOG.TXT into the working
    directory. Warnings during simulation stay as they are.
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
