"""TorchArcNet: every way a body can be declared, and what is refused by which path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slm_lab.agent.net.arc import (
    ArcBody,
    BatchRenorm1d,
    LazyWeightNormLinear,
    TorchArcNet,
    WeightNormLinear,
    build_module,
)
from slm_lab.agent.net.mlp import make_net
from slm_lab.spec import MLPNetSpec, SpecError, TorchArcNetSpec

Arc = dict[str, Any]


def sequential(*layers: Any, **more: Any) -> Arc:
    """The form of every shipped spec: one Sequential called body."""
    return {
        "modules": {"body": {"Sequential": list(layers)}},
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
        **more,
    }


def make(arc: Arc, obs_shape: tuple[int, ...] = (3,), out: tuple[int, ...] = (2,), **keys: Any) -> (
    nn.Module
):  # fmt: skip
    log_std_dim = keys.pop("log_std_dim", None)
    spec = TorchArcNetSpec.model_validate({"type": "TorchArcNet", "arc": arc, **keys})
    return make_net(spec, obs_shape, out, log_std_dim)


def linear(width: int) -> Arc:
    return {"LazyLinear": {"out_features": width}}


def constant_linear(factor: float, bias: float = 0.0) -> nn.Linear:
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, factor)
    nn.init.constant_(layer.bias, bias)
    return layer


def test_an_arc_like_an_mlp_has_the_same_parameters() -> None:
    arc = make(sequential(linear(8), {"Tanh": None}, linear(6), {"Tanh": None}), init_fn="ones_")
    mlp_spec = MLPNetSpec.model_validate(
        {"type": "MLPNet", "hid_layers": [8, 6], "hid_layers_activation": "tanh", "init_fn": "ones"}
    )
    mlp = make_net(mlp_spec, (3,), (2,))
    ours, theirs = arc.state_dict(), mlp.state_dict()
    renamed = [name.replace("model.", "body.body.") for name in theirs]
    assert list(ours) == renamed
    assert [t.shape for t in ours.values()] == [t.shape for t in theirs.values()]
    obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(arc(obs)[0], mlp(obs)[0])


def test_parameters_have_the_names_of_existing_checkpoints() -> None:
    net = make(sequential(linear(8), {"ReLU": None}, {"LayerNorm": {"normalized_shape": 8}}))
    assert list(net.state_dict()) == [
        "body.body.0.weight",
        "body.body.0.bias",
        "body.body.2.weight",
        "body.body.2.bias",
        "tails.0.weight",
        "tails.0.bias",
    ]


def test_lazy_layers_are_real_once_the_net_is_built() -> None:
    layers = [
        {"LazyConv2d": {"out_channels": 4, "kernel_size": 3, "stride": 2}},
        {"ReLU": None},
        {"Flatten": None},
        linear(5),
        {"LazyBatchRenorm1d": {"momentum": 0.01, "eps": 0.001, "warmup_steps": 100}},
        {"LazyWeightNormLinear": {"out_features": 6}},
    ]
    net = make(sequential(*layers), obs_shape=(2, 9, 9))
    kinds = [type(layer) for layer in net.modules()]
    assert nn.Conv2d in kinds
    assert nn.Linear in kinds
    assert BatchRenorm1d in kinds
    assert WeightNormLinear in kinds
    assert not any("Lazy" in kind.__name__ for kind in kinds)
    assert net(torch.zeros(7, 2, 9, 9))[0].shape == (7, 2)
    # The dry run was in eval mode: no statistics have moved.
    assert net.state_dict()["body.body.4.steps"].item() == 0


def test_images_are_flattened_before_the_heads_and_divided_by_255_when_asked() -> None:
    arc = sequential({"Identity": None})
    obs = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
    plain = make(arc, (1, 2, 2), out=(1,), init_fn="ones_")
    scaled = make(arc, (1, 2, 2), out=(1,), init_fn="ones_", normalize=True)
    assert plain(obs)[0].item() == 4 * 255
    assert scaled(obs)[0].item() == pytest.approx(4.0)
    vector = make(arc, (4,), out=(1,), init_fn="ones_", normalize=True)
    assert vector(torch.ones(1, 4))[0].item() == 4.0  # inert on vectors


def test_heads_and_a_free_log_std() -> None:
    net = make(sequential(linear(4)), out=(2, 1), log_std_init=-0.5, log_std_dim=2)
    mean, value, log_std = net(torch.zeros(3, 3))
    assert (mean.shape, value.shape) == ((3, 2), (3, 1))
    assert log_std.tolist() == [[-0.5, -0.5]] * 3
    names = [name for name, _ in net.named_parameters()]
    assert "log_std" in names
    assert {"tails.0.0.weight", "tails.1.0.weight"} <= set(names)


def test_the_output_activation_and_the_init_gain_apply() -> None:
    net = make(sequential(linear(4)), out_layer_activation="tanh", init_fn="ones_")
    assert net(torch.full((1, 3), 100.0))[0].tolist() == [[1.0, 1.0]]
    relu = make(sequential(linear(3)), init_fn="orthogonal_", hid_layers_activation="relu")
    weight = relu.state_dict()["body.body.0.weight"]
    assert torch.linalg.svdvals(weight).tolist() == pytest.approx([2**0.5] * 3, abs=1e-5)


def test_a_compact_row_is_one_layer_per_row_of_arguments_between_like_layers() -> None:
    compact = {
        "compact": {
            "prelayer": [{"Dropout": {"p": 0.5}}],
            "layer": {
                "type": "LazyConv2d",
                "keys": ["out_channels", "kernel_size"],
                "args": [[4, 3], [8, 2]],
            },
            "postlayer": [{"ReLU": None}, {"BatchNorm2d": {"num_features": 4}}],
        }
    }
    module = build_module(compact, "modules.body")
    assert isinstance(module, nn.Sequential)
    names = ["Dropout", "LazyConv2d", "ReLU", "BatchNorm2d"]
    assert [type(layer).__name__ for layer in module] == 2 * names
    assert [layer.out_channels for layer in module if isinstance(layer, nn.Conv2d)] == [4, 8]
    assert [layer.kernel_size for layer in module if isinstance(layer, nn.Conv2d)] == [
        (3, 3),
        (2, 2),
    ]


@pytest.mark.parametrize("rows", [[16, 8], [[16], [8]], ((16,), (8,))])
def test_a_compact_row_of_one_argument_needs_no_list(rows: Any) -> None:
    layer = {"type": "LazyLinear", "keys": ["out_features"], "args": rows}
    module = build_module({"compact": {"layer": layer, "postlayer": [{"Tanh": None}]}}, "modules.b")
    assert isinstance(module, nn.Sequential)
    assert module(torch.zeros(2, 5)).shape == (2, 8)
    assert len(module) == 4


def test_arguments_may_be_a_list_or_nothing() -> None:
    assert isinstance(build_module("ReLU", "m"), nn.ReLU)
    assert isinstance(build_module({"ReLU": {}}, "m"), nn.ReLU)
    module = build_module({"Linear": [3, 4]}, "m")
    assert isinstance(module, nn.Linear)
    assert (module.in_features, module.out_features) == (3, 4)


def body_of(graph: Arc) -> ArcBody:
    """Modules `twice`, `thrice` and a bilinear `both`, wired by a graph."""
    body = ArcBody(
        {
            "modules": {
                "twice": {"Linear": [1, 1]},
                "thrice": {"Linear": [1, 1]},
                "both": {"Bilinear": [1, 1, 1]},
            },
            "graph": graph,
        }
    )
    body["twice"], body["thrice"] = constant_linear(2.0), constant_linear(3.0)
    nn.init.ones_(body["both"].weight)  # type: ignore[arg-type]
    nn.init.zeros_(body["both"].bias)  # type: ignore[arg-type]
    return body


def run(graph: Arc, *inputs: float) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return tuple(map(plain, value)) if isinstance(value, tuple) else value.item()

    return plain(body_of(graph)(*(torch.tensor([[x]]) for x in inputs)))


def test_modules_run_in_the_order_of_the_graph() -> None:
    chain = {"input": "x", "modules": {"twice": ["x"], "thrice": ["twice"]}, "output": "thrice"}
    assert run(chain, 1.0) == 6.0


def test_a_graph_may_have_two_inputs_that_meet() -> None:
    graph = {
        "input": ["a", "b"],
        "modules": {"twice": ["a"], "thrice": ["b"], "both": ["twice", "thrice"]},
        "output": "both",
    }
    assert run(graph, 1.0, 10.0) == 60.0  # 2 * 30


def test_inputs_may_be_given_by_keyword() -> None:
    graph = {
        "input": ["a", "b"],
        "modules": {"both": {"input1": "b", "input2": "a"}},
        "output": "both",
    }
    assert run(graph, 2.0, 5.0) == 10.0


def test_a_tag_reuses_a_module_on_other_inputs() -> None:
    graph = {
        "input": ["a", "b"],
        "modules": {"twice": ["a"], "twice~again": ["b"], "twice~on_itself": ["twice"]},
        "output": ["twice", "twice~again", "twice~on_itself"],
    }
    assert run(graph, 1.0, 10.0) == (2.0, 20.0, 4.0)
    names = [name for name, _ in body_of(graph).named_parameters()]
    assert not any("~" in name for name in names)  # the same weights


def test_the_output_may_be_a_name_a_list_or_a_mapping() -> None:
    nodes = {"twice": ["x"], "thrice": ["x"]}
    assert run({"input": "x", "modules": nodes, "output": "twice"}, 1.0) == 2.0
    assert run({"input": "x", "modules": nodes, "output": ["thrice", "twice"]}, 1.0) == (3.0, 2.0)
    mapping = {"t": "thrice", "d": "twice"}
    assert run({"input": "x", "modules": nodes, "output": mapping}, 1.0) == {"t": 3.0, "d": 2.0}


@pytest.mark.parametrize("output", [["second", "first"], {"a": "second", "b": "first"}])
def test_of_several_outputs_the_heads_read_the_first(output: Any) -> None:
    arc = {
        "modules": {"first": linear(4), "second": linear(7)},
        "graph": {
            "input": "x",
            "modules": {"first": ["x"], "second": ["first"]},
            "output": output,
        },
    }
    assert make(arc).state_dict()["tails.0.weight"].shape == (2, 7)


def test_an_arc_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "arc.yaml"
    path.write_text(
        "arc:\n  modules: {body: {Sequential: [{LazyLinear: {out_features: 5}}, {ReLU: null}]}}\n"
        "  graph: {input: x, modules: {body: [x]}, output: body}\n"
    )
    spec = TorchArcNetSpec.model_validate({"type": "TorchArcNet", "arc_file": str(path)})
    assert make_net(spec, (3,), (2,)).state_dict()["tails.0.weight"].shape == (2, 5)
    missing = TorchArcNetSpec.model_validate({"type": "TorchArcNet", "arc_file": "nowhere.yaml"})
    with pytest.raises(SpecError, match=r"agent\.net\.arc_file: nowhere\.yaml cannot be read"):
        make_net(missing, (3,), (2,))


REFUSED: dict[str, tuple[Arc, str]] = {
    "unknown layer": (
        sequential(linear(4), {"LazyLineer": {"out_features": 4}}),
        r"modules\.body\.1: LazyLineer is no layer",
    ),
    "wrong argument": (
        sequential({"LazyLinear": {"features": 4}}),
        r"modules\.body\.0: LazyLinear cannot be made with",
    ),
    "value that a layer refuses": (
        sequential({"Conv2d": [3, 4, 2, 1, 0, 1, 5]}),
        r"modules\.body\.0: Conv2d cannot be made with",
    ),
    "two layers in one": (
        sequential({"ReLU": None, "Tanh": None}),
        r"modules\.body\.0: expected one layer",
    ),
    "what a module reads is no name": (
        sequential(graph={"input": "x", "modules": {"body": [{}]}, "output": "body"}),
        r"graph\.modules\.body: found \[{}\]; expected a name",
    ),
    "what a module reads is a number": (
        sequential(graph={"input": "x", "modules": {"body": 3}, "output": "body"}),
        r"graph\.modules\.body: found 3; expected a name",
    ),
    "an input that is no name": (
        sequential(graph={"input": None, "modules": {"body": ["x"]}, "output": "body"}),
        r"graph\.input: found None",
    ),
    "an output that is no name": (
        sequential(graph={"input": "x", "modules": {"body": ["x"]}, "output": [[]]}),
        r"graph\.output: found \[\[\]\]",
    ),
    "a graph without modules": (
        sequential(graph={"input": "x", "modules": [], "output": "body"}),
        r"graph\.modules: expected a mapping",
    ),
    "compact without layer": (
        {**sequential(), "modules": {"body": {"compact": {"args": []}}}},
        r"modules\.body\.compact: lacks 'layer'",
    ),
    "compact without type": (
        {**sequential(), "modules": {"body": {"compact": {"layer": {"keys": [], "args": []}}}}},
        r"modules\.body\.compact: lacks 'type'",
    ),
    "compact row of another length": (
        {
            **sequential(),
            "modules": {
                "body": {
                    "compact": {
                        "layer": {"type": "LazyLinear", "keys": ["out_features"], "args": [[4, 3]]}
                    }
                }
            },
        },
        r"modules\.body\.compact: args row \[4, 3\] does not fill",
    ),
    "name that torch keeps for itself": (
        {**sequential(), "modules": {"double": linear(4)}},
        r"modules\.double: torch keeps this name",
    ),
    "node without module": (
        {
            **sequential(linear(4)),
            "graph": {"input": "x", "modules": {"boody": ["x"]}, "output": "boody"},
        },
        r"graph\.modules\.boody: no such module; there are body",
    ),
    "input that does not exist": (
        {
            **sequential(linear(4)),
            "graph": {"input": "x", "modules": {"body": ["y"]}, "output": "body"},
        },
        r"graph\.modules\.body: reads y before it exists",
    ),
    "output that does not exist": (
        {
            **sequential(linear(4)),
            "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "z"},
        },
        r"graph\.output: names z",
    ),
    "layers that do not fit": (
        sequential({"Linear": [5, 4]}),
        r"graph: cannot read observations of shape \(3,\)",
    ),
    "a second input that nobody gives": (
        {
            **sequential(linear(4)),
            "graph": {"input": ["x", "y"], "modules": {"body": ["x"]}, "output": "body"},
        },
        r"graph: cannot read observations .* inputs \['x', 'y'\]",
    ),
}


@pytest.mark.parametrize(("arc", "message"), REFUSED.values(), ids=REFUSED)
def test_a_bad_arc_is_refused_by_its_path(arc: Arc, message: str) -> None:
    with pytest.raises(SpecError, match=rf"agent\.net\.arc\.{message}"):
        make(arc)


def test_without_a_graph_modules_run_one_after_the_other() -> None:
    body = ArcBody({"modules": {"a": {"Linear": [1, 1]}, "b": {"Linear": [1, 1]}}})
    body["a"], body["b"] = constant_linear(2.0, 1.0), constant_linear(3.0)
    assert body(torch.tensor([[1.0]])).item() == 9.0


def test_no_modules_is_refused() -> None:
    with pytest.raises(SpecError, match=r"agent\.net\.arc\.modules: missing"):
        ArcBody({"modules": {}})


def test_weight_norm_separates_length_and_direction() -> None:
    layer = WeightNormLinear(2, 2)
    with torch.no_grad():
        layer.direction.copy_(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        layer.length.copy_(torch.tensor([10.0, 1.0]))
        assert layer.bias is not None
        layer.bias.copy_(torch.tensor([0.0, 0.5]))
    # Rows become 10 (0.6, 0.8) and (0, 1).
    assert layer(torch.tensor([[1.0, 1.0]])).tolist() == [[pytest.approx(14.0), 1.5]]
    with torch.no_grad():
        layer.direction.mul_(7.0)
    assert layer(torch.tensor([[1.0, 1.0]])).tolist() == [[pytest.approx(14.0), 1.5]]


def test_weight_norm_starts_as_the_linear_layer_of_its_direction() -> None:
    layer = WeightNormLinear(3, 4, bias=False)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(x), x @ layer.direction.T, atol=1e-6)
    assert [name for name, _ in layer.named_parameters()] == ["direction", "length"]


def test_lazy_weight_norm_learns_its_width_from_the_first_input() -> None:
    layer = LazyWeightNormLinear(4)
    assert layer(torch.zeros(2, 3)).shape == (2, 4)
    assert type(layer) is WeightNormLinear
    assert list(layer.state_dict()) == list(WeightNormLinear(3, 4).state_dict())
    assert torch.allclose(layer.length, layer.direction.norm(dim=1))


def test_the_type_of_a_spec_chooses_the_arc_net() -> None:
    assert isinstance(make(sequential(linear(4))), TorchArcNet)
