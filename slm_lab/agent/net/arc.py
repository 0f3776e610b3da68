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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torch import Tensor, nn

from slm_lab.agent.net.batch_renorm import BatchRenorm1d, LazyBatchRenorm1d
from slm_lab.agent.net.init import init_weights
from slm_lab.agent.net.mlp import apply_tails, make_tails
from slm_lab.agent.net.weight_norm import LazyWeightNormLinear, WeightNormLinear
from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import TorchArcNetSpec

_OWN_LAYERS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (BatchRenorm1d, LazyBatchRenorm1d, WeightNormLinear, LazyWeightNormLinear)
}


class TorchArcNet(nn.Module):
    """The declared body, flattened, then one Linear head per entry of `out_dims`."""

    def __init__(
        self,
        spec: TorchArcNetSpec,
        obs_shape: tuple[int, ...],
        out_dims: Sequence[int],
        log_std_dim: int | None = None,
    ) -> None:
        super().__init__()
        self._scale = 1 / 255 if spec.normalize and len(obs_shape) == 3 else None
        self.body = ArcBody(_read_arc(spec))
        # A dry run makes lazy layers real and tells how wide the body's output is.
        try:
            with torch.no_grad():
                features = self.eval()._features(torch.ones(2, *obs_shape))
        except (RuntimeError, ValueError, TypeError) as error:
            fault = f"cannot read observations of shape {obs_shape}: {error}"
            raise _refuse("graph", fault) from error
        self.tails = make_tails(features.shape[1], out_dims, spec.out_layer_activation)
        init_weights(self, spec.init_fn, spec.hid_layers_activation)
        if log_std_dim is not None:
            self.log_std = nn.Parameter(torch.full((log_std_dim,), float(spec.log_std_init or 0.0)))

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        outputs = apply_tails(self.tails, self._features(obs))
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(obs.shape[0], -1))
        return outputs

    def _features(self, obs: Tensor) -> Tensor:
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
        inputs = graph.get("input", "x")
        _check_names(inputs, "graph.input")
        self._inputs = _names_read(inputs)
        self._nodes = dict(nodes)
        self._output = graph.get("output") or list(self._nodes)[-1]
        known = set(self._inputs)
        for node, reads in self._nodes.items():
            if node.split("~")[0] not in modules:
                raise _refuse(
                    f"graph.modules.{node}", f"no such module; there are {', '.join(modules)}"
                )
            _check_names(reads, f"graph.modules.{node}")
            unknown = set(_names_read(reads)) - known
            if unknown:
                raise _refuse(
                    f"graph.modules.{node}", f"reads {', '.join(sorted(unknown))} before it exists"
                )
            known.add(node)
        _check_names(self._output, "graph.output")
        missing = set(_names_read(self._output)) - known
        if missing:
            raise _refuse(
                "graph.output", f"names {', '.join(sorted(missing))}, which nothing makes"
            )

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
    layer_class = _OWN_LAYERS.get(name) or getattr(nn, name, None)
    if not (isinstance(layer_class, type) and issubclass(layer_class, nn.Module)):
        raise _refuse(
            path, f"{name} is no layer of torch.nn. Names are exact, as in LazyLinear, ReLU"
        )
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
    reads = ["x", *names]
    return {
        "input": "x",
        "modules": {n: [reads[i]] for i, n in enumerate(names)},
        "output": names[-1],
    }


def _names_read(reads: Any) -> list[str]:
    if isinstance(reads, str):
        return [reads]
    return list(reads.values()) if isinstance(reads, Mapping) else list(reads)


def _check_names(reads: Any, path: str) -> None:
    is_known_form = isinstance(reads, str | list | tuple | Mapping)
    if not is_known_form or not all(isinstance(name, str) for name in _names_read(reads)):
        raise _refuse(path, f"found {reads!r:.80}; expected a name, or a list or mapping of names")


def _read_arc(spec: TorchArcNetSpec) -> Mapping[str, Any]:
    if spec.arc is not None:
        return spec.arc
    path = Path(spec.arc_file or "")
    try:
        if not path.is_file():  # a device or a pipe could be read for ever
            raise OSError("no such file")
        arc = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SpecError(
            [Problem("agent.net.arc_file", f"{path} cannot be read: {error}")]
        ) from error
    if not isinstance(arc, Mapping):
        raise SpecError([Problem("agent.net.arc_file", f"{path} holds no mapping with modules")])
    inner: Mapping[str, Any] = arc.get("arc", arc)
    return inner


def _refuse(path: str, message: str) -> SpecError:
    return SpecError([Problem(f"agent.net.arc.{path}", message)])
