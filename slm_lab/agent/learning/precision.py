"""Precision of a net's products: which layers are multiplied in half precision, and how.

Only the two factors of a product are rounded: the input and the weights of a wide layer. Sums are
float32 inside the product, and its result is float32 again from there. So everything else stays
float32: master weights, optimiser, targets, statistics, biases, norms, activations, heads, losses.
Rounding in so few places also means that compiled code, which joins operations, rounds where eager
code does, and the check of its first call can compare them; under `torch.autocast` it cannot.

float16, for CUDA, has a small range: losses are multiplied by a scale before they are
differentiated, and a step whose gradient overflows is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from loguru import logger
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slm_lab.spec import Problem, Spec, SpecError

State = dict[str, Tensor]

_LEAST_PRODUCTS = 2**20
"""Multiplications from which a layer is faster in bfloat16: `python -m perf.precision_layers`."""
_LEAST_SIDE = 16  # a thinner matrix wastes the registers of its product


@dataclass(frozen=True, slots=True)
class Precision:
    """Type of the factors in products of wide layers, and the rows of a gradient step.

    Whether a layer is wide depends on the spec alone, not on the rows of a call: a policy must not
    change with the number of rows that it is evaluated on.
    """

    dtype: torch.dtype = torch.float32
    rows: int = 0

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def scales_gradients(self) -> bool:
        return self.dtype == torch.float16

    def rounded_weights(self, net: nn.Module) -> tuple[str, ...]:
        """Names of the parameters that are rounded in products: those of wide layers."""
        if self.dtype == torch.float32:
            return ()
        return tuple(name for name, size in _weights(net) if size * self.rows >= _LEAST_PRODUCTS)

    def describe(self, nets: Iterable[nn.Module]) -> str:
        """Describe the precision of these nets for the start-up line."""
        if self.dtype == torch.float32:
            return self.name
        nets = list(nets)
        wide = sum(len(self.rounded_weights(net)) for net in nets)
        return f"{self.name} in {wide} of {sum(_count_layers(net) for net in nets)} layers"


FLOAT32 = Precision()


def resolve_precision(spec: Spec, device: torch.device) -> Precision:
    """Resolve `meta.precision` for a device; one that cannot multiply bfloat16 keeps float32."""
    dtype = getattr(torch, spec.meta.precision)
    if dtype == torch.float16 and device.type == "cpu":
        fix = "float16 is for CUDA, and this session trains on the CPU. Use bfloat16 or float32."
        raise SpecError([Problem("meta.precision", fix)], spec.name)
    if dtype == torch.bfloat16 and not multiplies_bfloat16(device.type):
        _warn_of_float32(device.type)
        dtype = torch.float32
    return Precision(dtype, spec.agent.algorithm.step_rows(spec))


@cache
def multiplies_bfloat16(device_type: str) -> bool:
    """Whether a device has instructions for bfloat16; emulated it is tens of times slower."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


@cache
def _warn_of_float32(device_type: str) -> None:
    logger.warning(
        f"meta.precision: bfloat16, but this {device_type.upper()} has no instructions for it. "
        "Training in float32; scores and speed are those of float32."
    )


def _weights(net: nn.Module) -> Iterator[tuple[str, float]]:
    """(name, multiplications per row) of the weights of Linear, convolutions and recurrent cells.

    Heads stay float32, and so do weights that are computed, as under spectral norm or with noise.
    """
    heads = tuple(f"{name}." for name in getattr(net, "head_names", ()))
    seq_len = getattr(net, "seq_len", None)
    for path, module in net.named_modules():
        if f"{path}.".startswith(heads):
            continue
        names = {name for name, _ in module.named_parameters(recurse=False)}
        if isinstance(module, _LAYERS) and "weight" in names and "weight_sigma" not in names:
            # A convolution uses its weights at every pixel: that is always enough.
            is_linear = isinstance(module, nn.Linear)
            size = float(module.weight.numel()) if is_linear else float("inf")
            if not is_linear or min(module.weight.shape) >= _LEAST_SIDE:
                yield f"{path}.weight".lstrip("."), size
        elif isinstance(module, nn.RNNBase) and seq_len is not None:
            for name in sorted(name for name in names if name.startswith("weight")):
                weight = getattr(module, name)
                # The inputs of all steps are one product, the states are one for each step.
                steps = seq_len if name.startswith("weight_hh") else 1
                if min(weight.shape) >= _LEAST_SIDE:
                    yield f"{path}.{name}".lstrip("."), weight.numel() / steps


def _count_layers(net: nn.Module) -> int:
    """Number of weights with which a net multiplies, heads included."""
    weights = [name for name, p in net.named_parameters() if p.dim() > 1]
    return sum(not name.endswith("_sigma") for name in weights)


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PRODUCTS = {F.linear, F.conv1d, F.conv2d, F.conv3d}


class RoundedProducts(TorchFunctionMode):
    """While it is active, products with these weights are computed in `dtype`.

    A weight is rounded once, however often a net uses it; gradients reach the float32 weight.
    """

    def __init__(self, weights: Sequence[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._rounded = {id(weight): weight.to(dtype) for weight in weights}

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _PRODUCTS or len(args) < 2 or id(args[1]) not in self._rounded:
            return func(*args, **(kwargs or {}))
        x, weight, *options = args
        named = dict(kwargs or {})
        bias = options.pop(0) if options else named.pop("bias", None)
        rounded = x.to(self._dtype), self._rounded[id(weight)]
        result = func(*rounded, None, *options, **named).float()
        if bias is None:
            return result
        return result + (bias if func is F.linear else bias.view(-1, *[1] * (weight.dim() - 2)))


# Scaled gradients, for float16

SCALE, _STEPS = "gradient_scale", "gradient_scale.steps"
_FIRST_SCALE, _GROWS_EVERY = 2.0**16, 2000  # as torch.amp.GradScaler


def scale_entries(device: torch.device) -> State:
    """Make the entries of a training state that belong to scaled gradients."""
    scale = torch.tensor(_FIRST_SCALE, device=device)
    return {SCALE: scale, _STEPS: torch.zeros((), device=device)}


def unscaled(gradients: tuple[Tensor, ...], scale: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the loss itself; if one has overflowed, none is finite."""
    are_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
    scale = torch.where(are_finite, scale, torch.nan)
    return tuple(gradient / scale for gradient in gradients)


def skip_overflow(
    state: Mapping[str, Tensor], changes: State, norm: Tensor
) -> tuple[State, Tensor]:
    """Changes of an optimiser step with gradients of this norm; nothing moves if it is not finite.

    The scale halves after an overflow and doubles after 2,000 steps without one.
    """
    is_finite = norm.isfinite()
    steps = torch.where(is_finite, state[_STEPS] + 1, 0.0)
    grows = steps >= _GROWS_EVERY
    factor = torch.where(is_finite, torch.where(grows, 2.0, 1.0), 0.5)
    kept = {key: torch.where(is_finite, new, state[key]) for key, new in changes.items()}
    kept |= {SCALE: state[SCALE] * factor, _STEPS: torch.where(grows, 0.0, steps)}
    return kept, torch.where(is_finite, norm, 0.0)
