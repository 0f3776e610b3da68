"""Acting in NumPy gives what the module gives, and follows its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.algorithm.actor import MAX_ROWS, MAX_WIDTH, numpy_policy
from slm_lab.agent.learning.learner import NetState
from slm_lab.agent.net.mlp import make_net
from slm_lab.spec import MLPNetSpec

OBS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def net_spec(**keys: Any) -> MLPNetSpec:
    base = {"type": "MLPNet", "hid_layers": [8, 8], "hid_layers_activation": "tanh"}
    return MLPNetSpec.model_validate(base | keys)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("dims", "log_std"), [((2,), None), ((2, 2), None), ((2, 1), 2)])
def test_the_outputs_are_those_of_the_module(
    activation: str, dims: tuple[int, ...], log_std: int | None
) -> None:
    spec = net_spec(hid_layers_activation=activation, log_std_init=-0.5)
    net = make_net(spec, (3,), dims, log_std)
    net_state = NetState("net", net, spec)
    forward = numpy_policy(net_state.net, rows=4)
    assert forward is not None
    for found, expected in zip(forward(OBS), net(torch.from_numpy(OBS)), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_an_update_of_the_parameters_shows_at_once() -> None:
    spec = net_spec()
    net_state = NetState("net", make_net(spec, (3,), (2,)), spec)
    forward = numpy_policy(net_state.net, rows=4)
    assert forward is not None
    net_state.initial_state()["net"].zero_()
    np.testing.assert_array_equal(forward(OBS)[0], np.zeros((4, 2)))


@pytest.mark.parametrize(
    "keys",
    [
        {"layer_norm": True},
        {"hid_layers_activation": "selu"},
        {"out_layer_activation": "tanh"},
        {"hid_layers": [2 * MAX_WIDTH]},
    ],
)
def test_what_numpy_does_not_know_or_not_better_is_left_to_torch(keys: dict[str, Any]) -> None:
    assert numpy_policy(make_net(net_spec(**keys), (3,), (2,)), rows=4) is None


def test_many_rows_are_left_to_torch() -> None:
    assert numpy_policy(make_net(net_spec(), (3,), (2,)), rows=MAX_ROWS + 1) is None
