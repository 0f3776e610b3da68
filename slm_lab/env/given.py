"""Envs that are given in Python: an instance, a class, or a function that makes one.

A spec holds text, so it names them:

    what a module has under a name          `my_envs:make_maze`, found by every process
    an instance made by `gymnasium.make`    its id, with its arguments and wrappers
    anything else                           `python/Maze`, registered in Gymnasium for as long as
                                            this process lives

What is registered here reaches the processes of sessions, and nothing else can make it again.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from slm_lab.env.error import EnvError
from slm_lab.env.vector import VectorEnv
from slm_lab.spec.env import GIVEN
from slm_lab.spec.main_module import is_importable
from slm_lab.spec.trust import MAIN, find_module

Make = Callable[..., gym.Env[Any, Any]]


def env_block(env: Any) -> dict[str, Any]:
    """The block `env` of a spec that makes what was given, or a part of that block."""
    if isinstance(env, str):
        return {"name": env}
    if isinstance(env, Mapping):
        block = dict(env)
        return block | env_block(block.get("name")) if "name" in block else block
    if isinstance(env, gym.vector.VectorEnv | VectorEnv):
        fix = "Give a single env, or a function that makes one, and num_envs=8 for a batch."
        raise EnvError(f"env: found a batch of envs, {type(env).__name__}. {fix}")
    if isinstance(env, gym.Env):
        return _of_instance(env)
    if callable(env) and not (isinstance(env, type) and not issubclass(env, gym.Env)):
        return {"name": _name_of_maker(env)}
    expected = "expected a name, a gymnasium.Env, or a function that makes one"
    raise EnvError(f"env: found {env!r:.60}; {expected}.")


def give_again(name: str, env: Any) -> None:
    """Give the env of a run that was trained with an object: the run has it as `name`."""
    if not name.startswith(GIVEN):
        raise EnvError(f"env: the run has `{name}`, which is found by its name. Leave env out.")
    made = env_block(env)["name"]
    registered = copy.copy(gym.spec(made))
    registered.id = name
    gym.registry[name] = registered


def _of_instance(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Describe how an instance was made, without what has changed in it since; or copy it."""
    if (recipe := _recipe(env)) is not None:
        return recipe
    try:
        original = copy.deepcopy(env)  # which nobody else changes
    except Exception as error:  # whatever an env raises
        fix = "Give a function that makes it: env=lambda: MyEnv()."
        raise EnvError(f"env: {env} cannot be copied ({error!r:.100}). {fix}") from None
    return {"name": _register(lambda: copy.deepcopy(original), type(env.unwrapped).__name__)}


def _recipe(env: gym.Env[Any, Any]) -> dict[str, Any] | None:
    """The keys that make an instance of a registered env; None if there are none that do."""
    try:
        made = env.spec
    except Exception:  # a wrapper that cannot describe itself
        return None
    if made is None or made.id not in gym.registry:
        return None
    kwargs = {key: value for key, value in made.kwargs.items() if key != "render_mode"}
    wrappers = []
    for wrapper in made.additional_wrappers:
        if wrapper.kwargs is None or ":" not in wrapper.entry_point:
            return None
        wrappers.append({"name": wrapper.entry_point, **wrapper.kwargs})
    try:
        json.dumps([kwargs, wrappers])
    except (TypeError, ValueError):
        return None
    recipe: dict[str, Any] = {"name": made.id, **kwargs}
    if made.max_episode_steps != gym.registry[made.id].max_episode_steps:
        recipe["max_t"] = made.max_episode_steps
    if any(wrapper["name"].startswith(f"{MAIN}:") for wrapper in wrappers):
        return None
    return recipe | ({"wrappers": wrappers} if wrappers else {})


def _name_of_maker(make: Make) -> str:
    """`module:name` of a function or class that a module has; else a name in Gymnasium."""
    module = str(getattr(make, "__module__", MAIN))
    if module != MAIN and is_importable(make) and find_module(module) is not None:
        return f"{module}:{make.__qualname__}"
    name = getattr(make, "__name__", "") or getattr(getattr(make, "func", None), "__name__", "")
    if not name.isidentifier():  # a lambda, or an object that is called
        env = make()
        if not isinstance(env, gym.Env):
            raise EnvError(f"env: {make} made {env!r:.60}; expected a gymnasium.Env.")
        name = type(env.unwrapped).__name__
        env.close()
    return _register(make, name)


def _register(make: Make, name: str) -> str:
    env_id = f"{GIVEN}{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
    gym.registry.pop(env_id, None)  # of a notebook cell that has run before
    gym.register(env_id, entry_point=make)
    return env_id
