"""TQC: the truncated mixture, its target and losses by hand; what it shares with SAC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.tqc import TQC, TruncatedQuantiles, truncated_mixture
from slm_lab.env.make import make_env
from slm_lab.spec import Spec, SpecError
from slm_lab.spec.algorithm.tqc import TQCSpec
from slm_lab.training.loop import Loop
from tests.agent.linear import LINEAR, ONE, MakeBatch, MakeSpec, make_linear

Train = Callable[..., Loop]

GAMMA = 0.9
SMALL = {"agent.algorithm.num_quantiles": 2, "agent.algorithm.top_quantiles_to_drop_per_net": 1}


def make_tqc(make_spec: MakeSpec, **keys: Any) -> TQC:
    values = {f"agent.algorithm.{key}": value for key, value in keys.items()}
    spec = make_spec("TQC", LINEAR | SMALL | values)
    return make_linear(TQC, spec, ONE, fixed_alpha=keys.get("fixed_alpha", 0.0))


def quantiles(*values: float) -> torch.Tensor:
    """A linear critic of constant quantiles: no weights of (s, a), and these biases."""
    return torch.cat([torch.zeros(2 * len(values)), torch.tensor(values)])


# The equations


def test_the_largest_atoms_of_all_critics_together_are_left_out() -> None:
    first = torch.tensor([[3.0, 1.0, 7.0], [0.0, 0.0, 0.0]])
    second = torch.tensor([[9.0, 8.0, 2.0], [5.0, -1.0, 1.0]])
    # One for each critic: 8 and 9, both of the second; then 5 and 1.
    kept = truncated_mixture([first, second], dropped_per_net=1)
    assert kept.tolist() == [[1.0, 2.0, 3.0, 7.0], [-1.0, 0.0, 0.0, 0.0]]
    assert truncated_mixture([first, second], 0).shape == (2, 6)
    assert truncated_mixture([first], 2).tolist() == [[1.0], [0.0]]


def kind(**keys: Any) -> TruncatedQuantiles:
    return TruncatedQuantiles(TQCSpec(name="TQC", **keys))


def test_every_kept_atom_is_a_target() -> None:
    later = torch.tensor([[3.0, 1.0]]), torch.tensor([[9.0, 5.0]])
    one_less = kind(num_quantiles=2, top_quantiles_to_drop_per_net=1)
    target, _ = one_less.target(
        torch.tensor([1.0]), torch.tensor([0.5]), later, torch.tensor([-2.0]), torch.tensor(0.1)
    )
    # Atoms 1 and 3 are kept: 1 + 0.5 * (z - 0.1 * -2)
    assert target.tolist() == [[pytest.approx(1.6), pytest.approx(2.6)]]
    assert one_less.target_mean(target).item() == pytest.approx(2.1)


def test_the_loss_of_a_critic_by_hand() -> None:
    output, target = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    # tau 1/4: errors 1 and 4 have Huber 0.5 and 3.5, weight 1/4.
    # tau 3/4: errors -1 and 2 have Huber 0.5 and 1.5, weights 1/4 and 3/4.
    low, high = 0.25 * (0.5 + 3.5) / 2, (0.25 * 0.5 + 0.75 * 1.5) / 2
    loss = kind(num_quantiles=2, top_quantiles_to_drop_per_net=0).loss(output, target)
    assert loss.tolist() == [pytest.approx((low + high) / 2)]


# One update


def test_critics_learn_from_the_mixture_of_their_targets(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    tqc = make_tqc(make_spec, fixed_alpha=0.0, num_critics=3)
    critics = {"q1_net": (0.0, 2.0), "q2_net": (1.0, 1.0), "q3_net": (4.0, 8.0)}
    critics |= {"target_q1_net": (6.0, 2.0), "target_q2_net": (4.0, 9.0)}
    critics |= {"target_q3_net": (8.0, 2.0)}
    for name, values in critics.items():
        tqc.learner.state[name].copy_(quantiles(*values))
    batch = make_batch([[1.0]], [[0.5]], [1.0], [[2.0]], [0.5], weight=[0.5])
    metrics = tqc.update(batch, frame=0)
    # Atoms 2, 2, 4 stay of 2, 2, 4, 6, 8, 9: targets 2, 2, 3, with mean 7/3. Q of the critics is
    # 1, 1 and 6.
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == [pytest.approx(7 / 3 - 8 / 3)]
    assert metrics.values["q_value"] == pytest.approx(1.0)
    own = kind(num_quantiles=2)
    target = torch.tensor([[2.0, 2.0, 3.0]])
    rows = [own.loss(torch.tensor([critics[f"q{i}_net"]]), target) for i in (1, 2, 3)]
    assert metrics.values["loss"] == pytest.approx(0.5 * torch.stack(rows).sum().item())
    assert tqc.target_nets().keys() == {f"target_q{i}_net" for i in (1, 2, 3)}


def test_the_policy_climbs_the_mean_of_all_quantiles(make_spec: MakeSpec) -> None:
    tqc = make_tqc(make_spec, fixed_alpha=0.0)
    state = tqc.learner.state
    # Rows of weights (s, a), one for each quantile, then biases: dQ/da is 1 and 3, and 4 and 8.
    state["q1_net"].copy_(torch.tensor([0.0, 1.0, 0.0, 3.0, 1.0, 1.0]))
    state["q2_net"].copy_(torch.tensor([0.0, 4.0, 0.0, 8.0, 2.0, 4.0]))
    changes, metrics, _ = tqc._actor_step(state, torch.tensor([[3.0]]), torch.zeros(1, 1))
    assert metrics["policy_loss"].item() == -2.0  # a = tanh 0: the mean of 1, 1, 2 and 4
    # Weight and bias of the mean, then of the log-std: dQ/da = 4, times s and 1, at a rate of 0.1.
    assert changes["net"].tolist() == [pytest.approx(x) for x in (1.2, 0.4, 0.0, 0.0)]


def test_five_critics_and_a_policy_delay_resume_bit_for_bit(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    keys = {"agent.algorithm.num_critics": 5, "agent.algorithm.policy_delay": 3}
    spec = make_spec("TQC", keys)
    first, second = (make_agent(spec, ONE, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(0)

    def learn(*agents: Any) -> None:
        obs, next_obs, action = rng.uniform(-1, 1, (3, 64, 1)).astype(np.float32).tolist()
        batch = make_batch(obs, action, rng.normal(size=64), next_obs, [GAMMA] * 64)
        for agent in agents:
            agent.algorithm.update(batch, frame=100)

    for _ in range(2):
        learn(first)
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        learn(first, second)
    ours, theirs = (agent.algorithm.learner.state for agent in (first, second))
    assert all(torch.equal(theirs[key], value) for key, value in ours.items())


@pytest.mark.slow
def test_a_compiled_update_is_the_eager_one(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    values = {"agent.net.optim_spec": {"name": "SGD", "lr": 0.01}}
    eager, compiled = (
        make_agent(make_spec("TQC", values | {"meta.compile": mode}), ONE, seed=0)
        for mode in ("off", "on")
    )
    rng = np.random.default_rng(0)
    for _ in range(2):
        obs, next_obs, action = rng.uniform(-1, 1, (3, 64, 1)).astype(np.float32).tolist()
        batch = make_batch(obs, action, rng.normal(size=64), next_obs, [GAMMA] * 64)
        ours, theirs = (agent.algorithm.update(batch, frame=100) for agent in (eager, compiled))
        assert dict(ours.values) == pytest.approx(dict(theirs.values), rel=1e-4, abs=1e-5)
    assert compiled.is_compiled
    for key, value in eager.algorithm.learner.state.items():
        other = compiled.algorithm.learner.state[key]
        assert torch.allclose(value, other, rtol=1e-3, atol=1e-5), key


# Probes


def probe_spec(make_spec: MakeSpec, env: str, **values: Any) -> Spec:
    fast = {
        "env.name": f"{env}-v0", "agent.net.optim_spec.lr": 0.01, "agent.net.polyak_coef": 0.2,
        "agent.algorithm.training_iter": 1, "agent.algorithm.num_quantiles": 8,
        "agent.algorithm.top_quantiles_to_drop_per_net": 1,
    }  # fmt: skip
    return make_spec("TQC", fast | {f"agent.algorithm.{key}": v for key, v in values.items()})


@pytest.mark.slow
def test_a_later_reward_is_discounted(make_spec: MakeSpec, train: Train) -> None:
    loop = train(probe_spec(make_spec, "steered/DelayedReward", fixed_alpha=0.0), 1600)
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    value = loop.agent.algorithm.modules["q1_net"](rows)[0]
    assert value.shape == (2, 8)
    # Every quantile of a certain return is that return.
    assert value[0].tolist() == pytest.approx([GAMMA] * 8, abs=0.15)
    assert value[1].tolist() == pytest.approx([1.0] * 8, abs=0.15)


@pytest.mark.slow
def test_a_time_limit_is_not_an_end_for_soft_values(make_spec: MakeSpec, train: Train) -> None:
    loop = train(probe_spec(make_spec, "steered/Truncated", fixed_alpha=0.01), 2400)
    value = loop.agent.algorithm.modules["q1_net"](torch.zeros(1, 2))[0].mean().item()
    # 1 + 0.9 + ... = 10, although every episode is cut after ten steps; a cut bootstrap has 6.5.
    assert value == pytest.approx(1 / (1 - GAMMA), rel=0.1)


@pytest.mark.slow
def test_a_continuous_action_finds_its_target(make_spec: MakeSpec, train: Train) -> None:
    keys = {"target_entropy": -3.0, "training_start_step": 200, "training_iter": 2}
    spec = probe_spec(make_spec, "probe/ContinuousAction", policy_delay=3, **keys)
    loop = train(spec.with_values({"agent.net.optim_spec.lr": 0.02}), 2400)
    action = loop.agent.act(np.zeros((1, 1), np.float32), explore=False)
    assert action.tolist()[0] == pytest.approx([0.5], abs=0.1)


# What does not fit


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"agent.algorithm.top_quantiles_to_drop_per_net": 25},
            "top_quantiles_to_drop_per_net: found 25; expected less than num_quantiles = 25",
        ),
        ({"agent.algorithm.num_quantiles": 1}, "agent.algorithm.num_quantiles"),
        (
            {"agent.net.loss_spec": {"name": "SmoothL1Loss"}},
            "agent.net.loss_spec: has no effect on TQC",
        ),
    ],
)
def test_a_key_that_does_not_fit_is_refused_by_name(
    make_spec: MakeSpec, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec("TQC", values)
    assert says in str(caught.value)


def test_discrete_actions_are_refused(make_spec: MakeSpec) -> None:
    spec = make_spec("TQC", {"env.name": "probe/ActionMatters-v0"})
    with pytest.raises(SpecError, match=r"TQC takes continuous actions; .* has discrete"):
        make_agent(spec, make_env(spec.env, seed=0).spaces, seed=0)


def test_entropy_bounds_follow_the_dimension_as_for_sac(make_spec: MakeSpec) -> None:
    tqc = make_tqc(make_spec)
    assert tqc.target_entropy(0) == -1.0
    assert math.isclose(tqc.learner.state["log_alpha"].exp().item(), 0.1, rel_tol=1e-6)
