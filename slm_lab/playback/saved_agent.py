"""Load an agent from a run folder: its saved spec, net and statistics.

The agent does not learn: its normalisers are frozen, it has no memory, and nets that only learning
needs (critics, targets) keep their initial values. Folders of the original SLM Lab load too;
`_in_our_names` translates the few names in which its state dicts differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.env.given import give_again
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.runs.find import SavedRun, open_run
from slm_lab.spec import Spec
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.trust import admit_modules
from slm_lab.training.init_from import copy_fitting, own_parts
from slm_lab.training.saving import load_model
from slm_lab.training.seeding import replay_seeds

State = dict[str, Tensor]

STATISTICS = "obs_normalizer"
# What building an agent may allocate, in elements: several times its acting net (initialisation,
# optimiser slots, targets), and enough for critics much wider than a tiny actor.
ALLOCATION_FACTOR, ALLOCATION_FLOOR = 16, 2**26
FACTORIES = torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn


def load_agent(
    folder: str | Path,
    *,
    trial: int | None = None,
    session: int | None = None,
    best: bool = True,
    num_envs: int | None = None,
    seed: int = 0,
    trust: Collection[str] = (),
    checkpoint: str = "",
    learns: bool = False,
    env: Any = None,
) -> tuple[Agent, VectorEnv]:
    """Load a saved agent, ready to act, and a batch of its env.

        agent, env = load_agent("data/ppo_cartpole_2026_01_01_120000")
        action = agent.act(env.reset(), explore=False)

    By default the best agent of the best session. `folder` may also be a spec file in it, or
    `latest`; `checkpoint` names an agent that a callback saved. Raises RunFolderError for a folder
    that cannot be used.

    An env of a module (`my_package.envs:MyEnv-v0`) is code that the folder's spec asks for. It is
    imported if you have trained with it here, or name it: `trust=("my_package.envs",)`. An env that
    was given as an object, and exists no longer, is given again: `env=MyEnv`.

    There is one env, or `num_envs`. With `learns` there are as many as in training, and the agent
    has its critics, target nets and a memory, for `observe` and `update`; its optimiser begins
    anew.
    """
    run = open_run(folder, trial=trial, trust=trust, checkpoint=checkpoint)
    if env is not None:
        give_again(run.spec.env.name, env)
    session = run.best_session(best=best) if session is None else session
    num_envs = num_envs or (run.spec.env.num_envs if learns else 1)
    return load_session(run, session, best, num_envs, seed, learns=learns)


def load_session(
    run: SavedRun,
    session: int,
    best: bool,
    num_envs: int,
    seed: int = 0,
    *,
    render: bool = False,
    learns: bool = False,
) -> tuple[Agent, VectorEnv]:
    """Load the agent of a session, with `num_envs` envs; all random draws come from `seed`."""
    if session not in run.sessions(best=best):
        saved = ", ".join(map(str, run.sessions(best=best))) or "none"
        raise RunFolderError(
            f"{run.layout.predir / 'model'}: no {run.kind(best=best)} agent of trial "
            f"{run.trial} session {session}. Saved: session {saved}."
        )
    # Callbacks belong to training: whoever plays an agent need not trust theirs.
    spec = run.spec.with_values({"meta.callbacks": []})
    admit_modules(spec)
    states = read_states(run, session, best=best)
    spec = _loaded_spec(spec, states, num_envs, learns=learns)
    env_seed, agent_seed = replay_seeds(seed, run.trial, session)
    env = make_env(spec.env, seed=env_seed, render=render)
    try:
        elements = sum(tensor.numel() for state in states.values() for tensor in state.values())
        with _AllocationLimit(ALLOCATION_FACTOR * elements + ALLOCATION_FLOOR, run):
            agent = make_agent(spec, env.spaces, seed=agent_seed, learns=learns)
        agent.spec = run.spec  # with the envs and callbacks of its training
        if learns:
            take_all(agent, run, session, best=best)
        _fill(agent, states, {name: run.model_path(session, name, best=best) for name in states})
    except Exception:
        env.close()
        raise
    return agent, env


def read_states(run: SavedRun, session: int, *, best: bool) -> dict[str, State]:
    """Read the state dicts that acting needs, by file name."""
    nets = ["net"] if run.spec.agent.algorithm_info.learns else []
    statistics = [STATISTICS] if run.spec.env.normalize_obs else []
    states = {}
    for name in nets + statistics:
        path = run.model_path(session, name, best=best)
        if name == STATISTICS and not path.exists():
            raise RunFolderError(
                f"{path}: no such file, and env.normalize_obs is true: the net cannot be shown "
                "observations as it learned to see them. The original SLM Lab does not save these "
                "statistics; an agent that it trained with normalize_obs cannot be replayed."
            )
        states[name] = load_model(path, folder=run.layout.predir)
        for key, tensor in states[name].items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                found = "is not finite; training had diverged. Try another session."
                raise RunFolderError(f"{path}: `{key}` {found}")
    return states


def _loaded_spec(spec: Spec, states: dict[str, State], num_envs: int, *, learns: bool) -> Spec:
    """The same agent's spec for `num_envs` envs, on the CPU if it only acts."""
    changes: dict[str, Any] = {"env.num_envs": num_envs}
    if not learns:
        changes["agent.net.gpu"] = False
    if "net" in states and not {"log_std", "net.log_std"} & states["net"].keys():
        # The original ignores log_std_init for one-dimensional actions and in shared nets.
        given = spec.to_dict()["agent"]["net"]
        keys = [key for key in ("log_std_init", "actor_log_std_init") if given.get(key) is not None]
        changes |= {f"agent.net.{key}": None for key in keys}
    return spec.with_values(changes)


