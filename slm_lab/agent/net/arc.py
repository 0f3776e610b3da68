"""TorchArcNet: a body declared in the spec, in the vocabulary of TorchArc 2.

    arc:
      modules:
        body: {Sequential: [{LazyLinear: {out_features: 64}}, {Tanh: null}]}
      graph:
        input: x
        modules: {body: [x]}
        output: body

A module is one layer of `torch.nn` (or of ours) with its arguments, a `Sequential` of modules, or a
`compact` row of like layers. The graph says which module reads what; `NAME~tag` runs a module again
on other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from slm_lab.agent.net import layers
from slm_lab.agent.net.mlp import HeadedNet, Shape
from slm_lab.spec import Problem, SpecError, TorchArcNetSpec


class TorchArcNet(HeadedNet):
    """The declared body, flattened, then one Linear head per entry of `out_dims`."""

    def make_body(self, spec: TorchArcNetSpec, obs_shape: Shape) -> int:
        self._scale = 1 / 255 if spec.normalize and len(obs_shape) == 3 else None
        self.body = ArcBody(_read_arc(spec))
        # A dry run makes lazy layers real and tells how wide the body's output is.
        try:
            with torch.no_grad():
                return self.eval().features(torch.ones(2, *obs_shape)).shape[1]
        except (RuntimeError, ValueError, TypeError) as error:
            fault = f"cannot read observations of shape {obs_shape}: {error}"
            raise _refuse("graph", fault) from error

    def features(self, obs: Tensor) -> Tensor:
        x = obs.float() if self._scale is None else obs.float() * self._scale
        output = self.body(x)
        if isinstance(output, Mapping):
            output = next(iter(output.values()))
        elif isinstance(output, tuple | list):
            output = output[0]
        assert isinstance(output, Tensor)
        return output.flatten(1)


class ArcBody(nn.ModuleDict):
    """Named modules, and the order in which a graph runs them."""

    def __init__(self, arc: Mapping[str, Any]) -> None:
        modules = arc.get("modules") or {}
        if not modules:
            raise _refuse("modules", "missing; expected a mapping of names to modules")
        super().__init__()
        for name, module in modules.items():
            if hasattr(self, name) or "." in name:
                raise _refuse(f"modules.{name}", "torch keeps this name for itself; choose another")
            self[name] = build_module(module, f"modules.{name}")
        graph = arc.get("graph") or _chain(list(modules))
        nodes = graph.get("modules")
        if not isinstance(nodes, Mapping) or not nodes:
            raise _refuse("graph.modules", "expected a mapping of modules to what they read")
        self._inputs = _names_read(graph.get("input", "x"), "graph.input")
        self._nodes = dict(nodes)
        self._output = graph.get("output") or list(self._nodes)[-1]
        known = set(self._inputs)
        for node, reads in self._nodes.items():
            path = f"graph.modules.{node}"
            if node.split("~")[0] not in modules:
                raise _refuse(path, f"no such module; there are {', '.join(modules)}")
            if unknown := set(_names_read(reads, path)) - known:
                raise _refuse(path, f"reads {', '.join(sorted(unknown))} before it exists")
            known.add(node)
        if missing := set(_names_read(self._output, "graph.output")) - known:
            names = ", ".join(sorted(missing))
            raise _refuse("graph.output", f"names {names}, which nothing makes")

    def forward(self, *inputs: Tensor) -> Any:
        if len(inputs) != len(self._inputs):
            raise ValueError(f"the graph has inputs {self._inputs} and was given {len(inputs)}")
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for node, reads in self._nodes.items():
            module = self[node.split("~")[0]]
            if isinstance(reads, Mapping):
                values[node] = module(**{key: values[name] for key, name in reads.items()})
            else:
                values[node] = module(*(values[name] for name in _names_read(reads)))
        if isinstance(self._output, Mapping):
            return {key: values[name] for key, name in self._output.items()}
        if isinstance(self._output, str):
            return values[self._output]
        return tuple(values[name] for name in self._output)


def build_module(module: Any, path: str) -> nn.Module:
    """`{LayerClass: arguments}`, `{Sequential: [...]}` or `{compact: {...}}` -> a module."""
    if isinstance(module, str):
        module = {module: None}
    if not isinstance(module, Mapping) or len(module) != 1:
        raise _refuse(path, "expected one layer, as in {LazyLinear: {out_features: 64}}")
    ((name, arguments),) = module.items()
    if name == "Sequential":
        parts = [build_module(part, f"{path}.{i}") for i, part in enumerate(arguments or [])]
        return nn.Sequential(*parts)
    if name == "compact":
        return nn.Sequential(*_compact_layers(arguments, f"{path}.compact"))
    return _layer(name, arguments, path)


def _layer(name: str, arguments: Any, path: str) -> nn.Module:
    layer_class = layers.OWN_LAYERS.get(name) or getattr(nn, name, None)
    if not (isinstance(layer_class, type) and issubclass(layer_class, nn.Module)):
        fault = f"{name} is no layer of torch.nn. Names are exact, as in LazyLinear, ReLU"
        raise _refuse(path, fault)
    try:
        if isinstance(arguments, list | tuple):
            return layer_class(*arguments)
        return layer_class(**(arguments or {}))
    except (TypeError, ValueError) as error:
        raise _refuse(path, f"{name} cannot be made with {arguments}: {error}") from error


def _compact_layers(compact: Any, path: str) -> list[nn.Module]:
    """One layer per row of `args`, each between the same pre- and post-layers."""
    try:
        layer = compact["layer"]
        kind, keys, rows = layer["type"], layer["keys"], layer["args"]
    except (KeyError, TypeError) as error:
        raise _refuse(path, f"lacks {error}; expected layer: {{type, keys, args}}") from error
    layers: list[nn.Module] = []
    for row in rows:
        values = list(row) if isinstance(row, list | tuple) else [row]
        if len(values) != len(keys):
            raise _refuse(path, f"args row {values} does not fill the keys {list(keys)}")
        arguments = dict(zip(keys, values, strict=True))
        layers += [build_module(part, path) for part in compact.get("prelayer") or []]
        layers.append(_layer(kind, arguments, path))
        layers += [build_module(part, path) for part in compact.get("postlayer") or []]
    return layers


def _chain(names: list[str]) -> dict[str, Any]:
    """Without a graph, modules run one after the other."""
    reads = zip(names, ["x", *names], strict=False)
    return {"input": "x", "modules": {name: [read] for name, read in reads}, "output": names[-1]}


def _names_read(reads: Any, path: str = "graph") -> list[str]:
    """The names in a part of a graph: one, or a list or mapping of them."""
    names = reads
    if isinstance(reads, str):
        names = [reads]
    elif isinstance(reads, Mapping):
        names = list(reads.values())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _refuse(path, f"found {reads!r:.80}; expected a name, or a list or mapping of names")
    return list(names)


def _read_arc(spec: TorchArcNetSpec) -> Mapping[str, Any]:
    if spec.arc is not None:
        return spec.arc
    path = Path(spec.arc_file or "")
    try:
        if not path.is_file():  # a device or a pipe could be read for ever
            raise OSError("no such file")
        arc = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        problem = Problem("agent.net.arc_file", f"{path} cannot be read: {error}")
        raise SpecError([problem]) from error
    if not isinstance(arc, Mapping):
        raise SpecError([Problem("agent.net.arc_file", f"{path} holds no mapping with modules")])
    inner: Mapping[str, Any] = arc.get("arc", arc)
    return inner


def _refuse(path: str, message: str) -> SpecError:
    return SpecError([Problem(f"agent.net.arc.{path}", message)])
