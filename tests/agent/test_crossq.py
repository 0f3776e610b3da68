"""CrossQ: no target nets; both sides of the TD error in one batch-normalised pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.spec import Spec, SpecError, spec_from_dict
from slm_lab.types import ReplayBatch, Spaces

MakeSpec = Callable[..., Spec]
MakeBatch = Callable[..., ReplayBatch]

DISCRETE = Spaces((1,), "float32", "discrete", (2,))
CONTINUOUS = Spaces((1,), "float32", "multi_continuous", (1,))


def renorm_net(**keys: Any) -> dict[str, Any]:
    """A batch renorm on the input, then a linear head."""
    layer = {"LazyBatchRenorm1d": {"momentum": 0.5, "eps": 0.0, "warmup_steps": 100}}
    return {
        "type": "TorchArcNet",
        "arc": {
            "modules": {"body": {"Sequential": [layer]}},
            "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
        },
        "init_fn": "zeros_",
        "optim_spec": {"name": "SGD", "lr": 0.1},
        **keys,
    }


def make_crossq(make_spec: MakeSpec, spaces: Spaces, **keys: Any) -> SoftActorCritic:
    values = {f"agent.algorithm.{key}": value for key, value in keys.items()}
    values |= {
        "agent.net": renorm_net(),
        "agent.memory.batch_size": 2,
        "agent.algorithm.training_iter": 1,
    }
    crossq = make_agent(make_spec("CrossQ", values), spaces, seed=0).algorithm
    assert isinstance(crossq, SoftActorCritic)
    rates = {f"{name}.lr": 0.1 for name in ("net", "q1_net", "q2_net", "log_alpha")}
    crossq.learner.set_coefficients(**rates, fixed_alpha=crossq.fixed_alpha(0))
    return crossq


def statistics(crossq: SoftActorCritic, net: str) -> tuple[list[float], list[float], float]:
    prefix = f"{net}.buffer.body.body.0"
    state = crossq.learner.state
    mean, var = state[f"{prefix}.running_mean"], state[f"{prefix}.running_var"]
    return mean.tolist(), var.tolist(), state[f"{prefix}.steps"].item()


def two_rows(make_batch: MakeBatch) -> ReplayBatch:
    # Both sides together: 0, 2, 4, 6 with mean 3 and variance 5; obs alone: mean 1, variance 1.
    return make_batch([[0.0], [2.0]], [0, 1], [1.0, 1.0], [[4.0], [6.0]], [0.5, 0.0])


def test_there_are_no_target_nets(make_spec: MakeSpec) -> None:
    crossq = make_crossq(make_spec, DISCRETE)
    assert not any("target_q" in key for key in crossq.learner.state)
    assert crossq.target_nets() == {}


def test_target_nets_see_both_sides_in_one_batch_and_move_no_statistics(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    own = renorm_net(update_type="polyak", polyak_coef=0.25)
    values = {"agent.net": renorm_net(), "agent.critic_net": own, "agent.memory.batch_size": 2}
    values |= {"agent.algorithm.training_iter": 1, "agent.algorithm.fixed_alpha": 0.0}
    crossq = make_agent(make_spec("CrossQ", values), DISCRETE, seed=0).algorithm
    assert isinstance(crossq, SoftActorCritic)
    state = crossq.learner.state
    # Norm weight and bias, then the head's weight per action and biases: Q(., a) = (2, 4)[a] x_hat
    # of the targets; the critics themselves say 0.
    for net in ("target_q1_net", "target_q2_net"):
        state[net].copy_(torch.tensor([1.0, 0.0, 2.0, 4.0, 0.0, 0.0]))
    before = {net: state[net].clone() for net in crossq.target_nets()}
    td_error = crossq.update(two_rows(make_batch), frame=0).td_error
    assert td_error is not None
    # x_hat = (4 - 3) / sqrt 5, by the statistics of both sides: E Q = 3 / sqrt 5.
    assert td_error.tolist() == pytest.approx([1 + 0.5 * 3 / math.sqrt(5), 1.0], rel=1e-5)
    assert statistics(crossq, "q1_net") == ([1.5], [3.0], 1.0)
    followed = before["target_q1_net"].lerp(state["q1_net"], 0.25)
    assert torch.equal(state["target_q1_net"], followed)


@pytest.mark.parametrize(
    ("keys", "named"),
    [({"polyak_coef": 0.01}, "update_type"), ({"update_type": "replace"}, "update_frequency")],
)
def test_half_a_target_net_is_refused(
    make_spec: MakeSpec, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(SpecError, match=named):
        make_spec("CrossQ", {"agent.critic_net": renorm_net(**keys)})


def test_statistics_of_the_critics_see_both_sides_and_those_of_the_actor_one(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    crossq = make_crossq(make_spec, DISCRETE)
    crossq.update(two_rows(make_batch), frame=0)
    for net in ("q1_net", "q2_net"):
        # Momentum 0.5 from (0, 1): one pass in train mode, and none for the actor's sake.
        assert statistics(crossq, net) == ([1.5], [3.0], 1.0)
    assert statistics(crossq, "net") == ([0.5], [1.0], 1.0)


def test_both_sides_are_normalised_alike(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    crossq = make_crossq(make_spec, DISCRETE, fixed_alpha=0.0)
    # Norm weight and bias, then the head's weight per action and biases: Q(., a) = (2, 4)[a] x_hat
    for net in ("q1_net", "q2_net"):
        crossq.learner.state[net].copy_(torch.tensor([1.0, 0.0, 2.0, 4.0, 0.0, 0.0]))
    td_error = crossq.update(two_rows(make_batch), frame=0).td_error
    assert td_error is not None
    # x_hat = (x - 3) / sqrt 5. A uniform policy at s' = 4: E Q = 3 / sqrt 5.
    first = 1 + 0.5 * 3 / math.sqrt(5) - 2 * -3 / math.sqrt(5)
    second = 1 - 4 * -1 / math.sqrt(5)
    assert td_error.tolist() == pytest.approx([first, second], rel=1e-5)


def test_the_critic_nets_own_loss_spec_is_the_critics_loss(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    own = {"agent.critic_net": renorm_net(loss_spec={"name": "L1Loss"})}
    plain = {"agent.net": renorm_net(), "agent.memory.batch_size": 2}
    values = plain | own | {"agent.algorithm.training_iter": 1, "agent.algorithm.fixed_alpha": 0.0}
    crossq = make_agent(make_spec("CrossQ", values), DISCRETE, seed=0).algorithm
    batch = make_batch([[0.0], [2.0]], [0, 1], [1.0, 3.0], [[4.0], [6.0]], [0.5, 0.0])
    # Critics of zero: 2 * (|1| + |3|) / 2; squared it would be 10.
    assert crossq.update(batch, frame=0).values["loss"] == 4.0


def test_the_target_side_carries_no_gradient(make_spec: MakeSpec) -> None:
    crossq = make_crossq(make_spec, DISCRETE)
    (q1, q2), later = crossq._critics.current_and_target_q(
        {k: v.clone().requires_grad_(k.startswith("q") and k.endswith("_net"))
         for k, v in crossq.learner.state.items()},
        torch.zeros(2, 1), None, torch.ones(2, 1), None,
    )  # fmt: skip
    assert q1.requires_grad
    assert q2.requires_grad
    assert not any(value.requires_grad for value in later)


def test_continuous_critics_read_states_and_actions_of_both_sides(make_spec: MakeSpec) -> None:
    crossq = make_crossq(make_spec, CONTINUOUS)
    state = crossq.learner.state
    obs, next_obs = torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [6.0]])
    action, one = torch.tensor([[1.0], [-1.0]]), torch.ones(2)
    # Mean 0 and noise 0: next actions are 0, so actions are 1, -1, 0, 0 with variance 1/2.
    zero = torch.zeros(2, 1)
    crossq._critic_step(state, obs, action, one, next_obs, one, one, zero, zero)
    mean, var, steps = statistics(crossq, "q1_net")
    assert mean == [1.5, 0.0]
    assert var == [3.0, 0.75]
    assert steps == 1
    # The next actions came from the actor in eval mode.
    assert statistics(crossq, "net") == ([0.0], [1.0], 0.0)


def test_the_actor_sees_critics_in_eval_mode(make_spec: MakeSpec) -> None:
    crossq = make_crossq(make_spec, CONTINUOUS)
    state = crossq.learner.state
    prefix = "q1_net.buffer.body.body.0"
    state[f"{prefix}.running_mean"].copy_(torch.tensor([0.0, 0.5]))
    for net in ("q1_net", "q2_net"):
        state[net].copy_(torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 2.0, 0.0]))  # Q = 2 a_hat
    before = {k: v.clone() for k, v in state.items() if k.startswith(("q1_net", "q2_net"))}
    # Mean 0 (a head of zeros) and noise 0: a = 0, normalised by running statistics to -0.5 and 0;
    # by its own batch statistics it would be 0 / 0.
    _, metrics, entropy = crossq._actor_step(state, torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    alpha = 0.1
    expected = alpha * -entropy.mean().item() - 2 * -0.5
    assert metrics["policy_loss"].item() == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(state[key], value) for key, value in before.items())


def test_acting_moves_no_statistics(make_spec: MakeSpec) -> None:
    crossq = make_crossq(make_spec, DISCRETE)
    crossq.act(torch.full((4, 1), 9.0), frame=10**6)
    crossq.act(torch.full((1, 1), 9.0), explore=False)
    assert statistics(crossq, "net") == ([0.0], [1.0], 0.0)


def test_a_policy_delay_leaves_most_updates_to_the_critics(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    crossq = make_crossq(make_spec, DISCRETE, policy_delay=3)
    moved = []
    for _ in range(3):
        before = {k: crossq.learner.state[k].clone() for k in ("net", "q1_net", "log_alpha")}
        crossq.update(two_rows(make_batch), frame=0)
        moved.append([k for k, v in before.items() if not torch.equal(v, crossq.learner.state[k])])
    assert moved == [["q1_net"], ["q1_net"], ["net", "q1_net", "log_alpha"]]
    assert statistics(crossq, "q1_net")[2] == 3.0
    assert statistics(crossq, "net")[2] == 1.0


def test_a_critic_net_of_its_own(make_spec: MakeSpec) -> None:
    wide = {
        "type": "MLPNet",
        "hid_layers": [7],
        "hid_layers_activation": "relu",
        "optim_spec": {"name": "SGD", "lr": 0.3},
    }
    spec = make_spec("CrossQ", {"agent.critic_net": wide})
    crossq = make_agent(spec, DISCRETE, seed=0).algorithm
    assert isinstance(crossq, SoftActorCritic)
    assert crossq.modules["q1_net"].state_dict()["model.0.weight"].shape == (7, 1)
    assert crossq.modules["net"].state_dict()["model.0.weight"].shape == (16, 1)
    assert crossq._rates.values(frame=0)["q1_net.lr"] == 0.3
    assert crossq._rates.values(frame=0)["net.lr"] == 0.01


OWN = """
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.spec.algorithm.crossq import CrossQSpec

class Mine(SoftActorCritic):
    spec_class = CrossQSpec
"""


def test_a_class_of_ones_own_with_the_keys_of_crossq_crosses_its_critics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_spec: MakeSpec
) -> None:
    (tmp_path / "my_crossq.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    tree = make_spec("CrossQ").to_dict()
    tree["agent"]["algorithm"]["name"] = "my_crossq:Mine"
    tree["agent"]["critic_net"] = renorm_net()
    made = make_agent(spec_from_dict(tree, "mine"), DISCRETE, seed=0).algorithm
    assert isinstance(made, SoftActorCritic)
    row = torch.tensor([[1.0]])
    state, action = made.learner.state, None
    made._critics.current_and_target_q(state, row, action, torch.tensor([[3.0]]), action)
    # The mean of both sides, of 1 and 3, moved half of the way from 0.
    assert statistics(made, "q1_net")[0] == [1.0]
