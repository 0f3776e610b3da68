"""From head outputs to an action distribution.

Hand-written instead of `torch.distributions`, which spends most of a small step on argument checks
and Python properties; tested against it. Every draw is a deterministic function of noise that the
caller provides, so that one seeded generator decides everything and a compiled graph holds no
random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slm_lab.spec import Problem, SpecError
from slm_lab.types import Spaces

NoiseKind = Literal["gumbel", "normal", "uniform"]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)
# Nodes and weights such that sum w f(z) approximates E f(z) for z ~ N(0, 1).
_GAUSS_HERMITE = tuple(
    (node * math.sqrt(2.0), weight / math.sqrt(math.pi))
    for node, weight in zip(*np.polynomial.hermite.hermgauss(7), strict=True)
)


class Distribution(Protocol):
    """Batched over the first axis; log-probs and entropies are summed over action dimensions."""

    def sample(self, noise: Tensor) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def log_prob(self, action: Tensor) -> Tensor: ...
    def entropy(self) -> Tensor: ...


@dataclass(frozen=True)
class Categorical:
    logits: Tensor  # [N, A]

    def sample(self, noise: Tensor) -> Tensor:
        """Gumbel-max trick: adding Gumbel noise to logits makes the argmax a sample."""
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs().gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        log_probs = self.log_probs()
        return -(log_probs.exp() * log_probs).sum(-1)

    def log_probs(self) -> Tensor:
        return self.logits.log_softmax(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent categoricals, one per sub-action; logits side by side in one tensor."""

    logits: Tensor  # [N, sum(sizes)]
    sizes: tuple[int, ...]

    def sample(self, noise: Tensor) -> Tensor:
        return torch.stack(
            [
                p.sample(n)
                for p, n in zip(
                    self._parts(), torch.split(noise, list(self.sizes), -1), strict=True
                )
            ],
            -1,
        )

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self._parts()], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        parts = zip(self._parts(), action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(a) for part, a in parts]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self._parts()]).sum(0)

    def _parts(self) -> list[Categorical]:
        return [Categorical(logits) for logits in torch.split(self.logits, list(self.sizes), -1)]


