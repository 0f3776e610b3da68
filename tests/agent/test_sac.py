"""Soft actor-critic: losses by hand, which update moves what, temperature, warm-up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.sac import (
    SoftActorCritic,
    actor_loss,
    actor_loss_discrete,
    alpha_loss,
    soft_target,
    soft_target_discrete,
)
from slm_lab.agent.learning.learner import DivergenceError
from slm_lab.spec import SpecError, batches_per_call
from slm_lab.types import ReplayBatch, Spaces
from tests.agent.linear import (
    LINEAR,
    ONE,
    S0,
    S1,
    TWO_STATES,
    MakeBatch,
    MakeSpec,
    flat_table,
    make_linear,
)

DISCRETE, CONTINUOUS = TWO_STATES, ONE
LN2, LN3 = math.log(2), math.log(3)
NETS = ["net", "q1_net", "q2_net", "target_q1_net", "target_q2_net", "log_alpha"]


def make_sac(make_spec: MakeSpec, spaces: Spaces, **keys: Any) -> SoftActorCritic:
    values = {f"agent.algorithm.{key}": value for key, value in keys.items()}
    spec = make_spec("SoftActorCritic", LINEAR | values)
    return make_linear(SoftActorCritic, spec, spaces, fixed_alpha=keys.get("fixed_alpha") or 0.0)


def set_table(sac: SoftActorCritic, **tables: list[list[float]]) -> None:
    """name=[state][action]: a linear net's weight [action, state], then its bias of zeros."""
    for name, table in tables.items():
        sac.learner.state[name].copy_(flat_table(table))


def one_row(make_batch: MakeBatch, reward: float = 1.0, discount: float = 0.5) -> ReplayBatch:
    return make_batch([S0], [0], [reward], [S1], [discount])


# The equations


def test_the_soft_target_pays_for_certainty() -> None:
    reward, next_q, log_prob = torch.ones(2), torch.full((2,), 4.0), torch.full((2,), -2.0)
    target = soft_target(reward, torch.tensor([0.5, 0.0]), next_q, log_prob, torch.tensor(0.1))
    # 1 + 0.5 * (4 - 0.1 * -2); a terminated step has its reward alone
    assert target.tolist() == pytest.approx([3.1, 1.0])


def test_the_discrete_soft_target_is_an_exact_expectation() -> None:
    log_probs = torch.tensor([[0.25, 0.75]]).log()
    target = soft_target_discrete(
        torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([[4.0, 8.0]]), log_probs,
        torch.tensor(2.0),
    )  # fmt: skip
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert target.item() == pytest.approx(1 + 0.5 * (0.25 * 4 + 0.75 * 8 + 2 * entropy))


def test_actor_losses_by_hand() -> None:
    q_value, log_prob = torch.tensor([1.0, 3.0]), torch.tensor([-1.0, 2.0])
    # (0.5 * -1 - 1 + 0.5 * 2 - 3) / 2
    assert actor_loss(q_value, log_prob, torch.tensor(0.5)).item() == pytest.approx(-1.75)
    log_probs = torch.tensor([[0.5, 0.5]]).log()
    found = actor_loss_discrete(torch.tensor([[1.0, 3.0]]), log_probs, torch.tensor(0.5))
    assert found.item() == pytest.approx(-0.5 * LN2 - 2.0)


def test_the_loss_of_alpha_by_hand_and_its_gradient() -> None:
    log_alpha = torch.tensor([LN2], requires_grad=True)
    entropy = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = alpha_loss(log_alpha, entropy, torch.tensor(0.5))
    assert loss.item() == pytest.approx(2.0)  # 2 * (0.5 + 1.5) / 2
    # Positive while entropy is above target: descending, alpha falls. The policy learns nothing.
    gradient = torch.autograd.grad(loss, [log_alpha, entropy], allow_unused=True)
    assert gradient[0].item() == pytest.approx(2.0)
    assert gradient[1] is None


# Discrete


