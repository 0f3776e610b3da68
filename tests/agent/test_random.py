"""The random agent: uniform over every action space, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.spec import Spec
from slm_lab.training.loop import Loop
from slm_lab.types import ActionType, Spaces

MakeSpec = Callable[..., Spec]


def draw(make_spec: MakeSpec, action_type: ActionType, *sizes: int, seed: int = 0) -> np.ndarray:
    agent = make_agent(make_spec("Random"), Spaces((1,), "float32", action_type, sizes), seed=seed)
    return many(agent)


def many(agent: Agent) -> np.ndarray:
    action = np.asarray(agent.act(np.zeros((4000, 1), np.float32)))
    assert np.array_equal(agent.env_action(action), action)
    return action


def test_discrete_actions_are_uniform(make_spec: MakeSpec) -> None:
    action = draw(make_spec, "discrete", 4)
    assert action.shape == (4000,)
    assert (np.bincount(action) / 4000).tolist() == pytest.approx([0.25] * 4, abs=0.03)


def test_sub_actions_are_uniform_and_independent(make_spec: MakeSpec) -> None:
    action = draw(make_spec, "multi_discrete", 2, 3)
    pairs = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / 4000
    assert pairs.tolist() == pytest.approx([1 / 6] * 6, abs=0.03)
    bits = draw(make_spec, "multi_binary", 2)
    assert bits.shape == (4000, 2)
    pairs = np.bincount(bits[:, 0] * 2 + bits[:, 1], minlength=4) / 4000
    assert pairs.tolist() == pytest.approx([0.25] * 4, abs=0.03)


@pytest.mark.parametrize(("action_type", "dim"), [("continuous", 1), ("multi_continuous", 3)])
def test_continuous_actions_fill_the_box(
    make_spec: MakeSpec, action_type: ActionType, dim: int
) -> None:
    action = draw(make_spec, action_type, dim)
    assert action.shape == (4000, dim)
    assert action.dtype == np.float32
    assert -1 <= action.min() < -0.99 < 0.99 < action.max() <= 1
    # Uniform on [-1, 1]: mean 0, variance 1/3
    assert action.mean(0).tolist() == pytest.approx([0.0] * dim, abs=0.05)
    assert action.var(0).tolist() == pytest.approx([1 / 3] * dim, abs=0.03)


def test_a_seed_decides_every_draw(make_spec: MakeSpec) -> None:
    first, same, other = (draw(make_spec, "discrete", 3, seed=seed) for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()


def test_a_restored_agent_continues(make_spec: MakeSpec) -> None:
    spaces = Spaces((1,), "float32", "discrete", (3,))
    original, restored = (make_agent(make_spec("Random"), spaces, seed=seed) for seed in (1, 2))
    many(original)
    restored.load_state_dict(original.state_dict())
    assert (many(original) == many(restored)).all()


@pytest.mark.parametrize(
    "probe", ["ActionMatters", "ContinuousAction", "MultiDiscreteAction", "MultiBinaryAction"]
)
def test_it_runs_through_the_loop_and_learns_nothing(
    make_spec: MakeSpec, train: Callable[..., Loop], probe: str
) -> None:
    loop = train(make_spec("Random", {"env.name": f"probe/{probe}-v0"}), frames=400)
    assert loop.clock.updates == loop.clock.opt_step == 100
    assert loop.metrics is not None
    assert loop.metrics.values == {}
    assert not loop.agent.algorithm.modules
