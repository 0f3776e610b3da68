"""Make the batched env that an EnvSpec describes; `choose_backend` decides which engine runs it.

`env.name` is a Gymnasium id (`CartPole-v1`), or `module:EnvId` (`my_pkg.envs:MyEnv-v0`), where the
module registers the id when it is imported; `spec/trust.py` decides whether it may be.
`playground/<Name>` is an env of MuJoCo Playground, which has its own registry.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

from slm_lab.env.ale_backend import make_atari
from slm_lab.env.envpool_backend import make_envpool, make_playground_pool
from slm_lab.env.error import EnvError
from slm_lab.env.playground import PREFIX
from slm_lab.env.registry import make_gymnasium_envs
from slm_lab.env.subprocess import SubprocessVectorEnv
from slm_lab.env.vector import GymnasiumVectorEnv, VectorEnv
from slm_lab.env.wrapper import FrameStack
from slm_lab.spec.env import EnvSpec

ChosenBackend = Literal["gymnasium", "subprocess", "envpool", "ale", "playground"]

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


def make_env(
    spec: EnvSpec, *, seed: int, render: bool = False, cores: int | None = None
) -> VectorEnv:
    """Make the batch; all random streams (one per env, one for random actions) come from `seed`.

    With `render`, `VectorEnv.render()` gives pictures; Gymnasium in this process replaces envpool
    and worker processes, but for `playground/`, which envpool draws. `cores` may be kept busy; by
    default all of the machine.
    """
    backend = choose_backend(spec, render=render)
    env: VectorEnv
    if backend == "ale":
        return make_atari(spec, seed=seed, render=render)  # which stacks frames itself
    if backend == "playground":
        from slm_lab.env.playground_jax import PlaygroundVectorEnv  # torch: slow to import

        env = PlaygroundVectorEnv(spec, seed=seed)
    elif backend == "envpool":
        if spec.name.startswith(PREFIX):
            env = make_playground_pool(spec, seed=seed, render=render)
        else:
            env = make_envpool(spec, seed=seed)
    elif backend == "subprocess":
        env = SubprocessVectorEnv(spec, seed=seed, cores=cores)
    else:
        envs = make_gymnasium_envs(spec, render=render)
        env = GymnasiumVectorEnv(
            envs, seed=seed, threads=spec.num_threads or 1, action_mask=spec.action_mask
        )
    if spec.frame_stack == 1:
        return env
    if env.spaces.privileged:
        raise EnvError("env.frame_stack: cannot stack an observation that is partly env.privileged")
    return FrameStack(env, spec.frame_stack, spec.frame_op)


def choose_backend(spec: EnvSpec, *, render: bool = False) -> ChosenBackend:
    """The engine that runs an env, which must be able to do what the spec asks for."""
    chosen = _choose(spec, render=render)
    if spec.wrappers and chosen not in ("gymnasium", "subprocess"):
        raise EnvError(
            f"env.wrappers: `{spec.name}` is run by {chosen}, which steps all copies at once and "
            "has no single env to put a wrapper around. Leave them out, or use an env that "
            "env.backend: gymnasium or subprocess runs."
        )
    return chosen


def _choose(spec: EnvSpec, *, render: bool) -> ChosenBackend:
    """`env.backend` decides, unless it is `auto`.

    `auto` takes ale-py's own batch for Atari games. For other envs it takes Gymnasium, which
    resumes exactly, unless envpool is clearly faster. An explicit `envpool` needs an id and kwargs
    that envpool knows.
    """
    if spec.name.startswith(PREFIX):
        return _choose_for_playground(spec)
    if spec.backend == "ale" or (spec.backend == "auto" and spec.name.startswith("ALE/")):
        return "ale"
    if render or spec.backend == "gymnasium":
        return "gymnasium"
    if spec.backend in ("envpool", "subprocess"):
        return spec.backend
    if spec.backend != "auto":
        raise EnvError(
            f"env.backend: `{spec.backend}` plays `playground/...` only, found env.name "
            f"`{spec.name}`. Expected auto, gymnasium, subprocess, envpool or ale."
        )
    envpool_pays = (
        spec.name in FASTER_ON_ENVPOOL
        and spec.num_envs >= 8
        and (spec.num_threads or 1) >= 2
        and not spec.wrappers
        and not spec.kwargs  # envpool may name or mean them differently
        and importlib.util.find_spec("envpool") is not None
    )
    return "envpool" if envpool_pays else "gymnasium"


def _choose_for_playground(spec: EnvSpec) -> Literal["envpool", "playground"]:
    """For MuJoCo Playground `auto` takes the real package on a CUDA device, which it is made for.

    On a CPU it takes envpool's C++ tasks; without envpool it takes the package there, too.
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
    import torch  # here alone: the workers of `subprocess` import this module, and start sooner

    wants_cuda = torch.cuda.is_available() if spec.device is None else spec.device != "cpu"
    return "playground" if has_package and (wants_cuda or not has_envpool) else "envpool"
