"""TD3 and DDPG: targets and losses by hand, what moves when, exploration, probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.td3 import (
    TD3,
    NoisyAction,
    clipped_double_target,
    policy_loss,
    smoothed_action,
)
from slm_lab.env.make import make_env
from slm_lab.spec import Spec, SpecError
from slm_lab.training.loop import Loop, evaluate
from slm_lab.types import ReplayBatch
from tests import masks
from tests.agent.linear import LINEAR, ONE, MakeBatch, MakeSpec, make_linear

Train = Callable[..., Loop]

GAMMA = 0.9
# Linear nets: the actor is tanh(w s + b), a critic w_s s + w_a a + b.
RANDOM = LINEAR | {"agent.net.init_fn": None}


def make_td3(make_spec: MakeSpec, algorithm: str = "TD3", **keys: Any) -> TD3:
    values = {f"agent.algorithm.{key}": value for key, value in keys.items()}
    return make_linear(TD3, make_spec(algorithm, RANDOM | values), ONE)


def set_nets(td3: TD3, **nets: list[float]) -> None:
    for name, weights in nets.items():
        td3.learner.state[name].copy_(torch.tensor(weights))


def one_row(make_batch: MakeBatch) -> ReplayBatch:
    return make_batch([[1.0]], [[0.5]], [1.0], [[2.0]], [0.9])


# The equations


def test_the_noise_is_clipped_and_then_the_action() -> None:
    action, noise = torch.tensor([0.0, 0.8, -0.8, 0.1]), torch.tensor([0.9, 0.3, -2.0, -0.2])
    # 0 + 0.5; 0.8 + 0.3 = 1.1 -> 1; -0.8 - 0.5 = -1.3 -> -1; 0.1 - 0.2
    expected = [0.5, 1.0, -1.0, -0.1]
    assert smoothed_action(action, noise, clip=0.5).tolist() == pytest.approx(expected)


def test_the_smallest_critic_is_the_target_of_each_row() -> None:
    reward, discount = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.0])
    next_q = [torch.tensor([4.0, 8.0, 9.0]), torch.tensor([6.0, 2.0, 9.0])]
    assert clipped_double_target(reward, discount, next_q).tolist() == [3.0, 2.0, 1.0]
    assert clipped_double_target(reward, discount, next_q[:1]).tolist() == [3.0, 5.0, 1.0]


def test_the_policy_climbs_its_critic() -> None:
    q_value = torch.tensor([1.0, 3.0], requires_grad=True)
    loss = policy_loss(q_value)
    assert loss.item() == -2.0
    assert torch.autograd.grad(loss, q_value)[0].tolist() == [-0.5, -0.5]


# One update


def test_critics_learn_from_the_smaller_value_of_the_smoothed_action(make_spec: MakeSpec) -> None:
    td3 = make_td3(make_spec, target_noise_clip=0.5)
    set_nets(
        td3, net=[9.0, 9.0], target_net=[0.0, math.atanh(0.2)],
        q1_net=[0.0, 1.0, 0.0], q2_net=[0.0, 0.0, 2.0],
        target_q1_net=[0.0, 10.0, 0.0], target_q2_net=[3.0, 0.0, 0.0],
    )  # fmt: skip
    rows = [torch.tensor(x) for x in ([[1.0]], [[0.5]], [1.0], [[2.0]], [0.9], [1.0])]
    rows.append(torch.tensor([[-0.6]]))  # the noise
    changes, metrics = td3._critic_step(td3.learner.state, *rows)
    # a' = 0.2 - 0.5: Q1' = -3, Q2' = 6. Target 1 - 2.7; Q1 = 0.5, Q2 = 2.
    target = 1 + 0.9 * -3
    assert changes["td_error"].tolist() == pytest.approx([target - 1.25])
    assert metrics["loss"].item() == pytest.approx((target - 0.5) ** 2 + (target - 2) ** 2)
    assert metrics["q_value"].item() == pytest.approx(0.5)
    # Q1 learns by 2 (Q1 - target) times (s, a, 1), at a rate of 0.1.
    step = 0.1 * 2 * (0.5 - target)
    moved = [0.0 - step, 1.0 - step * 0.5, 0.0 - step]
    assert changes["q1_net"].tolist() == pytest.approx(moved)
    assert "net" not in changes


def test_the_actor_follows_the_first_critic_and_leaves_both_alone(make_spec: MakeSpec) -> None:
    td3 = make_td3(make_spec)
    set_nets(td3, net=[0.0, 0.0], q1_net=[0.0, 2.0, 1.0], q2_net=[0.0, -5.0, 0.0])
    changes, metrics = td3._policy_step(td3.learner.state, torch.tensor([[3.0]]), ())
    assert metrics["policy_loss"].item() == -1.0  # a = tanh 0
    # dQ1/da = 2, da/dw = s, da/db = 1; a step of 0.1
    assert changes["net"].tolist() == pytest.approx([0.6, 0.2])
    assert not {"q1_net", "q2_net"} & changes.keys()


def test_rows_weigh_as_priorities_say_and_n_step_discounts_count(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    td3 = make_td3(make_spec, "DDPG", policy_delay=9)
    set_nets(td3, q1_net=[0.0, 0.0, 0.0], target_q1_net=[0.0, 0.0, 8.0])
    batch = make_batch([[1.0]], [[0.5]], [1.0], [[2.0]], [0.25], weight=[0.5])
    metrics = td3.update(batch, frame=0)
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == [3.0]  # 1 + 0.25 * 8
    assert metrics.values["loss"] == 4.5


MOVING = ("net", "target_net", "q1_net", "target_q1_net")


def moved_by(td3: TD3, batch: ReplayBatch) -> set[str]:
    before = {key: td3.learner.state[key].clone() for key in MOVING}
    td3.update(batch, frame=0)
    return {key for key in MOVING if not torch.equal(before[key], td3.learner.state[key])}


def test_actor_and_targets_wait_for_the_policy_delay(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    td3 = make_td3(make_spec, policy_delay=3)
    moved = [moved_by(td3, one_row(make_batch)) for _ in range(6)]
    assert moved == [{"q1_net"}, {"q1_net"}, set(MOVING)] * 2
    assert td3.targets_kept() == 0.5
    moved_by(td3, one_row(make_batch))
    assert td3.targets_kept() == 1.0


def test_both_targets_follow_by_the_share_of_polyak(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    td3 = make_td3(make_spec, policy_delay=1)
    before = td3.learner.state_dict()
    td3.update(one_row(make_batch), frame=0)
    for target, online in (("target_net", "net"), ("target_q2_net", "q2_net")):
        expected = before[target].lerp(td3.learner.state[online], 0.5)
        assert torch.equal(td3.learner.state[target], expected)
    assert td3.target_nets().keys() == {"target_net", "target_q1_net", "target_q2_net"}


def test_ddpg_has_one_critic_no_noise_and_no_delay(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    ddpg = make_td3(make_spec, "DDPG")
    assert ddpg.modules.keys() == {"net", "q1_net"}
    before = ddpg.state_dict()["generator"]
    assert moved_by(ddpg, one_row(make_batch)) == set(MOVING)
    assert torch.equal(ddpg.state_dict()["generator"], before)
    td3 = make_td3(make_spec)
    td3.update(one_row(make_batch), frame=0)
    assert not torch.equal(td3.state_dict()["generator"], before)


def test_each_addition_of_td3_is_a_key_of_ddpg(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    both = {"num_critics": 2, "policy_delay": 2, "target_noise": 0.2}
    built, td3 = make_td3(make_spec, "DDPG", **both), make_td3(make_spec)
    for _ in range(4):
        for each in (built, td3):
            each.update(one_row(make_batch), frame=0)
    assert built.learner.state.keys() == td3.learner.state.keys()
    assert all(torch.equal(built.learner.state[k], v) for k, v in td3.learner.state.items())


# Acting


def noisy(make_spec: MakeSpec, schedule: dict[str, Any]) -> tuple[TD3, torch.Tensor]:
    td3 = make_td3(make_spec, explore_var_spec=schedule, training_start_step=0)
    set_nets(td3, net=[0.0, math.atanh(0.5)])
    return td3, torch.zeros(4, 1)


def test_the_first_actions_are_uniform_and_then_noisy_ones(make_spec: MakeSpec) -> None:
    td3 = make_td3(make_spec, training_start_step=100)
    set_nets(td3, net=[0.0, math.atanh(0.5)])
    obs = torch.zeros(4, 1)
    first = torch.cat([td3.act(obs, frame=99) for _ in range(500)])
    assert first.abs().max() <= 1
    assert first.mean().item() == pytest.approx(0.0, abs=0.05)
    assert first.std().item() == pytest.approx(1 / math.sqrt(3), abs=0.03)
    later = torch.cat([td3.act(obs, frame=100) for _ in range(500)])
    assert later.mean().item() == pytest.approx(0.5, abs=0.02)
    assert later.std().item() == pytest.approx(0.1, abs=0.01)
    assert td3.act(obs, frame=0, explore=False).tolist() == [[pytest.approx(0.5)]] * 4


def test_the_noise_is_a_schedule_and_its_actions_stay_in_bounds(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    falling = {"name": "linear_decay", "start_val": 0.8, "end_val": 0.0, "end_step": 1000}
    td3, obs = noisy(make_spec, falling)
    spread = [torch.cat([td3.act(obs, frame=f) for _ in range(200)]) for f in (0, 1000)]
    assert spread[0].max() == 1.0
    assert spread[0].std() > 0.3
    assert spread[1].tolist() == [[pytest.approx(0.5)]] * 800
    assert td3.update(one_row(make_batch), frame=500).values["explore_var"] == pytest.approx(0.4)


def test_numpy_and_torch_act_alike(make_spec: MakeSpec) -> None:
    spec = make_spec("TD3").agent.algorithm
    td3: Any = make_td3(make_spec)
    choice = NoisyAction(spec.explore_var_spec, td3._setup)  # type: ignore[attr-defined]
    heads, noise = np.array([[0.3], [-4.0]], np.float32), torch.tensor([[1.0], [-2.0]])
    (expected,) = choice([torch.from_numpy(heads)], *choice.inputs(noise, 0))
    assert torch.allclose(choice.in_numpy([heads], noise, 0), expected)
    assert expected.tolist() == [[pytest.approx(math.tanh(0.3) + 0.1)], [-1.0]]


# Probes


def probe_spec(make_spec: MakeSpec, algorithm: str, env: str, **values: Any) -> Spec:
    """Critics learn fast; an actor that did, too, would saturate before they know anything."""
    fast = {
        "env.name": f"{env}-v0", "agent.net.optim_spec.lr": 0.003, "agent.net.polyak_coef": 0.2,
        "agent.critic_net": {"optim_spec": {"lr": 0.02}},
        "agent.algorithm.training_iter": 1, "agent.algorithm.policy_delay": 1,
    }  # fmt: skip
    return make_spec(algorithm, fast | values)


def values_of(agent: Agent, *obs: float) -> list[float]:
    """Q1 of each observation and the policy's action there."""
    rows = torch.tensor(obs)[:, None]
    action = agent.algorithm.act(rows, explore=False)
    values: list[float] = agent.algorithm.modules["q1_net"](torch.cat([rows, action], -1))[0]
    return torch.as_tensor(values).flatten().tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "probe", "frames", "at", "answers"),
    [
        ("DDPG", "DelayedReward", 1200, [0.0, 1.0], [GAMMA, 1.0]),
        ("TD3", "DelayedReward", 1200, [0.0, 1.0], [GAMMA, 1.0]),
        ("TD3", "Truncated", 2000, [0.0], [1 / (1 - GAMMA)]),
    ],
)
def test_the_value_of_a_probe(
    make_spec: MakeSpec, train: Train, algorithm: str, probe: str, frames: int,
    at: list[float], answers: list[float],
) -> None:  # fmt: skip
    loop = train(probe_spec(make_spec, algorithm, f"steered/{probe}"), frames)
    assert values_of(loop.agent, *at) == pytest.approx(answers, rel=0.06, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["DDPG", "TD3"])
