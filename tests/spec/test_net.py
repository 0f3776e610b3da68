"""Net specs, and the names of torch that they hold as data."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from slm_lab.spec import (
    ConvNetSpec,
    MLPNetSpec,
    OptimSpec,
    RecurrentNetSpec,
    SpecError,
    spec_from_dict,
)
from slm_lab.spec.net import ACTIVATIONS, INIT_FNS
from slm_lab.spec.optim import LOSS_KWARGS, LOSSES, OPTIMIZERS, OWN_SCHEDULERS, SCHEDULERS


def net_spec(tree: dict[str, Any], **keys: Any) -> Any:
    tree["agent"]["net"].update(keys)
    return spec_from_dict(tree).agent.net


def complaint(tree: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(SpecError) as caught:
        net_spec(tree, **keys)
    return str(caught.value)


def test_every_name_exists_in_torch():
    for name in [*ACTIVATIONS.values(), *LOSSES.values()]:
        assert hasattr(torch.nn, name), name
    for name in INIT_FNS:
        assert hasattr(torch.nn.init, name), name
    for name in SCHEDULERS - OWN_SCHEDULERS.keys():
        assert hasattr(torch.optim.lr_scheduler, name), name


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if not name.startswith("Global")])
def test_optimizer_defaults_are_those_of_torch(name):
    parameters = inspect.signature(getattr(torch.optim, name)).parameters
    for key, default in OPTIMIZERS[name].items():
        assert parameters[key].default == default, key


def test_an_optimizer_holds_every_argument(ppo):
    optim = net_spec(ppo, optim_spec={"name": "Adam", "lr": 0.5, "betas": [0.5, 0.9]}).optim_spec
    assert isinstance(optim, OptimSpec)
    assert optim.lr == 0.5
    assert dict(optim.kwargs) == {
        "lr": 0.5,
        "betas": (0.5, 0.9),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
    }


def test_no_optimizer_means_adam(ppo):
    optim = net_spec(ppo).optim_spec
    assert (optim.name, optim.lr) == ("Adam", 1e-3)


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"name": "RMSProp"}, "`RMSprop`"),
        ({"name": "Adam", "alpha": 0.9}, "unknown key for Adam"),
        ({"name": "Adam", "lr": -1}, "0 or more"),
        ({"name": "Adam", "lr": 1e3}, "such as 1e-3"),
        ({"name": "Adam", "lr": "fast"}, "expected a number"),
        ({"name": "Adam", "betas": 0.9}, "two numbers"),
        ({"name": "SGD", "nesterov": 3}, "true or false"),
        ("Adam", "expected a mapping"),
    ],
)
def test_a_wrong_optimizer_is_refused_with_a_hint(ppo, spec, hint):
    message = complaint(ppo, optim_spec=spec)
    assert "agent.net.optim_spec" in message
    assert hint in message


def test_schedulers_keep_their_arguments(ppo):
    spec = {"name": "LinearToMin", "frame": 1000}
    scheduler = net_spec(ppo, lr_scheduler_spec=spec).lr_scheduler_spec
    assert scheduler.name == "LinearToMin"
    assert dict(scheduler.kwargs) == {"frame": 1000, "min_factor": 0.1}


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"name": "LinearToZero"}, "usually env.max_frame"),
        ({"name": "LinearToZero", "frames": 10}, "`frame`"),
        ({"name": "ReduceLROnPlateau"}, "validation metric"),
        ({"name": "StepLr", "step_size": 3}, "`StepLR`"),
    ],
)
def test_a_wrong_scheduler_is_refused_with_a_hint(ppo, spec, hint):
    assert hint in complaint(ppo, lr_scheduler_spec=spec)


@pytest.mark.parametrize("empty", [None, {}])
def test_no_scheduler_may_be_null_or_empty(ppo, empty):
    assert net_spec(ppo, lr_scheduler_spec=empty).lr_scheduler_spec is None


def test_activations_and_losses_are_known_in_any_case(ppo):
    net = net_spec(
        ppo,
        hid_layers_activation="Leaky_ReLU",
        out_layer_activation=["tanh", None],
        loss_spec={"name": "smoothl1loss", "beta": 0.5},
    )
    assert net.hid_layers_activation == "leakyrelu"
    assert net.out_layer_activation == ("tanh", None)
    assert (net.loss_spec.name, dict(net.loss_spec.kwargs)) == ("SmoothL1Loss", {"beta": 0.5})


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("hid_layers_activation", "relo", "`relu`"),
        ("out_layer_activation", ["tanh", "tnah"], "`tanh`"),
        ("init_fn", "orthogonl_", "`orthogonal_`"),
        ("loss_spec", {"name": "MSLoss"}, "`MSELoss`"),
        ("loss_spec", {"name": "SmoothL1Loss", "bata": 1.0}, "`beta`"),
        ("loss_spec", {"name": "MSELoss", "a.b": 1}, "unknown key for MSELoss. Valid: reduction."),
        ("loss_spec", {"name": "HuberLoss", "delta": 0}, "expected a number above 0"),
        ("loss_spec", {"name": "HuberLoss", "delta": "x"}, "expected a number above 0"),
        ("loss_spec", {"name": "KLDivLoss", "log_target": 1}, "expected true or false"),
        ("loss_spec", {"name": "CrossEntropyLoss", "label_smoothing": 2}, "from 0 to 1"),
        ("loss_spec", {"name": "MSELoss", "reduction": "none"}, "expected `mean` or `sum`"),
        ("hid_layers", [64, -1], "hid_layers.1"),
        ("hid_layers", 64, "hid_layers"),
        ("hid_layrs", [64], "`hid_layers`"),
        ("type", "MPLNet", "`MLPNet`"),
        ("clip_grad_val", 0, "greater than 0"),
    ],
)
def test_a_wrong_net_key_is_refused_with_a_hint(ppo, key, value, hint):
    assert hint in complaint(ppo, **{key: value})


def test_the_options_of_losses_are_those_of_torch():
    for name in LOSSES.values():
        taken = inspect.signature(getattr(torch.nn, name)).parameters
        for key, default in LOSS_KWARGS.get(name, {}).items():
            assert taken[key].default == default


@pytest.mark.parametrize(
    ("given", "meaning"),
    [(None, None), ("auto", None), (False, False), ("false", False), (True, True), ("cuda", True)],
)
def test_gpu_has_three_meanings(ppo, given, meaning):
    assert net_spec(ppo, gpu=given).gpu is meaning


def test_conv_rows_are_completed(ppo):
    ppo["agent"]["net"] = {
        "type": "ConvNet",
        "conv_hid_layers": [[32, 8, 4, 0, 1], [64, [4, 4]]],
        "fc_hid_layers": [],
        "hid_layers_activation": "relu",
    }
    net = spec_from_dict(ppo).agent.net
    assert isinstance(net, ConvNetSpec)
    assert net.conv_hid_layers == ((32, 8, 4, 0, 1), (64, (4, 4), 1, 0, 1))
    assert "conv_hid_layers.0.1" in complaint(ppo, conv_hid_layers=[[32, 0, 4, 0, 1]])
    assert "[channels, kernel" in complaint(ppo, conv_hid_layers=[[32]])


def test_recurrent_cells_are_known_in_any_case(ppo):
    ppo["agent"]["net"] = {
        "type": "RecurrentNet",
        "cell_type": "lstm",
        "fc_hid_layers": [],
        "rnn_hidden_size": 32,
        "seq_len": 4,
        "hid_layers_activation": "relu",
    }
    net = spec_from_dict(ppo).agent.net
    assert isinstance(net, RecurrentNetSpec)
    assert net.cell_type == "LSTM"


def test_an_arc_has_modules_and_a_graph(ppo):
    arc = {
        "modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 8}}]}},
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    }
    ppo["agent"]["net"] = {"type": "TorchArcNet", "arc": arc}
    assert spec_from_dict(ppo).agent.net.hid_layers_activation == "relu"
    assert "agent.net.arc.graph" in complaint(ppo, arc={"modules": {}})
    assert "exactly one" in complaint(ppo, arc=None)


def test_layers_may_be_none(ppo):
    net = net_spec(ppo, hid_layers=[])
    assert isinstance(net, MLPNetSpec)
    assert net.hid_layers == ()


def test_the_earlier_name_of_the_policy_heads_gain_is_read(ppo):
    ppo["agent"]["net"].pop("actor_init_std", None)
    assert net_spec(ppo, actor_out_init_std=0.3).actor_init_std == 0.3
    assert "actor_out_init_std" in complaint(ppo, actor_out_init_std=0.3, actor_init_std=0.1)
