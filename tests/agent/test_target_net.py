"""Target nets: how fast slow copies follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.algorithm.replay_actor_critic import TargetUpdate, polyak
from slm_lab.spec import MLPNetSpec, Spec
from slm_lab.types import Spaces

MakeSpec = Callable[..., Spec]
SPACES = Spaces((1,), "float32", "discrete", (2,))
PAIRS = {"target": "online"}


def net(**keys: Any) -> MLPNetSpec:
    return MLPNetSpec.model_validate(
        {"type": "MLPNet", "hid_layers": [], "hid_layers_activation": "relu", **keys}
    )


def make_state() -> dict[str, torch.Tensor]:
    return {"target": torch.tensor([0.0, 8.0]), "online": torch.tensor([4.0, 0.0])}


def test_the_coefficient_is_the_share_of_the_new_weights() -> None:
    moved = polyak(torch.tensor([0.0, 8.0]), torch.tensor([4.0, 0.0]), 0.25)
    assert moved.tolist() == [1.0, 6.0]


def test_polyak_moves_with_every_gradient_step() -> None:
    update = TargetUpdate(
        net(update_type="polyak", polyak_coef=0.25), env_steps_per_gradient_step=1
    )
    state = make_state()
    assert update.moved(state, PAIRS)["target"].tolist() == [1.0, 6.0]
    update.copy_if_due(state, PAIRS, frame=1000)
    assert state["target"].tolist() == [0.0, 8.0]  # and is never replaced


@pytest.mark.parametrize(
    ("env_steps", "share"),
    [
        (1.0, 0.19),
        (2.0, 1 - 0.81**2),  # two env steps: two steps of polyak in one
        (0.5, 0.1),  # two gradient steps per env step: 0.9 * 0.9 = 0.81
    ],
)
def test_the_lag_in_env_steps_does_not_depend_on_the_pace(env_steps: float, share: float) -> None:
    update = TargetUpdate(
        net(update_type="polyak", polyak_coef=0.19), env_steps_per_gradient_step=env_steps
    )
    assert update.share == pytest.approx(share)


def test_replace_copies_once_per_so_many_frames_and_not_between() -> None:
    update = TargetUpdate(
        net(update_type="replace", update_frequency=100), env_steps_per_gradient_step=1
    )
    state = make_state()
    assert update.moved(state, PAIRS) == {}
    copied = []
    for frame in range(0, 320, 8):
        before = state["target"].clone()
        state["online"] += 1
        update.copy_if_due(state, PAIRS, frame)
        if not torch.equal(before, state["target"]):
            copied.append(frame)
            assert torch.equal(state["target"], state["online"])
    assert copied == [104, 200, 304]


def test_a_copy_does_not_follow_its_net() -> None:
    update, state = TargetUpdate(net(), env_steps_per_gradient_step=1), make_state()
    update.copy_if_due(state, PAIRS, frame=1)
    state["online"].fill_(9.0)
    assert state["target"].tolist() == [4.0, 0.0]


def test_a_restored_update_does_not_copy_again() -> None:
    spec = net(update_type="replace", update_frequency=100)
    original, restored = (TargetUpdate(spec, env_steps_per_gradient_step=1) for _ in "ab")
    original.copy_if_due(make_state(), PAIRS, frame=250)
    restored.load_state_dict(original.state_dict())
    state = make_state()
    restored.copy_if_due(state, PAIRS, frame=299)
    assert state["target"].tolist() == [0.0, 8.0]
    restored.copy_if_due(state, PAIRS, frame=300)
    assert state["target"].tolist() == [4.0, 0.0]


def share_of(spec: Spec) -> float:
    dqn = make_agent(spec, SPACES, seed=0).algorithm
    assert isinstance(dqn, DQN)
    return float(dqn._target_update.share)


def test_a_dqn_knows_its_own_pace(make_spec: MakeSpec) -> None:
    values: dict[str, Any] = {"agent.net.polyak_coef": 0.19, "agent.algorithm.training_iter": 1}
    keys = "agent.algorithm.training_frequency", "agent.algorithm.training_batch_iter"
    # 4 envs: an update every 4 transitions is one per env step, every 8 one per two, each 4.
    paces = {(4, 1): 0.19, (1, 1): 1 - 0.9**0.5, (8, 1): 1 - 0.81**2, (4, 2): 0.1, (8, 2): 0.19}
    for pace, share in paces.items():
        spec = make_spec("DQN", values | dict(zip(keys, pace, strict=True)))
        assert share_of(spec) == pytest.approx(share), pace


def test_a_target_starts_as_a_copy_and_vanilla_dqn_has_none(make_spec: MakeSpec) -> None:
    for name in ("DQN", "DoubleDQN"):
        dqn = make_agent(make_spec(name), SPACES, seed=0).algorithm
        assert isinstance(dqn, DQN)
        state = dqn.learner.state
        assert torch.equal(state["target_net"], state["net"])
        assert state["target_net"] is not state["net"]
        (saved,) = dqn.target_nets().values()
        assert list(saved) == list(dqn.modules["net"].state_dict())
    vanilla = make_agent(make_spec("VanillaDQN"), SPACES, seed=0).algorithm
    assert isinstance(vanilla, DQN)
    assert "target_net" not in vanilla.learner.state
    assert vanilla.target_nets() == {}


def test_a_target_net_is_read_with_the_statistics_of_the_online_net(make_spec: MakeSpec) -> None:
    values = {"agent.net.batch_norm": True}
    dqn = make_agent(make_spec("DQN", values), SPACES, seed=0).algorithm
    assert isinstance(dqn, DQN)
    state = dqn.learner.state
    (mean,) = (key for key in state if key.endswith("running_mean"))
    assert mean.startswith("net.")  # no statistics of its own
    one, obs = torch.ones(1), torch.zeros(1, 1)
    before = dqn._td_target(state, one, obs, one)[0]
    state[mean].add_(1.0)
    assert not torch.equal(dqn._td_target(state, one, obs, one)[0], before)