def take_all(agent: Agent, run: SavedRun, session: int, *, best: bool) -> None:
    """Copy every saved tensor that fits: critics and targets beside the net."""
    parts = own_parts(agent)
    for name, tensors in parts.items():
        path = run.model_path(session, name, best=best)
        if path.exists():
            copy_fitting(load_model(path, folder=run.layout.predir), tensors, str(path))
    agent.load_statistics({name: parts[name] for name in agent.statistics()})


def _fill(agent: Agent, states: dict[str, State], paths: dict[str, Path]) -> None:
    if "net" in states:
        net = agent.algorithm.modules["net"]
        expected = net.state_dict()
        state = _in_our_names(states["net"], expected)
        _check_shapes(state, expected, paths["net"])
        net.load_state_dict(state)
    if STATISTICS in states:
        expected = agent.statistics()[STATISTICS]
        _check_shapes(states[STATISTICS], expected, paths[STATISTICS])
        agent.load_statistics({STATISTICS: states[STATISTICS]})


def _in_our_names(state: State, expected: State) -> State:
    """Rename the entries of an original state dict: dueling nets list their heads twice there, and
    batch renormalisation counts `step`."""
    renamed = {}
    for name, tensor in state.items():
        if name.endswith(".step") and f"{name}s" in expected:
            renamed[f"{name}s"] = tensor
        elif name in expected or not name.startswith("model_tails."):
            renamed[name] = tensor
    return renamed


def _check_shapes(state: State, expected: State, path: Path) -> None:
    problems = [f"lacks {name}" for name in expected if name not in state]
    problems += [f"has {name}, unknown to this net" for name in state if name not in expected]
    problems += [
        f"{name} is {list(state[name].shape)}, expected {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise RunFolderError(
            f"{path}: does not fit the net of the saved spec: {'; '.join(problems[:3])}{more}. "
            "The file belongs to another spec, or the spec was changed."
        )


class _AllocationLimit(TorchFunctionMode):
    """Refuses tensors far larger than the saved files, before memory is allocated: a stranger's
    `hid_layers: [1000000000]` must be an error, not a crash."""

    def __init__(self, elements: int, run: SavedRun) -> None:
        super().__init__()
        self._left, self._folder = elements, run.layout.predir

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FACTORIES:
            sizes = args[0] if args and isinstance(args[0], list | tuple) else args
            self._left -= math.prod(sizes or (kwargs or {}).get("size", ()))
            if self._left < 0:
                found = "its spec describes nets far larger than the saved ones. Not built."
                raise RunFolderError(f"{self._folder}: {found}")
        return func(*args, **(kwargs or {}))