def test_the_policy_depends_on_the_observation(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    loop = train(probe_spec(make_spec, algorithm, "steered/ActionAndObs"), 1200)
    wrong, right = loop.agent.act(np.array([[-1.0], [1.0]], np.float32), explore=False)
    assert wrong < 0 < right


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["DDPG", "TD3"])
def test_a_continuous_action_finds_its_target(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    keys = {"agent.algorithm.training_start_step": 200, "agent.net.optim_spec.lr": 0.001}
    keys |= {"agent.critic_net.optim_spec.lr": 0.05}
    loop = train(probe_spec(make_spec, algorithm, "probe/ContinuousAction", **keys), 1600)
    action = loop.agent.act(np.zeros((1, 1), np.float32), explore=False)
    assert action.tolist()[0] == pytest.approx([0.5], abs=0.1)
    assert evaluate(loop.agent, loop.env) > -0.02


# What does not fit


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"agent.algorithm.action_pdtype": "Beta"}, "action_pdtype: found Beta; TD3 acts by a det"),
        ({"agent.net.log_std_init": -1.0}, "agent.net.log_std_init: found -1; TD3 acts by a det"),
        ({"agent.algorithm.target_noise": -0.1}, "agent.algorithm.target_noise"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_by_name(
    make_spec: MakeSpec, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec("TD3", values)
    assert says in str(caught.value)


def test_envs_of_discrete_actions_and_masks_are_refused(make_spec: MakeSpec) -> None:
    spec = make_spec("TD3", {"env.name": "probe/ActionMatters-v0"})
    with pytest.raises(SpecError, match=r"TD3 takes continuous actions; .* has discrete\. Use PPO"):
        make_agent(spec, make_env(spec.env, seed=0).spaces, seed=0)
    with masks.registered():
        spec = make_spec("TD3", {"env.name": masks.MINES})
        with pytest.raises(
            SpecError, match=r"env\.action_mask: TD3 cannot keep to the action mask"
        ):
            make_agent(spec, make_env(spec.env, seed=0).spaces, seed=0)


def test_a_dueling_net_is_no_policy(make_spec: MakeSpec) -> None:
    spec = make_spec("TD3", {"agent.net.type": "DuelingMLPNet"})
    with pytest.raises(SpecError, match="DuelingMLPNet gives Q values and cannot be a policy"):
        make_agent(spec, ONE, seed=0)
