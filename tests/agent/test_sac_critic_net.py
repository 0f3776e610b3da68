"""`agent.critic_net` of SAC: critics with settings of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.types import Spaces
from tests.agent.linear import LINEAR, MakeBatch, MakeSpec
from tests.agent.test_sac import CONTINUOUS, DISCRETE, one_row


def make_sac(make_spec: MakeSpec, spaces: Spaces, values: dict[str, Any]) -> SoftActorCritic:
    sac = make_agent(make_spec("SoftActorCritic", values), spaces, seed=0).algorithm
    assert isinstance(sac, SoftActorCritic)
    return sac


def test_critics_have_layers_rate_schedule_and_targets_of_their_own(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    own = {
        "hid_layers": [7],
        "init_fn": None,
        "optim_spec": {"name": "Adam", "lr": 0.3},
        "lr_scheduler_spec": {"name": "LinearToZero", "frame": 100},
        "polyak_coef": 0.25,
    }
    net = {k: v for k, v in LINEAR.items() if not k.endswith("polyak_coef")}
    sac = make_sac(make_spec, CONTINUOUS, net | {"agent.critic_net": own})
    state = sac.learner.state
    for name in ("q1_net", "q2_net"):
        assert sac.modules[name].state_dict()["model.0.weight"].shape == (7, 2)
        assert f"{name}.slot.exp_avg" in state
    assert "net.slot.exp_avg" not in state
    before = sac.learner.state_dict()
    batch = make_batch([[1.0]], [[0.5]], [1.0], [[2.0]], [0.5])

    sac.update(batch, frame=0)
    assert not torch.equal(state["q1_net"], before["q1_net"])
    followed = before["target_q1_net"].lerp(state["q1_net"], 0.25)
    assert torch.equal(state["target_q1_net"], followed)
    sac.update(batch, frame=50)
    rates = {key: state[f"{key}.lr"].item() for key in ("net", "log_alpha", "q1_net", "q2_net")}
    # The temperature's rate is the actor's.
    assert list(rates.values()) == pytest.approx([0.1, 0.1, 0.15, 0.15])


def test_the_critics_own_loss_and_clipping_leave_the_actor_alone(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    own = {"agent.critic_net": {"loss_spec": {"name": "L1Loss"}, "clip_grad_val": 0.5}}
    values = LINEAR | own | {"agent.algorithm.fixed_alpha": 0.0}
    sac = make_sac(make_spec, DISCRETE, values)
    # Critics of zero: |3| for each of the two; squared it would be 18.
    assert sac.update(one_row(make_batch, reward=3.0), frame=0).values["loss"] == 6.0
    # Gradients of 1 at the weight and at the bias, cut to a norm of 0.5, times a rate of 0.1.
    assert sac.learner.state["q1_net"].norm().item() == pytest.approx(0.05, rel=1e-4)
    assert sac._actor.spec.clip_grad_val is None


def test_a_critic_net_that_changes_nothing_changes_no_number(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    values = LINEAR | {"agent.net.init_fn": None}
    plain = make_sac(make_spec, DISCRETE, values)
    own = make_sac(make_spec, DISCRETE, values | {"agent.critic_net": {}})
    for sac in (plain, own):
        sac.update(one_row(make_batch), frame=0)
    assert plain.learner.state.keys() == own.learner.state.keys()
    assert all(torch.equal(own.learner.state[k], v) for k, v in plain.learner.state.items())


def test_critics_of_their_own_go_on_from_a_saved_state(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    falling = {"optim_spec": {"lr": 0.3}, "lr_scheduler_spec": {"name": "StepLR", "step_size": 1}}
    values = LINEAR | {"agent.critic_net": falling}
    sac, resumed = (make_sac(make_spec, DISCRETE, values) for _ in range(2))
    sac.update(one_row(make_batch), frame=0)
    resumed.load_state_dict(sac.state_dict())
    for each in (sac, resumed):
        each.update(one_row(make_batch), frame=1)
    assert sac.learner.state["q1_net.lr"].item() == pytest.approx(0.03)
    assert all(torch.equal(resumed.learner.state[k], v) for k, v in sac.learner.state.items())
