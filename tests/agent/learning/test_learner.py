"""The learning step: flat parameters, clipping, metrics, and compiled = eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.agent import make_agent
from slm_lab.agent.learning import compiler
from slm_lab.agent.learning.learner import Learner, NetState, State, gradient_update, gradients
from slm_lab.spec import MLPNetSpec, Spec
from slm_lab.types import Rollout, Spaces


def net_spec(optimizer: str = "SGD", lr: float = 1.0, **keys: Any) -> MLPNetSpec:
    optim = {"name": optimizer, "lr": lr, **keys.pop("optim", {})}
    return MLPNetSpec.model_validate(
        {
            "type": "MLPNet",
            "hid_layers": [],
            "hid_layers_activation": "tanh",
            "optim_spec": optim,
            **keys,
        }
    )


class Line(nn.Module):
    """w x + b, with known weights."""

    def __init__(self, w: float = 2.0, b: float = 1.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[w]]))
        self.b = nn.Parameter(torch.tensor([b]))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x @ self.w + self.b,)


def mean_output(net: NetState) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """A loss with gradient (mean x, 1)."""

    def loss(state: State, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        (y,) = net(state, x)
        return y.mean(), {"mean_x": x.mean()}

    return loss


def line_learner(spec: MLPNetSpec, *, lr: float = 1.0) -> tuple[NetState, Learner]:
    net = NetState("net", Line(), spec)
    learner = Learner(net.initial_state(), gradient_update([net], mean_output(net)), compile=None)
    learner.set_coefficients(**{"net.lr": lr})
    return net, learner


def test_the_modules_parameters_view_the_flat_vector() -> None:
    net = NetState("net", Line(), net_spec())
    state = net.initial_state()
    assert state["net"].tolist() == [2.0, 1.0]
    state["net"].copy_(torch.tensor([5.0, -1.0]))
    assert net.net(torch.ones(1, 1))[0].item() == 4.0


def test_acting_sees_a_step_without_a_copy() -> None:
    net, learner = line_learner(net_spec())
    learner.step(torch.full((2, 1), 3.0))
    # gradient (3, 1), lr 1: w = 2 - 3, b = 1 - 1
    assert [p.item() for p in net.net.parameters()] == [-1.0, 0.0]


def test_a_net_is_evaluated_under_the_parameters_it_is_given() -> None:
    net = NetState("net", Line(), net_spec())
    (y,) = net({"net": torch.tensor([10.0, 0.5])}, torch.ones(1, 1))
    assert y.item() == 10.5
    assert net.net(torch.ones(1, 1))[0].item() == 3.0


def test_gradients_are_clipped_by_their_global_norm() -> None:
    _, learner = line_learner(net_spec(clip_grad_val=0.5))
    learner.step(torch.full((1, 1), 0.75))
    # gradient (0.75, 1) has norm 1.25; scaled to norm 0.5 it is (0.3, 0.4)
    assert learner.state["net"].tolist() == pytest.approx([1.7, 0.6], abs=1e-5)
    # The reported norm is the one before clipping.
    assert learner.mean_metrics()["grad_norm"] == pytest.approx(1.25)


def test_a_gradient_below_the_norm_is_not_scaled_up() -> None:
    _, learner = line_learner(net_spec(clip_grad_val=100.0))
    learner.step(torch.full((1, 1), 0.75))
    assert learner.state["net"].tolist() == pytest.approx([1.25, 0.0])


def test_weight_decay_applies_to_matrices_and_leaves_biases_alone() -> None:
    net = NetState("net", Line(), net_spec(optim={"weight_decay": 0.5}))
    state = net.initial_state() | {"net.lr": torch.tensor(1.0)}
    changes, _ = net.optimizer_step(state, torch.zeros(2))
    assert changes["net"].tolist() == [1.0, 1.0]


def test_metrics_are_means_over_the_steps_since_last_asked() -> None:
    _, learner = line_learner(net_spec(), lr=0.0)
    assert learner.mean_metrics() == {}
    for x in (1.0, 2.0, 6.0):
        learner.step(torch.full((1, 1), x))
    metrics = learner.mean_metrics()
    assert metrics["mean_x"] == pytest.approx(3.0)
    assert metrics["loss"] == pytest.approx(7.0)  # 2 * 3 + 1
    learner.step(torch.full((1, 1), 4.0))
    assert learner.mean_metrics()["mean_x"] == pytest.approx(4.0)
    assert learner.mean_metrics() == {}


def test_learning_the_metric_names_does_not_count_as_a_step() -> None:
    _, learner = line_learner(net_spec("Adam"), lr=0.1)
    learner.step(torch.ones(1, 1))
    assert learner.state["net.slot.step"].item() == 1


def test_two_nets_step_by_their_own_optimiser_and_learning_rate() -> None:
    actor, critic = (
        NetState("net", Line(), net_spec()),
        NetState("critic_net", Line(), net_spec("Adam")),
    )

    def loss(state: State, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return (actor(state, x)[0] + critic(state, x)[0]).mean(), {}

    learner = Learner(
        actor.initial_state() | critic.initial_state(),
        gradient_update([actor, critic], loss),
        compile=None,
    )
    learner.set_coefficients(**{"net.lr": 1.0, "critic_net.lr": 0.25})
    learner.step(torch.full((1, 1), 3.0))
    assert learner.state["net"].tolist() == [-1.0, 0.0]
    # Adam's first step is lr in the direction of the gradient's sign, whatever its size.
    assert learner.state["critic_net"].tolist() == pytest.approx([1.75, 0.75], abs=1e-5)


def test_a_saved_state_is_a_copy_and_restores_the_module_too() -> None:
    net, learner = line_learner(net_spec("Adam"))
    saved = learner.state_dict()
    learner.step(torch.ones(1, 1))
    assert saved["net"].tolist() == [2.0, 1.0]
    learner.load_state_dict(saved)
    assert [p.item() for p in net.net.parameters()] == [2.0, 1.0]
    assert learner.state["net.slot.step"].item() == 0


def test_gradients_of_named_entries_only() -> None:
    state = {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}
    grads, metrics = gradients(lambda s: (s["a"] * s["b"], {}), state, ["a"])
    assert {key: value.item() for key, value in grads.items()} == {"a": 3.0}
    assert metrics["loss"].item() == 6.0


def test_a_schedule_changes_a_value_and_never_recompiles(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations: list[int] = []

    def count(function: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        compilations.append(1)
        return function

    monkeypatch.setattr(compiler, "compile_graph", count)
    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    net = NetState("net", Line(), net_spec())
    learner = Learner(
        net.initial_state(), gradient_update([net], mean_output(net)), compile="default"
    )
    for lr in (1.0, 0.5, 0.0):
        learner.set_coefficients(**{"net.lr": lr})
        learner.step(torch.ones(1, 1))
    assert learner.state["net"].tolist() == [0.5, -0.5]
    assert len(compilations) == 1


def test_a_native_step_that_fails_half_way_leaves_state_and_metrics_to_the_eager_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_a_step(*inputs: Tensor) -> tuple[Tensor]:
        for x in inputs:
            x.fill_(-7.0)
        raise RuntimeError("out of registers")

    monkeypatch.setattr(compiler, "compile_graph", lambda *_: half_a_step)
    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    net = NetState("net", Line(), net_spec())
    learner = Learner(
        net.initial_state(), gradient_update([net], mean_output(net)), compile="default"
    )
    learner.set_coefficients(**{"net.lr": 0.5})
    batch = torch.tensor([[1.0], [3.0]])
    learner.step(batch)
    learner.step(batch)
    assert not learner.is_compiled
    assert learner.state["net"].tolist() == [0.0, 0.0]  # the gradient is (2, 1)
    assert learner.mean_metrics()["mean_x"] == 2.0
    assert batch.tolist() == [[1.0], [3.0]]


SPACES = Spaces((1,), "float32", "discrete", (2,))


def some_rollout(make_rollout: Callable[..., Rollout], seed: int) -> Rollout:
    """16 steps of 4 envs with a few endings of both kinds."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    truncated = [[t == 7, False, False, t == 12] for t in range(16)]
    return make_rollout(
        obs=draw(17, 4).tolist(),
        action=(draw(16, 4) > 0.5).long().tolist(),
        reward=draw(16, 4).tolist(),
        terminated=(draw(16, 4) > 0.9).tolist(),
        truncated=truncated,
        final_obs={(7, 0): 0.5, (12, 3): -0.5},
    )


