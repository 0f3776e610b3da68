"""TorchArcNet: a body declared in the spec, in the vocabulary of TorchArc 2; and its own layers.

    arc:
      modules:
        body: {Sequential: [{LazyLinear: {out_features: 64}}, {Tanh: null}]}
      graph:
        input: x
        modules: {body: [x]}
        output: body

Of an observation of several parts, `input` names those that the graph reads: [camera, state]; a
critic of continuous actions has `action` beside them.

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
from torch.nn.modules.lazy import LazyModuleMixin

from slm_lab.agent.net.mlp import HeadedNet, Shape
from slm_lab.spec import Problem, SpecError, TorchArcNetSpec


class TorchArcNet(HeadedNet):
    """The declared body, flattened, then one Linear head per entry of `out_dims`."""

    def make_body(self, spec: TorchArcNetSpec, obs_shape: Shape | Mapping[str, Shape]) -> int:
        shapes = obs_shape if isinstance(obs_shape, Mapping) else {"x": obs_shape}
        self._scales = {
            name: 1 / 255 if spec.normalize and len(shape) == 3 else None
            for name, shape in shapes.items()
        }
        self.body = ArcBody(_read_arc(spec))
        if isinstance(obs_shape, Mapping):
            self.body.check_inputs(obs_shape)
        # A dry run makes lazy layers real and tells how wide the body's output is.
        try:
            with torch.no_grad():
                ones = {name: torch.ones(2, *shape) for name, shape in shapes.items()}
                seen = ones if isinstance(obs_shape, Mapping) else ones["x"]
                return self.eval().features(seen).shape[1]
        except (RuntimeError, ValueError, TypeError) as error:
            fault = f"cannot read observations of shape {obs_shape}: {error}"
            raise _refuse("graph", fault) from error

    def features(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """An observation, or its parts by name, of which the graph takes its inputs."""
        if isinstance(obs, Tensor):
            output = self.body(self._scaled("x", obs))
        else:
            names = self.body.inputs
            output = self.body(*(self._scaled(name, obs[name]) for name in names))
        if isinstance(output, Mapping):
            output = next(iter(output.values()))
        elif isinstance(output, tuple | list):
            output = output[0]
        assert isinstance(output, Tensor)
        return output.flatten(1)

    def _scaled(self, name: str, part: Tensor) -> Tensor:
        scale = self._scales[name]
        return part.float() if scale is None else part.float() * scale


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
        self.inputs = _names_read(graph.get("input", "x"), "graph.input")
        self._nodes = dict(nodes)
        self._output = graph.get("output") or list(self._nodes)[-1]
        known = set(self.inputs)
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

    def check_inputs(self, parts: Mapping[str, Shape]) -> None:
        """Refuse a graph that reads other parts than these."""
        if set(self.inputs) - set(parts):
            kinds = ", ".join(f"{name} {list(shape)}" for name, shape in parts.items())
            fault = f"found {self.inputs}; expected the parts of the observation: {kinds}"
            raise _refuse("graph.input", fault)

    def forward(self, *inputs: Tensor) -> Any:
        if len(inputs) != len(self.inputs):
            raise ValueError(f"the graph has inputs {self.inputs} and was given {len(inputs)}")
        values: dict[str, Any] = dict(zip(self.inputs, inputs, strict=True))
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
    layer_class = OWN_LAYERS.get(name) or getattr(nn, name, None)
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


# Layers that torch.nn has not, plain and lazy: batch renormalisation, weight normalisation


class BatchRenorm1d(nn.Module):
    """Batch renormalisation (Ioffe 2017), as CrossQ uses it.

    Normalises by batch statistics, corrected towards the running ones:
    x_hat = (x - mu_batch) / sigma_batch * r + d, with r = sigma_batch / sigma_run and
    d = (mu_batch - mu_run) / sigma_run, both clamped and without gradient. The clamps open linearly
    from plain batch norm (r = 1, d = 0) to (r_max, d_max) over `warmup_steps` training batches. In
    eval mode the running statistics are used. Any rank of at least two, channels on axis 1.
    """

    running_mean: Tensor
    running_var: Tensor
    steps: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.01,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warmup_steps: int = 10_000,
    ) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.r_max, self.d_max, self.warmup_steps = r_max, d_max, warmup_steps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        if self.training:
            mean, std, scale, shift = self._batch_statistics(x)
        else:
            mean, std = self.running_mean, (self.running_var + self.eps).sqrt()
            scale, shift = torch.ones_like(mean), torch.zeros_like(mean)
        gain, bias = self.weight * scale / std, self.weight * shift + self.bias
        mean, gain, bias = _table(mean, gain, bias)
        return (x - mean.view(shape)) * gain.view(shape) + bias.view(shape)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, var = _mean_and_variance(x)
        std = (var + self.eps).sqrt()
        with torch.no_grad():
            progress = self.steps / self.warmup_steps if self.warmup_steps else self.steps + 1
            openness = progress.clamp(max=1.0)
            r_max = 1 + (self.r_max - 1) * openness
            d_max = self.d_max * openness
            running_std = (self.running_var + self.eps).sqrt()
            scale = torch.minimum(torch.maximum(std / running_std, 1 / r_max), r_max)
            shift = ((mean - self.running_mean) / running_std).clamp(-self.d_max, self.d_max)
            shift = torch.minimum(torch.maximum(shift, -d_max), d_max)
            self.running_mean.copy_(self.running_mean.lerp(mean, self.momentum))
            self.running_var.copy_(self.running_var.lerp(var, self.momentum))
            self.steps.add_(1)
        return mean, std, scale.detach(), shift.detach()


def _mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel in one pass; `torch.var_mean` takes twice as long.

    A difference of squares is exact enough around a value of the batch itself, however far from
    zero the batch lies; what they are measured from changes neither variance nor gradient.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    pivot = x.detach()[(slice(1), slice(None)) + (slice(1),) * len(axes[1:])]
    offset = x - pivot
    mean, square = _table(offset.mean(axes), offset.square().mean(axes))
    return pivot.flatten() + mean, (square - mean.square()).clamp(min=0.0)


def _table(*vectors: Tensor) -> tuple[Tensor, ...]:
    """Force vectors and their gradients into memory, as rows of one table.

    Otherwise the compiler computes them again, roots and quotients included, at every element of
    the batch.
    """
    return torch.stack(vectors).unbind()


class LazyBatchRenorm1d(LazyModuleMixin, BatchRenorm1d):
    """BatchRenorm1d that learns its width from the first input."""

    cls_to_become = BatchRenorm1d

    def __init__(self, **options: Any) -> None:
        super().__init__(0, **options)
        self.weight = nn.UninitializedParameter()  # type: ignore[assignment]
        self.bias = nn.UninitializedParameter()  # type: ignore[assignment]
        self.running_mean = nn.UninitializedBuffer()
        self.running_var = nn.UninitializedBuffer()

    def initialize_parameters(self, x: Tensor) -> None:
        if not self.has_uninitialized_params():
            return
        width = x.shape[1]
        with torch.no_grad():
            for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
                parameter.materialize((width,))  # type: ignore[attr-defined]
                parameter.fill_(value)
            for buffer, value in ((self.running_mean, 0.0), (self.running_var, 1.0)):
                buffer.materialize((width,))  # type: ignore[attr-defined]
                buffer.fill_(value)


class WeightNormLinear(nn.Module):
    """y = g * v x / ||v|| + b: length and direction of each row are learned apart.

    Salimans & Kingma 2016.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.out_features = out_features
        self.direction = nn.Parameter(torch.empty(out_features, in_features))
        self.length = nn.Parameter(torch.ones(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        if in_features:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.direction, a=5**0.5)
        with torch.no_grad():
            self.length.copy_(self.direction.norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        norm = self.direction.norm(dim=1, keepdim=True).clamp_min(1e-12)
        weight = self.direction * (self.length.unsqueeze(1) / norm)
        return nn.functional.linear(x, weight, self.bias)


class LazyWeightNormLinear(LazyModuleMixin, WeightNormLinear):
    """WeightNormLinear that learns its input width from the first input."""

    cls_to_become = WeightNormLinear

    def __init__(self, out_features: int, bias: bool = True) -> None:
        super().__init__(0, out_features, bias)
        self.direction = nn.UninitializedParameter()  # type: ignore[assignment]

    def initialize_parameters(self, x: Tensor) -> None:
        if self.has_uninitialized_params():
            self.direction.materialize((self.out_features, x.shape[-1]))  # type: ignore[attr-defined]
            self.reset_parameters()


OWN_LAYERS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (BatchRenorm1d, LazyBatchRenorm1d, WeightNormLinear, LazyWeightNormLinear)
}
