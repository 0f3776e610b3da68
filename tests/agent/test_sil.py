"""Self-imitation: only what went better than expected teaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.sil import SelfImitation, sil_losses
from slm_lab.spec import Spec
from slm_lab.types import ImitationBatch, PastBatch, Rollout, Spaces, Transition

MakeSpec = Callable[..., Spec]
MakeRollout = Callable[..., Rollout]
SPACES = Spaces((1,), "float32", "discrete", (2,))
BOTH = ["SIL", "PPOSIL"]
BASE = {"SIL": "ActorCritic", "PPOSIL": "PPO"}
# A linear net of zeros: both actions have probability 1/2, V = 0, and a rollout of no rewards
# teaches the base algorithm nothing.
PLAIN: dict[str, Any] = {
    "agent.net.hid_layers": [],
    "agent.net.init_fn": "zeros_",
    "agent.net.optim_spec": {"name": "SGD", "lr": 0.1},
    "agent.algorithm.normalize_advantages": False,
    "agent.algorithm.sil_policy_loss_coef": 1.0,
    "agent.algorithm.sil_val_loss_coef": 1.0,
    "agent.algorithm.training_iter": 1,
    "agent.memory.batch_size": 2,
}


def past(action: list[int], return_: list[float], weight: list[float] | None = None) -> PastBatch:
    count = len(action)
    return PastBatch(
        obs=torch.zeros(count, 1),
        action=torch.tensor(action),
        return_=torch.tensor(return_),
        weight=torch.tensor(weight or [1.0] * count),
        index=torch.arange(count),
    )


def quiet_rollout(make_rollout: MakeRollout, name: str) -> Rollout:
    steps = 16 if name == "PPOSIL" else 8
    return make_rollout([[0.0] * 4] * (steps + 1), [[0] * 4] * steps, [[0.0] * 4] * steps)


def make_sil(make_spec: MakeSpec, name: str, **keys: Any) -> SelfImitation:
    values = PLAIN | {f"agent.algorithm.{key}": value for key, value in keys.items()}
    sil = make_agent(make_spec(name, values), SPACES, seed=0).algorithm
    assert isinstance(sil, SelfImitation)
    return sil


def bias(sil: SelfImitation, net: str) -> list[float]:
    found: list[float] = list(sil.modules[net].parameters())[-1].tolist()
    return found


def test_losses_by_hand() -> None:
    log_prob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    value = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    policy, critic, advantage = sil_losses(
        log_prob, value, torch.tensor([3.0, 1.0, -5.0]), torch.ones(3)
    )
    # Advantages 2, 0, -6 -> 0: only the first went better than expected.
    assert advantage.tolist() == [2.0, 0.0, 0.0]
    assert policy.item() == pytest.approx(1 * 2 / 3)
    assert critic.item() == pytest.approx(0.5 * 4 / 3)
    gradient = torch.autograd.grad(policy + critic, [log_prob, value])
    assert gradient[0].tolist() == pytest.approx([-2 / 3, 0.0, 0.0])
    assert gradient[1].tolist() == pytest.approx([-2 / 3, 0.0, 0.0])  # not through the policy


def test_weights_scale_rows() -> None:
    rows = torch.full((2,), -1.0), torch.zeros(2), torch.tensor([1.0, 1.0])
    policy, critic, _ = sil_losses(*rows, torch.tensor([1.0, 0.5]))
    assert (policy.item(), critic.item()) == (0.75, 0.375)


@pytest.mark.parametrize("name", BOTH)
def test_an_imitation_step_by_hand(
    make_spec: MakeSpec, make_rollout: MakeRollout, name: str
) -> None:
    sil = make_sil(make_spec, name)
    batch = ImitationBatch(quiet_rollout(make_rollout, name), past([1, 0], [2.0, -4.0]))
    metrics = sil.update(batch, frame=0)
    # Row 0 has advantage 2, weight 1/2 in the mean. d(-log pi(1) * 2 / 2)/dlogits = (0.5, -0.5);
    # d(0.5 * 2^2 / 2)/dV = -1. Steps of 0.1 against both.
    assert bias(sil, "net") == pytest.approx([-0.05, 0.05])
    assert bias(sil, "critic_net") == pytest.approx([0.1])
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == [2.0, 0.0]
    assert metrics.values["sil_policy_loss"] == pytest.approx(np.log(2))
    assert metrics.values["sil_value_loss"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", BOTH)
def test_coefficients_scale_both_losses(
    make_spec: MakeSpec, make_rollout: MakeRollout, name: str
) -> None:
    sil = make_sil(make_spec, name, sil_policy_loss_coef=0.5, sil_val_loss_coef=0.1)
    sil.update(ImitationBatch(quiet_rollout(make_rollout, name), past([1, 0], [2.0, -4.0])), 0)
    assert bias(sil, "net") == pytest.approx([-0.025, 0.025])
    assert bias(sil, "critic_net") == pytest.approx([0.01])


@pytest.mark.parametrize("name", BOTH)
def test_a_past_no_better_than_expected_teaches_nothing(
    make_spec: MakeSpec, make_rollout: MakeRollout, name: str
) -> None:
    sil = make_sil(make_spec, name)
    before = sil.learner.state_dict()
    metrics = sil.update(
        ImitationBatch(quiet_rollout(make_rollout, name), past([1, 0], [0.0, -4.0])), 0
    )
    for net in ("net", "critic_net"):
        assert torch.equal(sil.learner.state[net], before[net])
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", BOTH)
def test_without_a_past_it_is_its_base_algorithm(
    make_spec: MakeSpec, make_rollout: MakeRollout, name: str
) -> None:
    ours, base = (make_agent(make_spec(n), SPACES, seed=3).algorithm for n in (name, BASE[name]))
    rollout = quiet_rollout(make_rollout, name)
    rollout = replace(rollout, reward=torch.rand_like(rollout.reward))
    for _ in range(2):
        left = ours.update(ImitationBatch(rollout, None), frame=0)
        right = base.update(rollout, frame=0)
        assert left.values == right.values
        assert left.opt_steps == right.opt_steps
        assert left.td_error is None
    for key, value in base.learner.state.items():
        assert torch.equal(ours.learner.state[key], value), key


@pytest.mark.parametrize("name", BOTH)
def test_every_replay_batch_is_learned_from_training_batch_iter_times(
    make_spec: MakeSpec, make_rollout: MakeRollout, name: str
) -> None:
    sil = make_sil(make_spec, name, training_iter=3, training_batch_iter=2)
    rollout = quiet_rollout(make_rollout, name)
    base_steps = sil.update(ImitationBatch(rollout, None), 0).opt_steps
    metrics = sil.update(ImitationBatch(rollout, past([1] * 6, [1.0] * 6)), 0)
    assert metrics.opt_steps == base_steps + 6
    assert metrics.td_error is not None
    assert metrics.td_error.shape == (6,)


@pytest.mark.parametrize("name", BOTH)
def test_returns_are_compared_in_the_units_of_the_value_head(
    make_spec: MakeSpec, make_rollout: MakeRollout, name: str
) -> None:
    # With normalised targets of mean 10 and std 2 the head's V = 0 means 10: a return of 10 is no
    # news, one of 14 is 2 standard deviations better.
    sil = make_sil(make_spec, name, normalize_v_targets=True)
    sil._base.critic.learn_units(torch.tensor([8.0, 12.0]))
    list(sil.modules["critic_net"].parameters())[-1].zero_()
    advantage = sil._imitate(past([1, 0], [14.0, 10.0]))
    assert advantage.tolist() == pytest.approx([2.0, 0.0], abs=1e-5)


def live(agent: Agent, steps: int, seed: int = 0) -> list[Any]:
    """Episodes of three steps in 4 envs, of which action 1 earns one."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(4, 1)).astype(np.float32)
    updates = []
    for t in range(steps):
        action = agent.act(obs)
        after = rng.normal(size=(4, 1)).astype(np.float32)
        ended = np.full(4, t % 3 == 2)
        reward = np.asarray(action, np.float32)
        ends = ended, np.zeros(4, bool), ended
        agent.observe(obs, action, Transition(after, after, reward, *ends))
        if agent.ready:
            updates.append(agent.update(frame=4 * t))
        obs = after
    return updates


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("replay", ["Replay", "PrioritizedReplay"])
def test_a_whole_agent_imitates_once_it_has_a_past(
    make_spec: MakeSpec, name: str, replay: str
) -> None:
    agent = make_agent(make_spec(name, {"agent.memory.sil_replay_name": replay}), SPACES, seed=0)
    updates = live(agent, 64)
    assert all("sil_loss" in update.values for update in updates[1:])
    assert all((update.td_error >= 0).all() for update in updates[1:])


@pytest.mark.parametrize("name", BOTH)
def test_the_same_seed_learns_alike(make_spec: MakeSpec, name: str) -> None:
    first, second = (make_agent(make_spec(name), SPACES, seed=1) for _ in "ab")
    live(first, 64)
    live(second, 64)
    for key, value in first.algorithm.learner.state.items():
        assert torch.equal(value, second.algorithm.learner.state[key]), key
