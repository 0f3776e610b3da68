"""Every shipped spec, by every name: its env and agent are made, act, and learn once.

Sizes are cut so that one update comes within a few steps; everything else is as shipped.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from slm_lab import make_agent, make_env
from slm_lab.spec import Spec, example_sets, load_spec, packaged_specs

SHIPPED = list(packaged_specs())

# Python package an env needs, by how its name begins; the rest is classic control.
PACKAGES = {
    "ALE/": "ale_py",
    "playground/": "envpool",
    "LunarLander": "Box2D",
    "BipedalWalker": "Box2D",
}

visited: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), SHIPPED, ids=lambda part: str(part))
def test_a_shipped_spec_makes_its_env_and_agent_and_learns(file: Path, name: str):
    spec = cut_down(load_spec(file, name, example_sets(file, name)))
    package = package_of(spec.env.name)
    if importlib.util.find_spec(package) is None:
        visited["without its extra"] += 1
        pytest.skip(f"needs {package}")
    assert updates_within(spec, frames=200) >= 1
    visited["built and learned"] += 1


@pytest.mark.slow
def test_every_shipped_spec_was_visited(capsys):
    """Last in the file, and says what was covered."""
    if not visited:
        pytest.skip("run with the whole file")
    with capsys.disabled():
        files = len({file for file, _ in SHIPPED})
        told = ", ".join(f"{count} {what}" for what, count in visited.items())
        print(f"\n{len(SHIPPED)} shipped specs in {files} files: {told}")  # noqa: T201
    assert visited.total() == len(SHIPPED)


def cut_down(spec: Spec) -> Spec:
    """The same spec with few envs, short rollouts, small batches, on the CPU, not compiled."""
    tree = spec.to_dict()
    algorithm, memory = tree["agent"]["algorithm"], tree["agent"]["memory"]
    changes: dict[str, Any] = {"meta.compile": "off", "env.num_envs": 2, "agent.net.gpu": False}
    sizes = {"training_frequency": 4, "training_start_step": 8, "training_iter": 1}
    sizes |= {"time_horizon": 8, "minibatch_size": 8, "training_epoch": 1, "critic_iter": 1}
    for key, size in sizes.items():
        if algorithm.get(key):
            changes[f"agent.algorithm.{key}"] = size
    for key, size in {"batch_size": 8, "max_size": 1000}.items():
        if key in memory:
            changes[f"agent.memory.{key}"] = size
    return spec.with_values(changes)


def package_of(env_id: str) -> str:
    for start, package in PACKAGES.items():
        if env_id.startswith(start):
            return package
    return "mujoco" if env_id.endswith("-v5") else "gymnasium"


def updates_within(spec: Spec, *, frames: int) -> int:
    """Updates made by the first one and two steps more, or by `frames` without any."""
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    obs, updates, steps_after = env.reset(), 0, 0
    for frame in range(0, frames, env.num_envs):
        action = agent.act(obs, frame=frame)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs
        if agent.ready:
            metrics = agent.update(frame)
            assert all(torch.isfinite(torch.tensor(v)) for v in metrics.values.values()), metrics
            updates += 1
        steps_after += updates > 0
        if steps_after > 2:
            break
    env.close()
    return updates
