"""MLPNet: layers, activations, initialisation, heads and the names of its parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.distribution import make_action_distribution
from slm_lab.agent.algorithm.nets import ActorCriticNets, make_policy_net
from slm_lab.agent.net.mlp import MLPNet, make_activation, make_net
from slm_lab.spec import MLPNetSpec, SpecError
from slm_lab.spec.net import ACTIVATIONS, INIT_FNS
from slm_lab.types import Spaces

CPU = torch.device("cpu")
CONTINUOUS = make_action_distribution(Spaces((3,), "float32", "multi_continuous", (2,)), None)
DISCRETE = make_action_distribution(Spaces((3,), "float32", "discrete", (4,)), None)


def spec(**keys: Any) -> MLPNetSpec:
    return MLPNetSpec.model_validate(
        {"type": "MLPNet", "hid_layers": [8, 6], "hid_layers_activation": "tanh", **keys}
    )


def singular_values(weight: Tensor) -> Tensor:
    values: Tensor = torch.linalg.svdvals(weight.detach())
    return values


def linears(net: nn.Module) -> list[nn.Linear]:
    return [layer for layer in net.modules() if isinstance(layer, nn.Linear)]


def test_the_layer_list_gives_the_body_and_out_dims_the_heads() -> None:
    net = make_net(spec(), (3,), (4, 1))
    assert [layer.weight.shape for layer in linears(net)] == [(8, 3), (6, 8), (4, 6), (1, 6)]
    outputs = net(torch.zeros(5, 3))
    assert [output.shape for output in outputs] == [(5, 4), (5, 1)]


def test_no_hidden_layers_is_a_linear_net() -> None:
    net = make_net(spec(hid_layers=[]), (3,), (2,))
    assert [layer.weight.shape for layer in linears(net)] == [(2, 3)]


def test_observations_of_any_shape_are_flattened() -> None:
    (output,) = make_net(spec(), (2, 3), (4,))(torch.zeros(5, 2, 3))
    assert output.shape == (5, 4)


def test_an_mlp_computes_what_its_layers_say() -> None:
    net = make_net(spec(hid_layers=[1], init_fn="ones_"), (2,), (1,))
    (output,) = net(torch.tensor([[0.3, 0.2]]))
    assert output.item() == pytest.approx(math.tanh(0.5))


@pytest.mark.parametrize("name", ACTIVATIONS.values())
def test_every_activation_a_spec_may_name_is_torchs(name: str) -> None:
    assert type(make_activation(name.lower())) is getattr(nn, name)


def test_no_activation_is_the_identity() -> None:
    x = torch.tensor([-2.0, 3.0])
    assert torch.equal(make_activation(None)(x), x)


def test_the_output_activation_is_one_for_all_heads_or_one_each() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    all_heads = make_net(spec(out_layer_activation="sigmoid"), (3,), (2, 2))(x)
    assert all((head > 0).all() and (head < 1).all() for head in all_heads)
    tails = make_net(spec(out_layer_activation=["tanh", None]), (3,), (2, 2)).tails
    assert isinstance(tails, nn.ModuleList)
    assert [len(head) for head in tails] == [2, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(("activation", "gain"), [("tanh", 5 / 3), ("relu", math.sqrt(2))])
def test_orthogonal_weights_have_the_gain_of_the_activation(activation: str, gain: float) -> None:
    net = make_net(spec(hid_layers_activation=activation, init_fn="orthogonal_"), (3,), (4,))
    for layer in linears(net):
        torch.testing.assert_close(
            singular_values(layer.weight), torch.full((min(layer.weight.shape),), gain)
        )
        assert layer.bias.eq(0).all()


@pytest.mark.parametrize("init_fn", sorted(INIT_FNS))
def test_every_init_function_a_spec_may_name_can_be_applied(init_fn: str) -> None:
    for activation in ("tanh", "relu", "silu", "leakyrelu"):
        net = make_net(spec(hid_layers_activation=activation, init_fn=init_fn), (3,), (4,))
        assert all(layer.bias.eq(0).all() for layer in linears(net))


def test_xavier_and_kaiming_weights_have_their_textbook_spread() -> None:
    def std(init_fn: str) -> float:
        torch.manual_seed(0)
        keys = {"hid_layers": [400], "hid_layers_activation": "relu", "init_fn": init_fn}
        return linears(make_net(spec(**keys), (200,), (1,)))[0].weight.std().item()

    assert std("kaiming_normal_") == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert std("xavier_normal_") == pytest.approx(math.sqrt(2) * math.sqrt(2 / 600), rel=0.02)


def test_without_init_fn_torchs_default_stays() -> None:
    torch.manual_seed(0)
    ours = linears(make_net(spec(hid_layers=[]), (3,), (2,)))[0]
    torch.manual_seed(0)
    theirs = nn.Linear(3, 2)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("shared", [False, True])
def test_head_stds_are_applied_after_init_fn(shared: bool) -> None:
    keys = spec(init_fn="orthogonal_", actor_init_std=0.01, critic_init_std=1.0, shared=shared)
    nets = ActorCriticNets(DISCRETE, keys, keys, CPU)
    policy_head, value_head = (
        (linears(nets.modules["net"])[2], linears(nets.modules["net"])[3])
        if shared
        else (linears(nets.modules["net"])[-1], linears(nets.modules["critic_net"])[-1])
    )
    assert policy_head.weight.shape == (4, 6)
    torch.testing.assert_close(singular_values(policy_head.weight), torch.full((4,), 0.01))
    torch.testing.assert_close(singular_values(value_head.weight), torch.ones(1))
    # The body keeps the gain of init_fn.
    body = linears(nets.modules["net"])[0]
    torch.testing.assert_close(singular_values(body.weight), torch.full((3,), 5 / 3))


def test_a_small_actor_init_std_makes_a_fresh_policy_nearly_uniform() -> None:
    nets = ActorCriticNets(DISCRETE, spec(actor_init_std=0.01), spec(), CPU)
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    entropy = nets.policy(nets.initial_state(), x).entropy()
    torch.testing.assert_close(entropy, torch.full((10,), math.log(4)), atol=1e-3, rtol=0)


def test_log_std_init_is_a_free_parameter_at_its_value() -> None:
    net = make_policy_net(CONTINUOUS, spec(log_std_init=-0.5))
    mean, log_std = net(torch.zeros(5, 3))
    assert mean.shape == log_std.shape == (5, 2)
    assert log_std.eq(-0.5).all()
    assert dict(net.named_parameters())["log_std"].shape == (2,)


def test_a_log_std_of_zero_is_a_value_not_an_absence() -> None:
    assert "log_std" in dict(make_policy_net(CONTINUOUS, spec(log_std_init=0.0)).named_parameters())
    assert "log_std" not in dict(make_policy_net(CONTINUOUS, spec()).named_parameters())


@pytest.mark.parametrize("shared", [False, True])
def test_the_free_log_std_reaches_the_policy(shared: bool) -> None:
    keys = spec(log_std_init=-1.0, shared=shared)
    nets = ActorCriticNets(CONTINUOUS, keys, keys, CPU)
    state, x = nets.initial_state(), torch.zeros(1, 3)
    expected = 2 * (-1.0 + 0.5 * math.log(2 * math.pi * math.e))
    assert nets.policy(state, x).entropy().item() == pytest.approx(expected)
    assert nets.policy_of_heads(nets.modules["net"](x)).entropy().item() == pytest.approx(expected)
    assert nets(state, x)[0].entropy().item() == pytest.approx(expected)
    assert nets.value(state, x).shape == (1,)


def test_discrete_policies_have_no_log_std() -> None:
    net = make_policy_net(DISCRETE, spec(log_std_init=-1.0))
    assert "log_std" not in dict(net.named_parameters())


@pytest.mark.parametrize(
    ("keys", "norm"),
    [
        ({"layer_norm": True}, nn.LayerNorm),
        ({"batch_norm": True}, nn.BatchNorm1d),
        ({"batch_norm": True, "layer_norm": True}, nn.BatchNorm1d),
    ],
)
def test_norm_layers_sit_between_linear_and_activation(
    keys: dict[str, bool], norm: type[nn.Module]
) -> None:
    net = make_net(spec(**keys), (3,), (4,))
    assert isinstance(net, MLPNet)
    assert [type(layer) for layer in net.model] == [nn.Linear, norm, nn.Tanh] * 2


def test_parameter_names_are_those_of_existing_checkpoints() -> None:
    body = ["model.0.weight", "model.0.bias", "model.2.weight", "model.2.bias"]
    one = make_net(spec(), (3,), (4,))
    assert list(one.state_dict()) == [*body, "tails.0.weight", "tails.0.bias"]
    two = make_net(spec(), (3,), (4, 1))
    heads = ["tails.0.0.weight", "tails.0.0.bias", "tails.1.0.weight", "tails.1.0.bias"]
    assert list(two.state_dict()) == [*body, *heads]
    free = make_policy_net(CONTINUOUS, spec(log_std_init=0.0))
    assert set(free.state_dict()) == {*body, "tails.0.weight", "tails.0.bias", "log_std"}


def test_shared_nets_have_one_body_and_separate_nets_two() -> None:
    shared = spec(shared=True)
    assert list(ActorCriticNets(DISCRETE, shared, shared, CPU).modules) == ["net"]
    assert list(ActorCriticNets(DISCRETE, spec(), spec(), CPU).modules) == ["net", "critic_net"]


def test_policy_and_value_agree_however_they_are_asked_for() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for shared in (False, True):
        nets = ActorCriticNets(DISCRETE, spec(shared=shared), spec(), CPU)
        state, action = nets.initial_state(), torch.tensor([0, 1, 2, 3])
        policy, value = nets(state, x)
        expected = policy.log_prob(action)
        torch.testing.assert_close(nets.policy(state, x).log_prob(action), expected)
        torch.testing.assert_close(
            nets.policy_of_heads(nets.modules["net"](x)).log_prob(action), expected
        )
        torch.testing.assert_close(nets.value(state, x), value)


def test_a_list_of_activations_must_name_one_per_head() -> None:
    with pytest.raises(SpecError, match=r"out_layer_activation: found 2 for a net with 1 head"):
        make_net(spec(out_layer_activation=["tanh", None]), (3,), (1,))
