"""PPO: losses with numbers done by hand, and what one update does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.ppo import (
    PPO,
    FlatRollout,
    clipped_value_loss,
    ppo_policy_loss,
)
from slm_lab.agent.learning.learner import State
from slm_lab.agent.learning.returns import symlog
from slm_lab.spec import Spec
from slm_lab.types import Rollout, Spaces

MakeSpec = Callable[..., Spec]
MakeRollout = Callable[..., Rollout]

SPACES = Spaces((1,), "float32", "discrete", (2,))
EPS = torch.tensor(0.2)

# A linear net of zeros: both actions have probability 1/2, and V(s) is the critic's bias.
PLAIN = {
    "agent.net.hid_layers": [],
    "agent.net.init_fn": "zeros_",
    "agent.algorithm.normalize_advantages": False,
}


def make_ppo(spec: Spec) -> tuple[Agent, PPO]:
    agent = make_agent(spec, SPACES, seed=0)
    assert isinstance(agent.algorithm, PPO)
    return agent, agent.algorithm


def set_value(ppo: PPO, value: float) -> None:
    """Make V(s) the same number everywhere."""
    name = "critic_net" if "critic_net" in ppo.modules else "net"
    bias = list(ppo.modules[name].parameters())[-1]
    bias.fill_(value)


def four_rows(ppo: PPO, **coefficients: float) -> tuple[float, dict[str, float]]:
    """The loss of four hand-made rows under a uniform policy and V = 1."""
    set_value(ppo, 1.0)
    ppo.learner.set_coefficients(clip_eps=0.2, **coefficients)
    half = math.log(0.5)
    ratios = torch.tensor([1.5, 1.5, 0.5, 1.0])
    rows = FlatRollout(
        obs=torch.zeros(4, 1),
        action=torch.tensor([0, 1, 0, 1]),
        old_log_prob=half - ratios.log(),
        advantage=torch.tensor([2.0, -2.0, 1.0, 1.0]),
        target=torch.tensor([1.0, 2.0, 3.0, 1.0]),
        old_value=torch.tensor([1.0, 1.0, 0.0, 1.0]),
    )
    loss, metrics = ppo.loss(ppo.learner.state, *rows, torch.arange(4))
    return loss.item(), {key: value.item() for key, value in metrics.items()}


def test_the_clipped_surrogate_takes_the_worse_of_two() -> None:
    # ratio 1.5, A +2: min(3, 1.2 * 2) = 2.4 (clipped: no gain from moving further)
    # ratio 1.5, A -2: min(-3, -2.4) = -3 (not clipped: the mistake counts in full)
    # ratio 0.5, A +1: min(0.5, 0.8) = 0.5     ratio 1, A +1: 1
    # mean (2.4 - 3 + 0.5 + 1) / 4 = 0.225
    ratio = torch.tensor([1.5, 1.5, 0.5, 1.0])
    advantage = torch.tensor([2.0, -2.0, 1.0, 1.0])
    loss, metrics = ppo_policy_loss(ratio.log(), torch.zeros(4), advantage, EPS)
    assert loss.item() == pytest.approx(-0.225)
    assert metrics["clip_frac"].item() == 0.75
    # r - 1 - ln r: twice 0.5 - ln 1.5, once -0.5 + ln 2, once 0
    kl = (2 * (0.5 - math.log(1.5)) + (-0.5 + math.log(2))) / 4
    assert metrics["approx_kl"].item() == pytest.approx(kl)


def test_a_clipped_gain_has_no_gradient_and_an_unclipped_mistake_has() -> None:
    def gradient(ratio: float, advantage: float) -> float:
        log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
        loss, _ = ppo_policy_loss(log_prob, torch.zeros(1), torch.tensor([advantage]), EPS)
        return torch.autograd.grad(loss, log_prob)[0].item()

    assert gradient(1.5, 1.0) == 0.0
    assert gradient(0.5, -1.0) == 0.0
    assert gradient(1.5, -1.0) == pytest.approx(1.5)
    assert gradient(0.5, 1.0) == pytest.approx(-0.5)


def test_a_wild_log_ratio_does_not_overflow() -> None:
    loss, metrics = ppo_policy_loss(torch.tensor([500.0]), torch.zeros(1), torch.ones(1), EPS)
    assert loss.item() == pytest.approx(-1.2)
    assert metrics["approx_kl"].isfinite()


def test_the_clipped_value_loss_takes_the_larger_error() -> None:
    # V 1, old 0, target 2: near = 0.2, max((1-2)^2, (0.2-2)^2) = 3.24
    # V 1, old 0.9, target 2: near = 1, max(1, 1) = 1
    # half of the mean: 0.5 * (3.24 + 1) / 2 = 1.06
    loss = clipped_value_loss(
        torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.9]), torch.tensor([2.0, 2.0]), EPS
    )
    assert loss.item() == pytest.approx(1.06)


def test_symlog_compresses_symmetrically() -> None:
    x = torch.tensor([math.e - 1, 0.0, 1 - math.e])
    assert symlog(x).tolist() == pytest.approx([1.0, 0.0, -1.0])


def test_the_whole_loss_is_policy_plus_value_minus_entropy(make_spec: MakeSpec) -> None:
    _, ppo = make_ppo(make_spec("PPO", PLAIN | {"agent.algorithm.val_loss_coef": 0.5}))
    loss, metrics = four_rows(ppo, entropy_coef=0.1)
    assert metrics["policy_loss"] == pytest.approx(-0.225, abs=1e-6)
    assert metrics["value_loss"] == pytest.approx(0.625)  # half of (0 + 1 + 4 + 0) / 4
    assert metrics["entropy"] == pytest.approx(math.log(2))
    assert loss == pytest.approx(-0.225 + 0.625 - 0.1 * math.log(2))


def test_clip_vloss_and_symlog_change_the_value_loss(make_spec: MakeSpec) -> None:
    _, clipped = make_ppo(make_spec("PPO", PLAIN | {"agent.algorithm.clip_vloss": True}))
    # Errors 0, 1, max(4, (0.2 - 3)^2 = 7.84), 0: 0.5 * 8.84 / 4
    assert four_rows(clipped)[1]["value_loss"] == pytest.approx(1.105)
    _, logged = make_ppo(make_spec("PPO", PLAIN | {"agent.algorithm.symlog": True}))
    # ln 2 against ln 2, ln 3, ln 4, ln 2
    squares = math.log(3 / 2) ** 2 + math.log(4 / 2) ** 2
    assert four_rows(logged)[1]["value_loss"] == pytest.approx(squares / 4)


def test_loss_spec_chooses_the_value_loss(make_spec: MakeSpec) -> None:
    _, ppo = make_ppo(make_spec("PPO", PLAIN | {"agent.net.loss_spec": {"name": "L1Loss"}}))
    assert four_rows(ppo)[1]["value_loss"] == pytest.approx(0.75)  # (0 + 1 + 2 + 0) / 4


def test_the_critics_own_loss_spec_is_the_value_loss(make_spec: MakeSpec) -> None:
    own = {"agent.net.actor_loss_spec": {"name": "MSELoss"}}
    own |= {"agent.net.critic_loss_spec": {"name": "L1Loss"}}
    _, ppo = make_ppo(make_spec("PPO", PLAIN | own))
    assert four_rows(ppo)[1]["value_loss"] == pytest.approx(0.75)  # (0 + 1 + 2 + 0) / 4


def test_advantages_are_standardized_per_minibatch(make_spec: MakeSpec) -> None:
    _, ppo = make_ppo(make_spec("PPO", PLAIN | {"agent.algorithm.normalize_advantages": True}))
    ppo.learner.set_coefficients(clip_eps=0.2)
    rows = torch.zeros(4)
    advantage = torch.tensor([1.0, 3.0, 100.0, -100.0])

    def policy_loss(index: list[int], old_log_prob: list[float]) -> float:
        _, metrics = ppo.loss(
            ppo.learner.state,
            torch.zeros(4, 1),
            torch.zeros(4, dtype=torch.int64),
            math.log(0.5) - torch.tensor(old_log_prob),
            advantage,
            rows,
            rows,
            torch.tensor(index),
        )
        return metrics["policy_loss"].item()

    # Rows 0 and 1 alone: -+ 1 / sqrt 2. Ratio 1.1 on the better one: -(1.1 - 1) / sqrt 2 / 2.
    found = policy_loss([0, 1], [0.0, math.log(1.1), 0.0, 0.0])
    assert found == pytest.approx(-0.05 / math.sqrt(2), rel=1e-4)


def test_percentile_advantages_shrink_large_spreads_only(make_spec: MakeSpec) -> None:
    values = PLAIN | {"agent.algorithm.normalize_advantages": "percentile"}
    _, ppo = make_ppo(make_spec("PPO", values))

    def policy_loss(low: float, high: float) -> float:
        ppo.learner.state["advantage_range"].copy_(torch.tensor([low, high]))
        return four_rows(ppo)[1]["policy_loss"]

    assert policy_loss(-0.1, 0.1) == pytest.approx(-0.225, abs=1e-6)
    assert policy_loss(-5.0, 15.0) == pytest.approx(-0.225 / 20, abs=1e-6)


def test_percentiles_follow_the_minibatches_slowly(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    values = PLAIN | {
        "agent.algorithm.normalize_advantages": "percentile",
        "agent.algorithm.time_horizon": 101,
        "agent.algorithm.minibatch_size": 101,
        "agent.algorithm.training_epoch": 2,
        "env.num_envs": 1,
        "agent.net.optim_spec.lr": 0,
    }
    _, ppo = make_ppo(make_spec("PPO", values))
    # Terminated one-step episodes with V = 0: advantages are the rewards 0..100.
    steps = range(101)
    rollout = make_rollout(
        [[0.0]] * 102, [[0] for _ in steps], [[float(t)] for t in steps], [[True]] * 101
    )
    ppo.update(rollout, frame=0)
    # Percentiles 5 and 95; from 0, twice a hundredth of the way: 1 - 0.99^2 = 0.0199.
    found = ppo.learner.state["advantage_range"].tolist()
    assert found == pytest.approx([5 * 0.0199, 95 * 0.0199], rel=1e-4)


@pytest.mark.parametrize(
    ("unrolls", "expected"),
    [
        # V = 1, gamma 0.5, lambda 1: each TD error is 1 + 0.5 - 1 = 0.5, and later ones count half.
        ((4, 1), [0.9375, 0.875, 0.75, 0.5]),
        ((2, 2), [0.75, 0.5, 0.75, 0.5]),
        ((1, 4), [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_advantages_are_summed_within_an_unroll(
    make_spec: MakeSpec,
    make_rollout: MakeRollout,
    unrolls: tuple[int, int],
    expected: list[float],
) -> None:
    values = {"gamma": 0.5, "lam": 1.0, "time_horizon": unrolls[0], "num_unrolls": unrolls[1]}
    keys = {f"agent.algorithm.{key}": value for key, value in values.items()}
    spec = make_spec("PPO", PLAIN | keys | {"env.num_envs": 1})
    assert spec.agent.algorithm.pace(spec).frames == 4
    _, ppo = make_ppo(spec)
    set_value(ppo, 1.0)
    rollout = make_rollout([[0.0]] * 5, [[0]] * 4, [[1.0]] * 4)
    advantage, target, _ = ppo._advantages(ppo.evaluate(rollout))
    assert advantage.tolist() == pytest.approx(expected)
    assert (target - advantage).tolist() == [1.0] * 4
    assert ppo.update(rollout, frame=4).opt_steps > 0


def short_rollout(make_rollout: MakeRollout, steps: int = 16, envs: int = 4) -> Rollout:
    generator = torch.Generator().manual_seed(0)

    def draw(rows: int) -> Tensor:
        return torch.rand(rows, envs, generator=generator)

    return make_rollout(
        draw(steps + 1).tolist(), (draw(steps) > 0.5).long().tolist(), draw(steps).tolist()
    )


def moved(before: State, after: State, name: str) -> bool:
    return not torch.equal(before[name], after[name])


@pytest.mark.parametrize(("shared", "opt_steps"), [(True, 8), (False, 16)])
def test_an_update_counts_one_step_per_minibatch_and_net(
    make_spec: MakeSpec, make_rollout: MakeRollout, shared: bool, opt_steps: int
) -> None:
    _, ppo = make_ppo(make_spec("PPO", {"agent.net.shared": shared}))
    metrics = ppo.update(short_rollout(make_rollout), frame=64)
    assert metrics.opt_steps == opt_steps  # 4 epochs of 64 / 32 minibatches
    assert {"loss", "policy_loss", "value_loss", "entropy", "clip_frac", "approx_kl"} <= set(
        metrics.values
    )
    assert {"grad_norm", "clip_eps", "entropy_coef", "lr"} <= set(metrics.values)


def test_every_minibatch_has_the_same_size(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    # 25 * 4 = 100 rows and minibatches of 30: three of 33. The row left over must not become a
    # minibatch of one, whose advantage cannot be standardised and whose step weighs as much.
    values = {"agent.algorithm.time_horizon": 25, "agent.algorithm.minibatch_size": 30}
    _, ppo = make_ppo(make_spec("PPO", values))
    sizes: list[int] = []
    steps = ppo.learner.steps

    def spy(batches: Any) -> None:
        sizes.extend(len(index) for *_, index in batches)
        steps(batches)

    ppo.learner.steps = spy  # type: ignore[method-assign]
    metrics = ppo.update(short_rollout(make_rollout, steps=25), frame=100)
    assert sizes == [33] * 3 * 4
    assert metrics.opt_steps == 2 * len(sizes)


def test_the_first_minibatch_has_ratio_one(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    values = {"agent.algorithm.training_epoch": 1, "agent.algorithm.minibatch_size": 64}
    _, ppo = make_ppo(make_spec("PPO", values))
    metrics = ppo.update(short_rollout(make_rollout), frame=64).values
    assert metrics["clip_frac"] == 0.0
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_actor_and_critic_have_their_own_optimisers(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    values = {
        "agent.net.actor_optim_spec": {"name": "Adam", "lr": 0.0},
        "agent.net.critic_optim_spec": {"name": "SGD", "lr": 0.1},
    }
    _, ppo = make_ppo(make_spec("PPO", values))
    before = ppo.learner.state_dict()
    ppo.update(short_rollout(make_rollout), frame=64)
    after = ppo.learner.state
    assert not moved(before, after, "net")
    assert moved(before, after, "critic_net")
    assert "net.slot.exp_avg" in after
    assert "critic_net.slot.exp_avg" not in after


def test_the_learning_rate_falls_once_per_update(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    schedule = {"name": "LinearToZero", "frame": 256}  # 4 updates of 16 * 4 frames
    _, ppo = make_ppo(make_spec("PPO", {"agent.net.lr_scheduler_spec": schedule}))
    used = []
    for k in range(5):
        ppo.update(short_rollout(make_rollout), frame=64 * (k + 1))
        used.append(ppo.learner.state["net.lr"].item())
    assert used == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.0])


def test_schedules_reach_the_loss(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    fall = {"name": "linear_decay", "start_step": 0, "end_step": 100}
    values = {
        "agent.algorithm.entropy_coef_spec": fall | {"start_val": 0.1, "end_val": 0.0},
        "agent.algorithm.clip_eps_spec": fall | {"start_val": 0.2, "end_val": 0.1},
    }
    _, ppo = make_ppo(make_spec("PPO", values))
    metrics = ppo.update(short_rollout(make_rollout), frame=50).values
    assert (metrics["entropy_coef"], metrics["clip_eps"]) == pytest.approx((0.05, 0.15))
    state = ppo.learner.state
    assert (state["entropy_coef"].item(), state["clip_eps"].item()) == pytest.approx((0.05, 0.15))


def test_recomputing_advantages_evaluates_the_critic_before_each_epoch(
    make_spec: MakeSpec, make_rollout: MakeRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for recompute, expected in ((False, 1), (True, 4)):
        _, ppo = make_ppo(make_spec("PPO", {"agent.algorithm.recompute_advantages": recompute}))
        evaluate = Mock(wraps=ppo.critic.values)
        monkeypatch.setattr(ppo.critic, "values", evaluate)
        ppo.update(short_rollout(make_rollout), frame=64)
        assert evaluate.call_count == expected


@pytest.mark.parametrize("shared", [False, True])
def test_popart_keeps_every_prediction_when_its_statistics_move(
    make_spec: MakeSpec, value_of: Callable[..., list[float]], shared: bool
) -> None:
    values = {"agent.algorithm.normalize_v_targets": True, "agent.net.shared": shared}
    agent, ppo = make_ppo(make_spec("PPO", values))
    obs = [-1.0, 0.0, 0.7]
    policy = ppo.act(torch.tensor([obs]).T, explore=False)
    before = value_of(agent, obs)
    for targets in ([100.0, 300.0], [-5.0], [0.0, 1e4, 2.0]):
        ppo.critic.learn_units(torch.tensor(targets))
        assert value_of(agent, obs) == pytest.approx(before, abs=2e-3)
    assert torch.equal(ppo.act(torch.tensor([obs]).T, explore=False), policy)


def test_an_update_lets_the_statistics_follow_its_targets(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    _, ppo = make_ppo(make_spec("PPO", PLAIN | {"agent.algorithm.normalize_v_targets": True}))
    steps = [[1.0, 1.0, 5.0, 5.0]] * 16
    # Terminated one-step episodes: the targets are the rewards.
    rollout = make_rollout([[0.0] * 4] * 17, [[0] * 4] * 16, steps, [[True] * 4] * 16)
    ppo.update(rollout, frame=64)
    statistics = {key: value.item() for key, value in ppo.state_dict()["critic"].items()}
    assert statistics == pytest.approx({"mean": 3.0, "var": 4.0, "count": 64.0})


def test_popart_trains_its_head_on_standardized_targets(make_spec: MakeSpec) -> None:
    _, ppo = make_ppo(make_spec("PPO", {"agent.algorithm.normalize_v_targets": True}))
    ppo.critic.learn_units(torch.tensor([100.0, 300.0]))  # mean 200, std 100
    units = ppo.critic.to_head_units(torch.tensor([200.0, 300.0, 50.0]))
    assert units.tolist() == pytest.approx([0.0, 1.0, -1.5])


def test_a_truncated_step_bootstraps_from_its_own_final_observation(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    # V(s) = s: a linear critic with weight 1.
    values = PLAIN | {"agent.algorithm.gamma": 0.5, "agent.algorithm.lam": 0.5}
    _, ppo = make_ppo(make_spec("PPO", values))
    next(iter(ppo.modules["critic_net"].parameters())).fill_(1.0)
    rollout = make_rollout(
        obs=[[1.0], [2.0], [7.0], [8.0]],
        action=[[0], [0], [0]],
        reward=[[0.0], [0.0], [0.0]],
        truncated=[[False], [True], [False]],
        final_obs={(1, 0): 6.0},
    )
    advantage, target, value = ppo._advantages(ppo.evaluate(rollout))
    # delta = 0.5 * 2 - 1 = 0; 0.5 * 6 - 2 = 1 (not 0.5 * 7 - 2); 0.5 * 8 - 7 = -3
    # A_2 = -3; A_1 = 1 (cut); A_0 = 0 + 0.25 * 1 = 0.25
    assert advantage.tolist() == pytest.approx([0.25, 1.0, -3.0])
    assert value.tolist() == [1.0, 2.0, 7.0]
    assert target.tolist() == pytest.approx([1.25, 3.0, 4.0])


def test_one_pass_of_a_shared_net_gives_what_two_would(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    _, ppo = make_ppo(make_spec("PPO", {"agent.net.shared": True}))
    rollout = make_rollout(
        obs=[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], action=[[0, 1], [1, 0]], reward=[[1.0, 2.0]] * 2
    )
    evaluated = ppo.evaluate(rollout)
    obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten()
    policy = ppo.nets.policy(ppo.learner.state, obs[:4])
    value = ppo.nets.value(ppo.learner.state, obs).view(3, 2)
    torch.testing.assert_close(evaluated.log_prob, policy.log_prob(action).view(2, 2))
    torch.testing.assert_close((evaluated.value, evaluated.next_value), (value[:-1], value[1:]))