@dataclass(frozen=True)
class Bernoulli:
    """Independent coins, one per binary sub-action."""

    logits: Tensor  # [N, A]

    def sample(self, noise: Tensor) -> Tensor:
        return (noise < self.logits.sigmoid()).long()

    def mode(self) -> Tensor:
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        # log p = logits for a one, and -softplus(logits) is common to both outcomes.
        return (action * self.logits - F.softplus(self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        return (F.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(-1)


@dataclass(frozen=True)
class Normal:
    """Diagonal Gaussian."""

    mean: Tensor  # [N, A]
    log_std: Tensor  # [N, A], clamped by the family

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        scaled = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + _HALF_LOG_2PI + 0.5).sum(-1)


@dataclass(frozen=True)
class TanhNormal:
    """Gaussian squashed by tanh. Actions are kept before squashing: no atanh, no lost precision."""

    mean: Tensor
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """The pre-squash sample u; the env acts on tanh(u)."""
        return self._normal().sample(noise)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """log pi(tanh u) = log N(u) - sum log(1 - tanh(u)^2)."""
        return self._normal().log_prob(action) - _log_det_tanh(action).sum(-1)

    def entropy(self) -> Tensor:
        """The Gaussian's entropy plus the expected log-det, which has no closed form.

        Gauss-Hermite quadrature over the noise, free of the sampling noise of a one-draw estimate:
        off by 0.001 at a standard deviation of 1, by 0.04 at 2.
        """
        std = self.log_std.exp()
        expected = torch.zeros_like(std)
        for node, weight in _GAUSS_HERMITE:
            expected = expected + weight * _log_det_tanh(self.mean + std * node)
        return self._normal().entropy() + expected.sum(-1)

    def _normal(self) -> Normal:
        return Normal(self.mean, self.log_std)


@dataclass(frozen=True)
class Gumbel:
    """Gumbel, skewed to the right of its mode."""

    mean: Tensor  # its mode, called so for the net's first output
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        scaled = (action - self.mean) * (-self.log_std).exp()
        return (-scaled - (-scaled).exp() - self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 1.0 + np.euler_gamma).sum(-1)


@dataclass(frozen=True)
class LogNormal:
    """exp of a Gaussian: positive actions."""

    mean: Tensor
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        return self._normal().sample(noise).exp()

    def mode(self) -> Tensor:
        return (self.mean - (2.0 * self.log_std).exp()).exp()

    def log_prob(self, action: Tensor) -> Tensor:
        log_action = action.log()
        return self._normal().log_prob(log_action) - log_action.sum(-1)

    def entropy(self) -> Tensor:
        return self._normal().entropy() + self.mean.sum(-1)

    def _normal(self) -> Normal:
        return Normal(self.mean, self.log_std)


def _log_det_tanh(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), stable for large |u|."""
    return 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))


@dataclass(frozen=True)
class Family:
    """The distribution of an action space: the heads it needs, and how its actions reach an env."""

    pdtype: str
    spaces: Spaces

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Heads of a policy net without a free log-std, in the layout of existing checkpoints."""
        sizes = self.spaces.action_sizes
        if self.spaces.action_type == "continuous":
            return (2 * sizes[0],)
        if self.spaces.action_type == "multi_continuous":
            return (sizes[0], sizes[0])
        return sizes

    @property
    def noise_kind(self) -> NoiseKind:
        if self.spaces.is_continuous:
            return "gumbel" if self.pdtype == "Gumbel" else "normal"
        return "uniform" if self.spaces.action_type == "multi_binary" else "gumbel"

    @property
    def noise_dim(self) -> int:
        return sum(self.spaces.action_sizes)

    def __call__(self, heads: Sequence[Tensor]) -> Distribution:
        match self.spaces.action_type:
            case "discrete":
                return Categorical(heads[0])
            case "multi_discrete":
                return MultiCategorical(torch.cat(tuple(heads), -1), self.spaces.action_sizes)
            case "multi_binary":
                return Bernoulli(heads[0])
            case _:
                mean, log_std = heads if len(heads) == 2 else heads[0].chunk(2, -1)
                log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
                return _CONTINUOUS[self.pdtype](mean, log_std)

    def to_env(self, action: Tensor) -> Tensor:
        """What the env executes. Samples are stored unchanged; only the env sees them bounded."""
        if self.pdtype == "NormalTanh":
            return action.tanh()
        if self.spaces.is_continuous and self.spaces.action_bounded:
            return action.clamp(-1.0, 1.0)
        return action


_CONTINUOUS: dict[str, Callable[[Tensor, Tensor], Distribution]] = {
    "Normal": Normal,
    "MultivariateNormal": Normal,  # diagonal, as in the original
    "NormalTanh": TanhNormal,
    "Gumbel": Gumbel,
    "LogNormal": LogNormal,
}
_DEFAULT_PDTYPE = {
    "discrete": "Categorical",
    "multi_discrete": "MultiCategorical",
    "multi_binary": "Bernoulli",
    "continuous": "Normal",
    "multi_continuous": "Normal",
}
_PDTYPES = {
    # A relaxed one-hot, drawn from, has the probabilities of the categorical.
    "discrete": ("Categorical", "GumbelSoftmax"),
    "multi_discrete": ("MultiCategorical",),
    "multi_binary": ("Bernoulli",),
    "continuous": ("Normal", "NormalTanh", "Gumbel", "LogNormal"),
    "multi_continuous": ("Normal", "MultivariateNormal", "NormalTanh"),
}


def make_family(spaces: Spaces, pdtype: str | None) -> Family:
    if pdtype in (None, "default"):
        return Family(_DEFAULT_PDTYPE[spaces.action_type], spaces)
    allowed = _PDTYPES[spaces.action_type]
    if pdtype not in allowed:
        options = " or ".join(("default", *allowed))
        fix = f"{pdtype} cannot describe {spaces.action_type} actions. Use {options}."
        raise SpecError([Problem("agent.algorithm.action_pdtype", fix)])
    return Family(pdtype, spaces)


class Noise:
    """Blocks of seeded noise, so that acting costs one slice per step and no generator call."""

    BLOCK_STEPS = 256
    BLOCK_NUMBERS = 2**20  # with thousands of envs a block is cut shorter

    def __init__(
        self,
        kind: NoiseKind,
        shape: tuple[int, ...],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._kind = kind
        self._device = device
        steps = min(self.BLOCK_STEPS, self.BLOCK_NUMBERS // math.prod(shape))
        self._shape = (max(1, steps), *shape)
        self._generator = torch.Generator().manual_seed(seed)
        self._start = self._generator.get_state()
        self._next = 0
        self._rows = self._draw()

    def __call__(self) -> Tensor:
        if self._next == len(self._rows):
            self._start = self._generator.get_state()
            self._rows = self._draw()
            self._next = 0
        self._next += 1
        return self._rows[self._next - 1]

    def state_dict(self) -> dict[str, Tensor]:
        """The generator as it was before the current block, and how much of the block is spent."""
        return {"generator": self._start.clone(), "next": torch.tensor(self._next)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._generator.set_state(state["generator"])
        self._start = state["generator"].clone()
        self._rows = self._draw()
        self._next = int(state["next"])

    def _draw(self) -> Sequence[Tensor]:
        # Drawn on the CPU whatever the device, so that one seed means one stream everywhere.
        draw = torch.randn if self._kind == "normal" else torch.rand
        noise = draw(self._shape, generator=self._generator)
        if self._kind == "gumbel":
            noise = -(-noise.clamp_min(torch.finfo(torch.float32).tiny).log()).log()
        return noise.to(self._device).unbind(0)