@pytest.fixture(scope="module")
def compiled_and_eager(
    make_spec: Callable[..., Spec], make_rollout: Callable[..., Rollout]
) -> tuple[State, State, bool]:
    """Two learners' states after 32 PPO steps on the same rollouts, and whether one was native."""
    states, is_native = [], False
    for mode in ("on", "off"):
        values = {"meta.compile": mode, "agent.net.clip_grad_val": 0.5}
        agent = make_agent(make_spec("PPO", values), SPACES, seed=3)
        for seed in range(4):  # 4 epochs of 2 minibatches each
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # torch's own compiler uses deprecated parts of torch
                agent.algorithm.update(some_rollout(make_rollout, seed), frame=64 * seed)
        states.append(agent.algorithm.learner.state)
        is_native = is_native or agent.algorithm.learner.is_compiled
    return states[0], states[1], is_native


@pytest.mark.slow
@pytest.mark.skipif(not compiler.has_cpp_compiler(), reason="no C++ compiler")
def test_compiled_and_eager_learning_give_the_same_numbers(
    compiled_and_eager: tuple[State, State, bool],
) -> None:
    compiled, eager, is_native = compiled_and_eager
    assert is_native
    assert eager["net.slot.step"].item() == 32
    for key, value in eager.items():
        torch.testing.assert_close(compiled[key], value, rtol=1e-3, atol=1e-5, msg=key)
