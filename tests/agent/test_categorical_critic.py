"""Critics of SAC and CrossQ that say how probable each return is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.sac import ScalarReturn, SoftActorCritic, soft_target_discrete
from slm_lab.agent.algorithm.soft_return import CategoricalReturn
from slm_lab.spec import SpecError, SpecWarning, spec_from_dict
from slm_lab.spec.algorithm.sac import CriticSpec
from tests.agent.linear import LINEAR, MakeBatch, MakeSpec
from tests.agent.test_sac import CONTINUOUS, DISCRETE, LN2, LN3

ATOMS = {"name": "categorical", "num_atoms": 3, "v_min": 0.0, "v_max": 2.0}
LOW, HIGH = [0.5, 0.5, 0.0], [0.1, 0.2, 0.7]  # with means 0.5 and 1.6 on atoms 0, 1, 2


def returns(**keys: Any) -> CategoricalReturn:
    scalar = ScalarReturn(F.mse_loss, in_symlog=False)
    return CategoricalReturn(CriticSpec.model_validate(ATOMS | keys), scalar)


def logits(*probs: Any) -> Tensor:
    return torch.tensor(probs).log()


def numbers(*values: float) -> Tensor:
    return torch.tensor(values)


def make_sac(make_spec: MakeSpec, **values: Any) -> SoftActorCritic:
    keys = {key.replace("__", "."): value for key, value in values.items()}
    critic = {"agent.algorithm.critic": ATOMS | {"v_min": -1.0, "v_max": 1.0}}
    fixed = {"agent.algorithm.fixed_alpha": 0.0}
    spec = make_spec("SoftActorCritic", LINEAR | critic | fixed | keys)
    sac = make_agent(spec, DISCRETE, seed=0).algorithm
    assert isinstance(sac, SoftActorCritic)
    return sac


# The target


def test_the_target_is_the_lower_critics_distribution_moved_and_projected() -> None:
    target, metrics = returns().target(
        numbers(0.5), numbers(0.5), (logits(HIGH), logits(LOW)), numbers(-1.0), torch.tensor(0.5)
    )
    # Atoms 0.5 + 0.5 * (z + 0.5) = 0.75, 1.25, 1.75; a half of 0.75 is 3/8 at 1 and 1/8 at 0.
    torch.testing.assert_close(target, torch.tensor([[0.125, 0.75, 0.125]]))
    assert metrics["off_support"].item() == 0.0
    # 0.5 + 0.5 * (0.5 + 0.5)
    assert returns().target_mean(target).tolist() == pytest.approx([1.0])


def test_a_terminated_row_has_its_reward_alone() -> None:
    target, _ = returns().target(
        numbers(0.5), numbers(0.0), (logits(HIGH), logits(LOW)), numbers(-1.0), torch.tensor(0.5)
    )
    torch.testing.assert_close(target, torch.tensor([[0.5, 0.5, 0.0]]))


def test_n_rewards_discount_the_distribution_n_times() -> None:
    # Two rewards of 0.5 and gamma 0.5: 0.75 in all, and 0.25 before the bootstrap.
    target, _ = returns().target(
        numbers(0.75), numbers(0.25), (logits(LOW), logits(LOW)), numbers(0.0), torch.tensor(1.0)
    )
    # Atoms 0.75 and 1.0.
    torch.testing.assert_close(target, torch.tensor([[0.125, 0.875, 0.0]]))


def test_what_leaves_the_support_counts_as_its_end_and_is_reported() -> None:
    target, metrics = returns().target(
        numbers(1.5), numbers(1.0), (logits(LOW), logits(LOW)), numbers(0.0), torch.tensor(1.0)
    )
    # Atoms 1.5 and 2.5.
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.25, 0.75]]))
    assert metrics["off_support"].item() == 0.5


def test_a_discrete_target_mixes_the_critics_and_the_actions() -> None:
    first = logits([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    second = logits([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    log_probs = logits([0.25, 0.75])
    target, _ = returns().target_discrete(
        numbers(0.0), numbers(1.0), (first, second), log_probs, torch.tensor(0.0)
    )
    torch.testing.assert_close(target, torch.tensor([[0.125, 0.75, 0.125]]))

    reward, discount, alpha = numbers(0.2), numbers(0.5), torch.tensor(0.5)
    target, _ = returns().target_discrete(reward, discount, (first, second), log_probs, alpha)
    mean_q = numbers(1.0, 1.0).unsqueeze(0)
    expected = soft_target_discrete(reward, discount, mean_q, log_probs, alpha)
    torch.testing.assert_close(returns().target_mean(target), expected)


def test_a_scalar_target_is_spread_over_the_atoms_around_it() -> None:
    given = numbers(0.5), numbers(0.5), (logits(HIGH), logits(LOW)), numbers(-1.0)
    # 0.5 + 0.5 * (0.5 - 0.5 * -1) = 1.0, and with alpha 1: 1.25.
    exact, _ = returns(target="two_hot").target(*given, torch.tensor(0.5))
    torch.testing.assert_close(exact, torch.tensor([[0.0, 1.0, 0.0]]))
    between, _ = returns(target="two_hot").target(*given, torch.tensor(1.0))
    torch.testing.assert_close(between, torch.tensor([[0.0, 0.75, 0.25]]))
    smooth, _ = returns(target="hl_gauss").target(*given, torch.tensor(0.5))
    # Bins of width 1 and a standard deviation of 0.75: within 2/3 of it 49.5 %, within 2 95.4 %.
    inside = math.erf(0.5 / 0.75 / math.sqrt(2)) / math.erf(1.5 / 0.75 / math.sqrt(2))
    side = (1 - inside) / 2
    torch.testing.assert_close(smooth, torch.tensor([[side, inside, side]]))
    _, metrics = returns(target="two_hot").target(
        numbers(0.5, 3.0), numbers(0.0, 0.0), (logits(LOW, LOW), logits(LOW, LOW)),
        numbers(0.0, 0.0), torch.tensor(0.0),
    )  # fmt: skip
    assert metrics["off_support"].item() == 0.5


# The agent


def test_an_update_learns_the_action_taken_by_cross_entropy(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec)
    metrics = sac.update(make_batch([[1.0, 0.0]], [1], [1.0], [[0.0, 1.0]], [0.5]), frame=0)
    # Uniform over atoms -1, 0, 1, moved to 0.5, 1 and 1.5: a sixth at 0, the rest at 1.
    assert metrics.values["loss"] == pytest.approx(2 * LN3)
    assert metrics.values["off_support"] == pytest.approx(1 / 3)
    assert metrics.values["q_value"] == pytest.approx(0.0, abs=1e-6)
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == pytest.approx([5 / 6])
    # SGD with a rate of 0.1 on softmax - target, for the logits of action 1 alone.
    bias = sac.learner.state["q1_net"][-6:]
    step = [1 / 3, 1 / 3 - 1 / 6, 1 / 3 - 5 / 6]
    assert bias.tolist() == pytest.approx([0.0, 0.0, 0.0, *(-0.1 * g for g in step)], abs=1e-6)


def test_the_actor_climbs_the_means_of_the_critics(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec)
    for net in ("q1_net", "q2_net"):
        flat = sac.learner.state[net]
        flat[-6:] = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, LN2])  # Q = 0, and (-1/4 + 2/4)
    _, metrics, _ = sac._actor_step(sac.learner.state, torch.tensor([[1.0, 0.0]]), torch.zeros(()))
    assert metrics["policy_loss"].item() == pytest.approx(-0.5 * 0.25)


@pytest.mark.parametrize("algorithm", ["SoftActorCritic", "CrossQ"])
def test_continuous_critics_learn_resume_and_export_their_means(
    make_spec: MakeSpec, make_batch: MakeBatch, algorithm: str
) -> None:
    keys = {"agent.algorithm.critic": ATOMS, "agent.memory.batch_size": 2}
    keys |= {"agent.algorithm.training_iter": 1}
    agents = [make_agent(make_spec(algorithm, keys), CONTINUOUS, seed=0) for _ in range(2)]
    learned, resumed = (agent.algorithm for agent in agents)
    rows = make_batch([[0.0], [1.0]], [[0.5], [-0.5]], [1.0, 0.0], [[1.0], [2.0]], [0.9, 0.0])
    learned.update(rows, frame=0)
    resumed.load_state_dict(learned.state_dict())
    for each in (learned, resumed):
        metrics = each.update(rows, frame=1)
        assert 0.0 < metrics.values["q_value"] < 2.0
    states = (each.learner.state for each in (learned, resumed))
    mine, theirs = states
    assert all(torch.equal(theirs[key], value) for key, value in mine.items())


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"agent.algorithm.critic": {"name": "quantil"}}, "critic.name"),
        ({"agent.algorithm.critic": {"v_max": 3.0}}, "critic.v_max"),
        ({"agent.algorithm.critic": ATOMS | {"v_min": 9.0}}, "critic.v_min"),
        ({"agent.algorithm.critic": ATOMS | {"num_atoms": 1}}, "critic.num_atoms"),
        ({"agent.algorithm.critic": ATOMS, "agent.algorithm.symlog": True}, "symlog"),
        (
            {"agent.algorithm.critic": ATOMS, "agent.net.loss_spec": {"name": "L1Loss"}},
            "agent.net.loss_spec",
        ),
    ],
)
def test_what_a_critic_cannot_be_is_refused_by_name(
    make_spec: MakeSpec, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(SpecError, match=named):
        make_spec("SoftActorCritic", keys)


def test_a_support_that_nothing_fits_returns_to_is_pointed_out() -> None:
    def build(critic: dict[str, Any], **env: Any) -> None:
        algorithm = {"name": "SoftActorCritic", "critic": critic}
        env = {"name": "Pendulum-v1", "max_frame": 10_000, **env}
        spec_from_dict({"agent": {"algorithm": algorithm}, "env": env})

    with pytest.warns(SpecWarning, match="returns beyond -5 and 5"):
        build({"name": "categorical"})
    build(ATOMS)
    build({"name": "categorical"}, normalize_reward=True)