def test_discrete_critics_learn_from_the_mean_of_their_targets(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec, DISCRETE, fixed_alpha=0.5)
    set_table(
        sac,
        net=[[0.0, 0.0], [0.0, LN3]],  # pi(.|s1) = (1/4, 3/4)
        q1_net=[[1.0, 9.0], [9.0, 9.0]],
        q2_net=[[3.0, 9.0], [9.0, 9.0]],
        target_q1_net=[[9.0, 9.0], [2.0, 4.0]],
        target_q2_net=[[9.0, 9.0], [4.0, 8.0]],
    )
    metrics = sac.update(one_row(make_batch), frame=0)
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    target = 1 + 0.5 * (0.25 * 3 + 0.75 * 6 + 0.5 * entropy)
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == pytest.approx([target - 2.0])
    assert metrics.values["loss"] == pytest.approx((target - 1) ** 2 + (target - 3) ** 2, rel=1e-5)
    assert metrics.values["q_value"] == 1.0


def test_loss_spec_chooses_the_loss_of_the_critics(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    own = {"agent.net.loss_spec": {"name": "L1Loss"}, "agent.algorithm.fixed_alpha": 0.0}
    sac = make_agent(make_spec("SoftActorCritic", LINEAR | own), DISCRETE, seed=0).algorithm
    assert isinstance(sac, SoftActorCritic)
    assert sac.learner.state["target_q1_net"].eq(0).all()
    set_table(sac, q1_net=[[1.0, 9.0], [9.0, 9.0]], q2_net=[[4.0, 9.0], [9.0, 9.0]])
    # Targets of zero: |5 - 1| + |5 - 4|; squared it would be 17.
    assert sac.update(one_row(make_batch, reward=5.0), frame=0).values["loss"] == 5.0


def test_the_discrete_actor_reads_the_mean_of_the_critics(make_spec: MakeSpec) -> None:
    sac = make_sac(make_spec, DISCRETE, fixed_alpha=0.5)
    set_table(sac, q1_net=[[1.0, 3.0], [0.0, 0.0]], q2_net=[[3.0, 5.0], [0.0, 0.0]])
    state = sac.learner.state
    changes, metrics, entropy = sac._actor_step(state, torch.tensor([S0]), torch.zeros(()))
    # pi = 1/2 each, mean Q = (2, 4): 0.5 * ln(1/2) - 3
    assert metrics["policy_loss"].item() == pytest.approx(-0.5 * LN2 - 3.0)
    assert entropy.tolist() == pytest.approx([LN2])
    # d/dlogit of -sum pi Q at the uniform policy: -+ (4 - 2) / 4; a step of 0.1 against it
    table = changes["net"][:4].view(2, 2).T
    assert table.tolist()[0] == pytest.approx([-0.05, 0.05])


def test_the_entropy_penalty_holds_entropy_near_its_average(make_spec: MakeSpec) -> None:
    sac = make_sac(make_spec, DISCRETE, fixed_alpha=0.5, entropy_penalty_coef=2.0)
    obs = torch.tensor([S0])
    _, fresh, _ = sac._actor_step(sac.learner.state, obs, torch.zeros(()))
    # The average starts at ln 2, the entropy of a uniform policy: no pull yet.
    assert fresh["policy_loss"].item() == pytest.approx(-0.5 * LN2)
    sac.learner.state["entropy_ema"].fill_(0.3)
    changes, later, _ = sac._actor_step(sac.learner.state, obs, torch.zeros(()))
    assert later["policy_loss"].item() == pytest.approx(-0.5 * LN2 + (0.3 - LN2) ** 2)
    assert changes["entropy_ema"].item() == pytest.approx(0.99 * 0.3 + 0.01 * LN2)


# Continuous


def set_continuous(sac: SoftActorCritic, mean: float, std: float, **critics: list[float]) -> None:
    """A policy that ignores its state, and critics [w_s, w_a, b]: Q = w_s s + w_a a + b."""
    state = sac.learner.state
    heads = [0.0, mean, 0.0, math.log(std)]  # weight and bias of the mean, then of the log-std
    state["net"].copy_(torch.tensor(heads))
    for name, weights in critics.items():
        state[name].copy_(torch.tensor(weights))


def squashed_log_prob(noise: float, mean: float, std: float) -> float:
    u = mean + std * noise
    gauss = -0.5 * noise**2 - math.log(std) - 0.5 * math.log(2 * math.pi)
    return gauss - math.log(1 - math.tanh(u) ** 2)


def test_continuous_critics_learn_from_the_smaller_target(make_spec: MakeSpec) -> None:
    sac = make_sac(make_spec, CONTINUOUS, fixed_alpha=0.5)
    set_continuous(
        sac, mean=0.3, std=0.5,
        q1_net=[0.0, 1.0, 0.0], q2_net=[0.0, 0.0, 2.0],
        target_q1_net=[0.0, 2.0, 0.0], target_q2_net=[1.0, 0.0, 0.0],
    )  # fmt: skip
    rows = [torch.tensor(x) for x in ([[0.0]], [[0.5]], [1.0], [[1.0]], [0.9], [1.0])]
    rows += [torch.ones(1, 1), torch.zeros(1, 1)]  # the noise of a' and of a
    changes, metrics = sac._critic_step(sac.learner.state, *rows)
    # u' = 0.8: Q1' = 2 tanh 0.8 = 1.33, Q2' = s' = 1, the smaller. Q1 = 0.5, Q2 = 2.
    target = 1 + 0.9 * (1.0 - 0.5 * squashed_log_prob(1.0, 0.3, 0.5))
    assert changes["td_error"].tolist() == pytest.approx([target - 1.25], rel=1e-5)
    assert metrics["loss"].item() == pytest.approx((target - 0.5) ** 2 + (target - 2) ** 2)


def test_the_continuous_actor_climbs_the_smaller_critic(make_spec: MakeSpec) -> None:
    sac = make_sac(make_spec, CONTINUOUS, fixed_alpha=0.5)
    set_continuous(
        sac, mean=0.3, std=0.5, q1_net=[0.0, 2.0, 0.0], q2_net=[0.0, 0.0, 50.0]
    )  # fmt: skip
    changes, metrics, entropy = sac._actor_step(
        sac.learner.state, torch.zeros(1, 1), torch.ones(1, 1)
    )
    log_prob = squashed_log_prob(1.0, 0.3, 0.5)
    assert metrics["policy_loss"].item() == pytest.approx(0.5 * log_prob - 2 * math.tanh(0.8))
    assert entropy.tolist() == pytest.approx([-log_prob])
    # d/dmean: 0.5 * 2 tanh(u) from the log-det, -2 (1 - tanh(u)^2) from Q; the noise stays.
    slope = 0.5 * 2 * math.tanh(0.8) - 2 * (1 - math.tanh(0.8) ** 2)
    assert changes["net"][1].item() == pytest.approx(0.3 - 0.1 * slope, rel=1e-5)


# Who moves when


def moved_by(sac: SoftActorCritic, batch: ReplayBatch) -> set[str]:
    before = {k: v.clone() for k, v in sac.learner.state.items() if k in NETS}
    sac.update(batch, frame=0)
    return {k for k, v in before.items() if not torch.equal(v, sac.learner.state[k])}


def test_a_policy_delay_leaves_most_updates_to_the_critics(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec, DISCRETE, policy_delay=3)
    set_table(sac, q1_net=[[1.0, 0.0], [0.0, 1.0]], q2_net=[[1.0, 0.0], [0.0, 1.0]])
    moved = [moved_by(sac, one_row(make_batch)) for _ in range(6)]
    critics = {"q1_net", "q2_net"}
    assert moved == [critics, critics, set(NETS), critics, critics, set(NETS)]


def test_without_delay_everything_moves_at_once(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    sac = make_sac(make_spec, DISCRETE)
    set_table(sac, q1_net=[[1.0, 0.0], [0.0, 1.0]], q2_net=[[1.0, 0.0], [0.0, 1.0]])
    assert moved_by(sac, one_row(make_batch)) == set(NETS)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_critics_and_actor_do_not_move_each_other(make_spec: MakeSpec, spaces: Spaces) -> None:
    sac = make_sac(make_spec, spaces)
    state = sac.learner.state
    obs = torch.ones(1, *spaces.obs_shape)
    action = torch.tensor([0]) if spaces is DISCRETE else torch.ones(1, 1)
    noise = torch.ones(1, 1)
    one = torch.ones(1)
    changes, _ = sac._critic_step(state, obs, action, one, obs, one, one, noise, noise)
    assert {key.split(".")[0] for key in changes} == {"q1_net", "q2_net", "td_error"}
    changes, _, _ = sac._actor_step(state, obs, noise)
    assert {key.split(".")[0] for key in changes} == {"net", "entropy_ema"}


def test_targets_follow_by_polyak_after_the_critics_moved(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec, DISCRETE, fixed_alpha=0.0)
    sac.update(one_row(make_batch, discount=0.0), frame=0)
    # Q(s0, 0): 0.1 * 2 * 1, half of which reaches the target
    state = sac.learner.state
    assert state["q1_net"][0].item() == pytest.approx(0.2)
    assert state["target_q1_net"][0].item() == pytest.approx(0.1)


def test_every_minibatch_of_a_call_is_one_update(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec, DISCRETE, training_iter=4, policy_delay=2)
    batch = make_batch([S0] * 4, [0] * 4, [1.0, 2.0, 3.0, 4.0], [S1] * 4, [0.0] * 4)
    metrics = sac.update(batch, frame=0)
    assert metrics.opt_steps == 4
    assert metrics.td_error is not None
    assert metrics.td_error.shape == (4,)
    assert sac.learner.state["log_alpha.slot.step"].item() == 2
    assert sac.learner.state["q1_net.slot.step"].item() == 4


@pytest.mark.parametrize(
    ("envs", "every", "batches"), [(1, 1, 1), (16, 16, 16), (16, 1, 1), (4, 8, 4)]
)
def test_by_default_there_is_a_minibatch_for_each_transition(
    make_spec: MakeSpec, envs: int, every: int, batches: int
) -> None:
    values = {"env.num_envs": envs, "agent.algorithm.training_frequency": every}
    spec = make_spec("SoftActorCritic", values | {"agent.algorithm.training_iter": None})
    assert batches_per_call(spec) == batches


def test_a_rate_falls_once_for_each_training_call_also_when_several_are_due(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    halved = {"name": "StepLR", "step_size": 1, "gamma": 0.5}
    paced = {"env.num_envs": 4, "agent.algorithm.training_frequency": 1}
    values = LINEAR | paced | {"agent.net.lr_scheduler_spec": halved}
    values |= {"agent.algorithm.training_iter": None}
    sac = make_agent(make_spec("SoftActorCritic", values), DISCRETE, seed=0).algorithm
    calls = make_batch([S0] * 4, [0] * 4, [1.0] * 4, [S1] * 4, [0.5] * 4)
    rates = [sac.update(calls, frame=frame).values["lr"] for frame in (4, 8)]
    assert rates == pytest.approx([0.1, 0.1 * 0.5**4])


# The temperature


def alpha_step(sac: SoftActorCritic, entropy: float, target: float) -> float:
    sac.learner.set_coefficients(target_entropy=target)
    return sac._alpha_step(sac.learner.state, torch.tensor([entropy]))["log_alpha"].item()


def test_alpha_falls_when_entropy_is_above_its_target_and_rises_below(make_spec: MakeSpec) -> None:
    sac = make_sac(make_spec, DISCRETE, init_alpha=1.0)
    # log alpha 0: a step of 0.1 * 1 * (H - target)
    assert alpha_step(sac, entropy=0.7, target=0.2) == pytest.approx(-0.05)
    assert alpha_step(sac, entropy=0.1, target=0.6) == pytest.approx(0.05)
    assert alpha_step(sac, entropy=0.4, target=0.4) == pytest.approx(0.0)


def test_log_alpha_is_clamped_after_each_step(make_spec: MakeSpec) -> None:
    sac = make_sac(make_spec, DISCRETE, init_alpha=1.0, log_alpha_min=-0.2, log_alpha_max=0.1)
    assert alpha_step(sac, entropy=100.0, target=0.0) == pytest.approx(-0.2)
    assert alpha_step(sac, entropy=0.0, target=100.0) == pytest.approx(0.1)


def test_alpha_has_its_own_rate_and_start(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    sac = make_sac(make_spec, DISCRETE, init_alpha=0.5, alpha_lr=0.02, target_entropy=0.0)
    metrics = sac.update(one_row(make_batch), frame=0)
    assert metrics.values["alpha"] == pytest.approx(0.5)
    # The policy has entropy ln 2 (before its step): log alpha falls by 0.02 * 0.5 * ln 2.
    expected = math.log(0.5) - 0.02 * 0.5 * LN2
    assert sac.learner.state["log_alpha"].item() == pytest.approx(expected)


def test_a_fixed_alpha_stays_or_falls_linearly_to_zero(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    fixed = make_sac(make_spec, DISCRETE, fixed_alpha=0.2)
    assert [fixed.fixed_alpha(frame) for frame in (0, 10**6)] == [0.2, 0.2]
    falling = make_sac(make_spec, DISCRETE, fixed_alpha=0.2, alpha_anneal_frames=100)
    found = [falling.fixed_alpha(frame) for frame in (0, 50, 100, 200)]
    assert found == pytest.approx([0.2, 0.1, 0.0, 0.0])
    before = falling.learner.state["log_alpha"].clone()
    assert falling.update(one_row(make_batch), frame=50).values["alpha"] == pytest.approx(0.1)
    assert torch.equal(falling.learner.state["log_alpha"], before)  # nothing is tuned


def test_the_target_entropy_of_each_action_space(make_spec: MakeSpec) -> None:
    assert make_sac(make_spec, CONTINUOUS).target_entropy(0) == -1.0
    wide = Spaces((1,), "float32", "multi_continuous", (6,))
    assert make_sac(make_spec, wide).target_entropy(0) == -6.0
    four = Spaces((2,), "float32", "discrete", (4,))
    assert make_sac(make_spec, four).target_entropy(0) == pytest.approx(0.6 * math.log(4))
    assert make_sac(make_spec, DISCRETE, target_entropy=-0.3).target_entropy(0) == -0.3


def test_the_target_entropy_of_discrete_actions_can_be_annealed(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    anneal = {"start_ratio": 0.6, "end_ratio": 0.1, "frames": 100}
    sac = make_sac(make_spec, DISCRETE, entropy_anneal=anneal)
    found = [sac.target_entropy(frame) / LN2 for frame in (0, 50, 100, 500)]
    assert found == pytest.approx([0.6, 0.35, 0.1, 0.1])
    sac.update(one_row(make_batch), frame=50)
    assert sac.learner.state["target_entropy"].item() == pytest.approx(0.35 * LN2)


# Losses


def test_symlog_compares_compressed_values(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    sac = make_sac(make_spec, DISCRETE, symlog=True)
    metrics = sac.update(one_row(make_batch, reward=math.e - 1, discount=0.0), frame=0)
    assert metrics.values["loss"] == pytest.approx(2.0)  # ln(1 + e - 1) = 1, for each critic
    assert metrics.td_error is not None
    assert metrics.td_error.item() == pytest.approx(math.e - 1)  # errors stay in units of reward


def test_importance_weights_scale_rows(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    values = LINEAR | {"agent.memory.batch_size": 2}
    sac = make_agent(make_spec("SoftActorCritic", values), DISCRETE, seed=0).algorithm
    assert isinstance(sac, SoftActorCritic)
    batch = make_batch([S0, S1], [0, 1], [1.0, 1.0], [S1, S1], [0.0, 0.0], [1.0, 0.25])
    metrics = sac.update(batch, frame=0)
    assert metrics.values["loss"] == pytest.approx(1.25)  # (2 * 1 + 2 * 0.25) / 2
    q1 = sac.learner.state["q1_net"][:4].view(2, 2).T
    assert q1.tolist() == [[pytest.approx(0.1), 0.0], [0.0, pytest.approx(0.025)]]


def test_a_reward_that_is_no_number_stops_training(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sac = make_sac(make_spec, DISCRETE)
    with pytest.raises(DivergenceError, match=r"at frame 8: .*loss"):
        sac.update(one_row(make_batch, reward=math.inf), frame=8)


# Acting


def test_continuous_actions_are_squashed_once(make_spec: MakeSpec) -> None:
    agent = make_agent(make_spec("SoftActorCritic", LINEAR), CONTINUOUS, seed=0)
    agent.algorithm.learner.state["net"].copy_(torch.tensor([0.0, 0.4, 0.0, math.log(5.0)]))
    obs = np.zeros((4, 1), np.float32)
    action = np.concatenate([agent.act(obs, frame=10**6) for _ in range(50)])
    assert -1 <= action.min() < -0.9 < 0.9 < action.max() <= 1
    assert np.array_equal(agent.env_action(action), action)
    assert agent.act(obs, explore=False).flatten().tolist() == pytest.approx([math.tanh(0.4)] * 4)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS])
def test_the_first_frames_are_uniform_and_greedy_acting_is_not(
    make_spec: MakeSpec, spaces: Spaces
) -> None:
    sac = make_sac(make_spec, spaces, training_start_step=100)
    sac.learner.state["net"].fill_(50.0)  # sure of the last action, if asked
    obs = torch.zeros(4, *spaces.obs_shape)
    if spaces is DISCRETE:
        sac.learner.state["net"][4] = -50.0

    def drawn(frame: int, explore: bool = True) -> Tensor:
        return torch.cat([sac.act(obs, frame=frame, explore=explore) for _ in range(100)]).float()

    # Uniform on {0, 1} or on [-1, 1], then always 1.
    assert drawn(96).mean().item() == pytest.approx(0.5 if spaces is DISCRETE else 0.0, abs=0.1)
    if spaces is CONTINUOUS:
        assert drawn(96).var().item() == pytest.approx(1 / 3, abs=0.05)
    assert drawn(100).min().item() > 0.9
    assert drawn(0, explore=False).min().item() > 0.9


@pytest.mark.parametrize(("given", "frames"), [(None, 1000), (0, 0), (20, 20)])
def test_random_frames_are_those_before_learning(
    make_spec: MakeSpec, given: int | None, frames: int
) -> None:
    assert make_sac(make_spec, DISCRETE, training_start_step=given)._random_frames == frames


def test_observations_of_any_shape_reach_the_critics(make_spec: MakeSpec) -> None:
    spaces = Spaces((2, 3), "float32", "multi_continuous", (2,))
    sac = make_sac(make_spec, spaces)
    weight = sac.modules["q1_net"].state_dict()["tails.0.weight"]
    assert weight.shape == (1, 2 * 3 + 2)
    row, zero = torch.zeros(1, 2, 3), torch.zeros(1)
    noise = torch.zeros(1, 2)
    sac._critic_step(sac.learner.state, row, noise, zero, row, zero, zero, noise, noise)


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_sub_actions_are_refused_by_the_algorithms_key(make_spec: MakeSpec, name: str) -> None:
    spaces = Spaces((1,), "float32", "multi_discrete", (2, 2))
    with pytest.raises(SpecError, match=rf"agent\.algorithm\.name: {name} takes discrete or"):
        make_agent(make_spec(name), spaces, seed=0)


def test_spectral_norm_bounds_the_last_hidden_layer_of_each_critic(make_spec: MakeSpec) -> None:
    values = {"agent.net.hid_layers": [8, 8], "agent.algorithm.spectral_norm": True}
    sac = make_agent(make_spec("SoftActorCritic", values), DISCRETE, seed=0).algorithm
    for name in ("q1_net", "q2_net"):
        critic = sac.modules[name]
        linear = [layer for layer in critic.modules() if isinstance(layer, torch.nn.Linear)]
        for _ in range(30):  # the power iteration behind the norm converges while training
            critic.train()(torch.eye(2))
        assert torch.linalg.matrix_norm(linear[-2].weight, 2).item() == pytest.approx(1, abs=0.01)
        assert not hasattr(linear[-1], "parametrizations")
