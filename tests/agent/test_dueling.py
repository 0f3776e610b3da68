"""DuelingMLPNet: Q = V + A - mean A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.net.mlp import make_net
from slm_lab.spec import DuelingMLPNetSpec, Spec, SpecError
from slm_lab.types import Spaces


def spec(**keys: Any) -> DuelingMLPNetSpec:
    return DuelingMLPNetSpec.model_validate(
        {"type": "DuelingMLPNet", "hid_layers": [4], "hid_layers_activation": "relu", **keys}
    )


def test_q_is_the_value_plus_the_advantage_over_the_mean() -> None:
    net = make_net(spec(hid_layers=[]), (1,), (3,))
    state = {
        "v.weight": torch.tensor([[2.0]]),
        "v.bias": torch.tensor([1.0]),
        "adv.weight": torch.tensor([[1.0], [0.0], [2.0]]),
        "adv.bias": torch.tensor([0.0, 6.0, 0.0]),
    }
    net.load_state_dict(state)
    # s = 2: V = 5, A = (2, 6, 4) with mean 4
    (q_value,) = net(torch.tensor([[2.0], [0.0]]))
    assert q_value.tolist() == [[3.0, 7.0, 5.0], [-1.0, 5.0, -1.0]]


def test_a_shift_of_all_advantages_changes_nothing() -> None:
    net: Any = make_net(spec(), (2,), (3,))
    obs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    (before,) = net(obs)
    with torch.no_grad():
        net.adv.bias += 7.0
    assert torch.allclose(net(obs)[0], before, atol=1e-5)
    assert torch.allclose(before.mean(-1, keepdim=True), net.v(net.model_body(obs)), atol=1e-5)


def test_parameters_have_the_names_of_existing_checkpoints() -> None:
    net = make_net(spec(hid_layers=[4, 3]), (2,), (5,))
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    assert shapes == {
        "model_body.0.weight": (4, 2),
        "model_body.0.bias": (4,),
        "model_body.2.weight": (3, 4),
        "model_body.2.bias": (3,),
        "v.weight": (1, 3),
        "v.bias": (1,),
        "adv.weight": (5, 3),
        "adv.bias": (5,),
    }


def test_several_heads_are_refused_by_the_nets_key() -> None:
    with pytest.raises(SpecError, match=r"agent\.net\.type: a dueling net has one head"):
        make_net(spec(), (2,), (3, 1))


def test_a_dqn_learns_with_it(make_spec: Callable[..., Spec]) -> None:
    values = {"agent.net.type": "DuelingMLPNet"}
    agent = make_agent(make_spec("DQN", values), Spaces((1,), "float32", "discrete", (2,)), seed=0)
    assert isinstance(agent.algorithm, DQN)
    assert "adv.weight" in agent.algorithm.modules["net"].state_dict()
