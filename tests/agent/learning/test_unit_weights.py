"""`unit_weights`: rows of the weights of layers have norm 1, from the start and after each step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.agent.learning.compiler import CompileMode, has_cpp_compiler
from slm_lab.agent.learning.learner import Learner, NetState, State, gradient_update
from slm_lab.spec import SpecError
from tests.agent.learning.test_learner import net_spec
from tests.agent.linear import MakeBatch, MakeSpec
from tests.agent.test_sac import CONTINUOUS


def layer() -> nn.Linear:
    made = nn.Linear(2, 2)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        made.bias.copy_(torch.tensor([5.0, 0.0]))
    return made


def test_rows_are_divided_by_their_norms_and_biases_are_left_alone() -> None:
    net = NetState("net", layer(), net_spec(unit_weights=True))
    state = net.initial_state()
    start = net.named_parameters(state["net"])
    torch.testing.assert_close(start["weight"], torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert start["bias"].tolist() == [5.0, 0.0]

    state["net.lr"].fill_(1.0)
    gradient = torch.tensor([-2.4, -3.2, 0.6, 0.2, 1.0, 0.0])  # of weights, row by row, then biases
    changes, norm = net.optimizer_step(state, gradient)
    moved = net.named_parameters(changes["net"])
    # (0.6, 0.8) + (2.4, 3.2) = (3, 4), and (-0.6, 0.8).
    torch.testing.assert_close(moved["weight"], torch.tensor([[0.6, 0.8], [-0.6, 0.8]]))
    assert moved["bias"].tolist() == [4.0, 0.0]
    assert norm.item() == pytest.approx(gradient.norm().item())


def test_convolutions_have_filters_of_norm_one_and_norm_layers_keep_theirs() -> None:
    body = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
    NetState("net", body, net_spec(unit_weights=True))
    weights = dict(body.named_parameters())
    torch.testing.assert_close(weights["0.weight"].flatten(1).norm(dim=1), torch.ones(3))
    torch.testing.assert_close(weights["3.weight"].norm(dim=1), torch.ones(5))
    assert weights["1.weight"].tolist() == [1.0, 1.0, 1.0]


def test_a_row_of_zeros_stays_zero() -> None:
    made = layer()
    with torch.no_grad():
        made.weight.zero_()
    state = NetState("net", made, net_spec(unit_weights=True)).initial_state()
    assert state["net"].tolist() == [0.0, 0.0, 0.0, 0.0, 5.0, 0.0]


@pytest.mark.slow
@pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
def test_compiled_steps_project_as_eager_ones_do() -> None:
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    found = []
    modes: tuple[CompileMode | None, ...] = (None, "default")
    for mode in modes:
        net = NetState("net", layer(), net_spec("Adam", unit_weights=True))

        def loss(state: State, x: Tensor, net: NetState = net) -> tuple[Tensor, State]:
            tensors = net.named_parameters(state["net"])
            y: Tensor = nn.functional.linear(x, tensors["weight"], tensors["bias"])
            return y.square().mean(), {}

        learner = Learner(net.initial_state(), gradient_update([net], loss), compile=mode)
        learner.set_coefficients(**{"net.lr": 0.1})
        for _ in range(3):
            learner.step(x)
        assert learner.is_compiled == (mode is not None)
        found.append(learner.state["net"])
    torch.testing.assert_close(*found)
    torch.testing.assert_close(found[0][:4].view(2, 2).norm(dim=1), torch.ones(2))


def test_a_spec_turns_it_on_for_actor_or_critics(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    keys = {"agent.critic_net": {"unit_weights": True}, "agent.memory.batch_size": 1}
    spec = make_spec("SoftActorCritic", keys | {"agent.algorithm.training_iter": 1})
    sac = make_agent(spec, CONTINUOUS, seed=0).algorithm
    assert isinstance(sac, SoftActorCritic)
    sac.update(make_batch([[1.0]], [[0.5]], [1.0], [[2.0]], [0.5]), frame=0)

    def norms(net: str) -> Tensor:
        weights = [p for p in sac.modules[net].parameters() if p.dim() > 1]
        return torch.cat([weight.norm(dim=1) for weight in weights])

    torch.testing.assert_close(norms("q1_net"), torch.ones_like(norms("q1_net")))
    assert (norms("net") - 1).abs().max() > 0.1


@pytest.mark.parametrize(
    ("algorithm", "keys", "named"),
    [
        ("PPO", {"agent.net.actor_init_std": 0.01}, "actor_init_std"),
        ("PPO", {"agent.algorithm.normalize_v_targets": True}, "normalize_v_targets"),
        ("SoftActorCritic", {"agent.algorithm.spectral_norm": True}, "spectral_norm"),
    ],
)
def test_what_scales_the_same_weights_is_refused_by_name(
    make_spec: MakeSpec, algorithm: str, keys: dict[str, object], named: str
) -> None:
    with pytest.raises(SpecError, match=named):
        make_spec(algorithm, {"agent.net.unit_weights": True, **keys})
