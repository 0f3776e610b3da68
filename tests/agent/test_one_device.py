"""A GPU is never waited for in secret: learning stays on the device that its net is on.

Torch's `meta` device stands for it. Its tensors have shapes but no values, so that whatever asks
for one on the way (`item`, `numpy`, `if tensor:`) fails, as does an operator on two devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slm_lab.agent import agent as agents
from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm import a2c, ppo
from slm_lab.agent.learning.learner import Learner
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.spec import Spec
from tests.tiny import TINY_CONV_NET

META = torch.device("meta")
CONTINUOUS = {"env.name": "Pendulum-v1"}
IMAGES: dict[str, Any] = {
    "env.name": "ALE/Pong-v5",
    "agent.net": TINY_CONV_NET,
}
AGENTS: list[tuple[str, dict[str, Any]]] = [
    ("Reinforce", {}),
    ("ActorCritic", {"agent.algorithm.critic_iter": 2}),
    ("ActorCritic", {"agent.algorithm.normalize_v_targets": True}),
    ("PPO", {"agent.algorithm.recompute_advantages": True}),
    ("PPO", {"agent.algorithm.normalize_advantages": "percentile"}),
    ("PPO", CONTINUOUS | {"env.normalize_obs": True, "env.normalize_reward": True}),
    ("PPO", IMAGES),
    ("SIL", {}),
    ("PPOSIL", {}),
    ("SARSA", {}),
    ("VanillaDQN", {}),
    ("DQN", {}),
    ("DoubleDQN", {}),
    ("SoftActorCritic", {}),
    ("SoftActorCritic", CONTINUOUS),
    ("CrossQ", {}),
    ("CrossQ", CONTINUOUS),
    ("TD3", CONTINUOUS),
]


class OneDevice(TorchDispatchMode):
    """Refuses an operator on tensors of two devices; a single number may come from anywhere."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dim()]
        devices = {x.device.type for x in inputs}
        assert len(devices) <= 1, f"{func} on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "resolve_device", lambda *_: META)
    # The one place where an update asks for values, once, after its last step.
    # What an update reads for its metrics, once.
    monkeypatch.setattr(Learner, "mean_metrics", lambda self: {"alpha": 0.0})
    for module in (a2c, ppo):
        monkeypatch.setattr(module, "explained_variance", lambda *_: torch.zeros(()))


def collected(spec: Spec) -> tuple[Agent, VectorEnv, int]:
    """An agent with enough random experience for an update."""
    env = make_env(spec.env, seed=0)
    agent = agents.make_agent(spec, env.spaces, seed=0)
    obs, frame = env.reset(), 0
    while not agent.ready:
        action = env.sample_action()
        transition = env.step(action)
        agent.observe(obs, action, transition)
        obs, frame = transition.obs, frame + env.num_envs
    return agent, env, frame


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize(("algorithm", "values"), AGENTS)
def test_an_update_keeps_to_the_device_of_the_net(
    algorithm: str, values: dict[str, Any], make_spec: Any
) -> None:
    agent, _, frame = collected(make_spec(algorithm, values))
    batch = agent.experience.batch(frame)

    with OneDevice():
        agent.algorithm.update(batch, frame)

    assert all(x.device == META for x in agent.algorithm.learner.state.values())


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize(("algorithm", "values"), AGENTS)
@pytest.mark.parametrize("explore", [True, False])
def test_acting_keeps_to_the_device_of_the_net(
    algorithm: str, values: dict[str, Any], explore: bool, make_spec: Any
) -> None:
    env = make_env(make_spec(algorithm, values).env, seed=0)
    agent = agents.make_agent(make_spec(algorithm, values), env.spaces, seed=0)
    obs = torch.from_numpy(env.reset()).to(META)

    with OneDevice():
        action = agent.algorithm.act(obs, frame=0, explore=explore)

    assert action.device == META


def test_two_devices_in_one_operator_are_noticed() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="cpu"):
        torch.mm(torch.ones(2, 2), torch.empty(2, 2, device=META))
