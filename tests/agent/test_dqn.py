"""The DQN family: targets by hand, what an update moves and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.dqn import DQN, td_target
from slm_lab.agent.learning.learner import DivergenceError
from slm_lab.spec import SpecError
from slm_lab.types import ActionType, ReplayBatch, Spaces, Transition
from tests.agent.linear import S0, S1, TABLE, TWO_STATES, MakeBatch, MakeSpec, flat_table

SPACES = TWO_STATES
START = {"agent.algorithm.training_start_step": 0}
Q = list[list[float]]  # [state][action]


def make_dqn(make_spec: MakeSpec, name: str, q: Q, target: Q | None = None, **values: Any) -> DQN:
    keys = {key.replace("__", "."): value for key, value in values.items()}
    dqn = make_agent(make_spec(name, TABLE | START | keys), SPACES, seed=0).algorithm
    assert isinstance(dqn, DQN)
    dqn.learner.state["net"].copy_(flat_table(q))
    if "target_net" in dqn.learner.state:
        dqn.learner.state["target_net"].copy_(flat_table(target or q))
    return dqn


def table(dqn: DQN, name: str = "net") -> Q:
    weight = dqn.learner.state[name][:4].view(2, 2).T
    return [[round(x, 6) for x in row] for row in weight.tolist()]


def td_errors(dqn: DQN, batch: ReplayBatch) -> list[float]:
    found = dqn.update(batch, frame=0).td_error
    assert found is not None
    errors: list[float] = found.tolist()
    return errors


def test_the_target_takes_the_value_of_the_selected_action() -> None:
    next_q = torch.tensor([[10.0, 5.0], [1.0, 2.0]])
    select = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    reward, discount = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5])
    # DQN: the maximum, 1 + 10/2 and 1 + 2/2. Double: 5 and 1, which the other net prefers.
    assert td_target(reward, discount, next_q, next_q).tolist() == [6.0, 2.0]
    assert td_target(reward, discount, next_q, select).tolist() == [3.5, 1.5]


def test_no_discount_no_future() -> None:
    q = torch.full((1, 2), 1e6)
    assert td_target(torch.tensor([3.0]), torch.zeros(1), q, q).tolist() == [3.0]


@pytest.mark.parametrize(
    ("name", "target"),
    [("VanillaDQN", 2.0), ("DQNBase", 2.0), ("DQN", 6.0), ("DoubleDQN", 3.5)],
)
def test_each_of_the_family_has_its_own_target(
    make_spec: MakeSpec, make_batch: MakeBatch, name: str, target: float
) -> None:
    # Online Q(s1) = (1, 2), target Q(s1) = (10, 5): 1 + 0.5 * 2, 10 or 5. Q(s0, 0) = 7.
    base = "VanillaDQN" if name == "DQNBase" else name
    dqn = make_dqn(
        make_spec, base, [[7.0, 0.0], [1.0, 2.0]], [[0.0, 0.0], [10.0, 5.0]],
        agent__algorithm__name=name,
    )  # fmt: skip
    batch = make_batch([S0], [0], [1.0], [S1], [0.5])
    assert td_errors(dqn, batch) == pytest.approx([target - 7.0])


def test_a_terminated_row_learns_its_reward_alone(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    dqn = make_dqn(make_spec, "DQN", [[0.0, 0.0], [8.0, 8.0]], agent__memory__batch_size=2)
    batch = make_batch([S0, S0], [0, 1], [1.0, 1.0], [S1, S1], [0.0, 0.5])
    assert td_errors(dqn, batch) == pytest.approx([1.0, 5.0])


def test_only_the_taken_action_moves_and_weights_scale_its_step(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    dqn = make_dqn(make_spec, "VanillaDQN", [[0.0, 0.0], [0.0, 0.0]], agent__memory__batch_size=2)
    batch = make_batch([S0, S1], [0, 1], [1.0, 1.0], [S1, S1], [0.0, 0.0], [1.0, 0.25])
    metrics = dqn.update(batch, frame=0)
    # Loss (1 * 1 + 0.25 * 1) / 2. Gradient -2 * weight / 2, rate 0.1: steps 0.1 and 0.025.
    assert metrics.values["loss"] == pytest.approx(0.625)
    assert table(dqn) == [[0.1, 0.0], [0.0, 0.025]]


def test_the_error_is_that_of_before_the_step(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    dqn = make_dqn(make_spec, "VanillaDQN", [[0.0, 0.0], [0.0, 0.0]])
    batch = make_batch([S0], [0], [1.0], [S1], [0.0])
    assert td_errors(dqn, batch) == pytest.approx([1.0])
    assert td_errors(dqn, batch) == pytest.approx([1.0 - 0.2 - 0.2])  # weight and bias moved


def test_loss_spec_chooses_the_loss_of_a_row(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    dqn = make_dqn(
        make_spec, "DQN", [[0.0, 0.0], [0.0, 0.0]], agent__net__loss_spec={"name": "SmoothL1Loss"}
    )
    metrics = dqn.update(make_batch([S0], [0], [3.0], [S1], [0.0]), frame=0)
    assert metrics.values["loss"] == pytest.approx(2.5)  # |3| - 1/2


def test_the_bootstrap_carries_no_gradient(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    dqn = make_dqn(make_spec, "VanillaDQN", [[0.0, 0.0], [4.0, 0.0]])
    dqn.update(make_batch([S0], [0], [0.0], [S1], [0.5]), frame=0)
    # Target 2: Q(s0, 0) rises by 0.1 * 2 * 2, and Q(s1, 0) stays.
    assert table(dqn) == [[0.4, 0.0], [4.0, 0.0]]


def test_polyak_follows_after_each_gradient_step(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    dqn = make_dqn(
        make_spec, "DQN", [[0.0, 0.0], [0.0, 0.0]], agent__net__polyak_coef=0.5, env__num_envs=4
    )
    dqn.update(make_batch([S0], [0], [1.0], [S1], [0.0]), frame=4)
    assert table(dqn) == [[0.2, 0.0], [0.0, 0.0]]
    assert table(dqn, "target_net") == [[0.1, 0.0], [0.0, 0.0]]


def test_replace_copies_when_due(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    dqn = make_dqn(
        make_spec, "DQN", [[0.0, 0.0], [0.0, 0.0]],
        agent__net__update_type="replace", agent__net__update_frequency=100,
    )  # fmt: skip
    batch = make_batch([S0], [0], [1.0], [S1], [0.0])
    dqn.update(batch, frame=96)
    assert table(dqn, "target_net")[0][0] == 0.0
    dqn.update(batch, frame=100)  # due: the target is what the net was before this update
    assert table(dqn, "target_net")[0][0] == 0.2
    dqn.update(batch, frame=104)
    assert table(dqn, "target_net")[0][0] == 0.2


def test_every_minibatch_is_learned_from_training_batch_iter_times(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    dqn = make_dqn(
        make_spec, "DQN", [[0.0, 0.0], [0.0, 0.0]],
        agent__algorithm__training_iter=3, agent__algorithm__training_batch_iter=2,
        agent__memory__batch_size=2,
    )  # fmt: skip
    seen: list[list[float]] = []
    step = dqn.learner.step

    def spy(*rows: Tensor) -> None:
        seen.append(rows[2].tolist())
        step(*rows)

    dqn.learner.step = spy  # type: ignore[method-assign]
    batch = make_batch([S0] * 6, [0] * 6, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [S1] * 6, [0.0] * 6)
    metrics = dqn.update(batch, frame=0)
    assert seen == [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0], [2.0, 3.0], [4.0, 5.0], [4.0, 5.0]]
    assert metrics.opt_steps == 6
    assert metrics.td_error is not None
    assert metrics.td_error.shape == (6,)


def test_an_update_reports_what_it_did(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    fall = {"name": "linear_decay", "start_val": 1, "end_val": 0, "start_step": 0, "end_step": 100}
    dqn = make_dqn(
        make_spec, "DQN", [[3.0, 0.0], [0.0, 0.0]], agent__algorithm__explore_var_spec=fall
    )
    values = dqn.update(make_batch([S0], [0], [1.0], [S1], [0.0]), frame=25).values
    assert set(values) == {"loss", "q_value", "grad_norm", "explore_var", "lr"}
    assert values["q_value"] == 3.0
    assert values["explore_var"] == 0.75
    assert values["lr"] == 0.1


def test_the_learning_rate_falls_with_the_frames_since_the_first_update(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    schedule = {"name": "LinearToZero", "frame": 16}  # 4 updates of 4 frames
    dqn = make_dqn(
        make_spec, "DQN", [[0.0, 0.0], [0.0, 0.0]], agent__net__lr_scheduler_spec=schedule
    )
    batch = make_batch([S0], [0], [1.0], [S1], [0.0])
    used = [dqn.update(batch, frame=4 * k).values["lr"] for k in range(1, 6)]
    assert used == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0])


def test_a_reward_that_is_no_number_stops_training(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    dqn = make_dqn(make_spec, "DQN", [[0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(DivergenceError, match=r"at frame 12: .*loss"):
        dqn.update(make_batch([S0], [0], [float("nan")], [S1], [0.0]), frame=12)


def test_images_of_bytes_can_be_learned_from(make_spec: MakeSpec) -> None:
    spaces = Spaces((1, 2, 2), "uint8", "discrete", (2,))
    agent = make_agent(make_spec("DQN", {"agent.algorithm.training_start_step": 0}), spaces, seed=0)
    obs = np.full((4, 1, 2, 2), 255, np.uint8)
    flags = [np.zeros(4, bool)] * 3
    agent.observe(obs, agent.act(obs), Transition(obs, obs, np.ones(4, np.float32), *flags))
    assert agent.update(frame=4).opt_steps == 2


@pytest.mark.parametrize("name", ["DQN", "SARSA"])
@pytest.mark.parametrize(
    ("action_type", "sizes"), [("continuous", (1,)), ("multi_discrete", (2, 2))]
)
def test_other_actions_than_discrete_are_refused_by_the_algorithms_key(
    make_spec: MakeSpec, name: str, action_type: ActionType, sizes: Sequence[int]
) -> None:
    spaces = Spaces((1,), "float32", action_type, tuple(sizes))
    with pytest.raises(SpecError, match=rf"agent\.algorithm\.name: {name} takes discrete"):
        make_agent(make_spec(name), spaces, seed=0)
