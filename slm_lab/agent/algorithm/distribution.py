"""Action distributions from head outputs.

Hand-written instead of `torch.distributions`, which spends most of a small step on argument checks
and Python properties; tested against it. Every draw is a deterministic function of noise that the
caller provides, so that one seeded generator decides everything and a compiled graph holds no
random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slm_lab.spec import Problem, SpecError
from slm_lab.spec.record import imported_object
from slm_lab.spec.trust import is_own
from slm_lab.types import Spaces

NoiseKind = Literal["gumbel", "normal", "uniform", "factors"]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)
_EULER = 0.5772156649015329
# (weight, variance) of normals whose mixture is nearly a logistic distribution of scale 1/2, which
# is a mixture of infinitely many (Andrews & Mallows 1974). Fitted so that E|u + x| of the mixture
# is log(2 cosh u), as it is for the logistic: off by less than 4e-5 at any u.
_LOGISTIC = ((0.323299, 0.332181), (0.566063, 0.847508), (0.110638, 2.126187))


class Distribution(Protocol):
    """Batched over the first axis; log-probs and entropies are summed over action dimensions."""

    def sample(self, noise: Tensor) -> Tensor:
        """Actions that this noise draws."""

    def mode(self) -> Tensor:
        """The most probable actions."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability or log-density of actions, [N]."""

    def entropy(self) -> Tensor:
        """Entropy in nats, [N]."""


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
        parts = zip(self._parts(), torch.split(noise, list(self.sizes), -1), strict=True)
        return torch.stack([part.sample(n) for part, n in parts], -1)

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
    """Independent Bernoulli variables, one per binary sub-action."""

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
    log_std: Tensor  # [N, A], clamped by ActionDistribution

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
class TanhNormal(Normal):
    """Gaussian squashed by tanh; the env acts on tanh(u).

    Samples u are kept before squashing: no atanh, no lost precision.
    """

    def log_prob(self, action: Tensor) -> Tensor:
        """log pi(tanh u) = log N(u) - sum log(1 - tanh(u)^2)."""
        return super().log_prob(action) - _log_det_tanh(action).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy of the Gaussian plus the expected log-det, off by less than 1e-4 per dimension.

        log(1 - tanh(u)^2) = 2 log 2 - 2 log(2 cosh u), and log(2 cosh u) = E|u + x| for a logistic
        x. With x a mixture of normals, u + x is one too, and E|u + x| has a closed form: one bound
        for every mean and spread, and no sampling noise.
        """
        variance = (2 * self.log_std).exp()
        expected = torch.zeros_like(variance)
        for weight, extra in _LOGISTIC:
            expected = expected + weight * _mean_magnitude(self.mean, variance + extra)
        return super().entropy() + 2 * (_LOG_2 - expected).sum(-1)


@dataclass(frozen=True)
class LogNormal(Normal):
    """exp of a diagonal Gaussian: positive actions, spread over orders of magnitude.

    `mean` and `log_std` are those of the logarithm.
    """

    def sample(self, noise: Tensor) -> Tensor:
        return super().sample(noise).exp()

    def mode(self) -> Tensor:
        return (self.mean - (2 * self.log_std).exp()).exp()

    def log_prob(self, action: Tensor) -> Tensor:
        log_action = action.clamp_min(torch.finfo(action.dtype).tiny).log()
        return super().log_prob(log_action) - log_action.sum(-1)

    def entropy(self) -> Tensor:
        return super().entropy() + self.mean.sum(-1)


@dataclass(frozen=True)
class Gumbel:
    """Independent Gumbel distributions: skewed towards large actions."""

    mode_: Tensor  # [N, A]
    log_scale: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        return self.mode_ + self.log_scale.exp() * noise

    def mode(self) -> Tensor:
        return self.mode_

    def log_prob(self, action: Tensor) -> Tensor:
        scaled = (action - self.mode_) * (-self.log_scale).exp()
        return (-scaled - (-scaled).exp() - self.log_scale).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_scale + 1 + _EULER).sum(-1)


@dataclass(frozen=True)
class Beta:
    """Independent Beta distributions stretched to [-1, 1] (Chou et al. 2017): no action is clipped.

    Both concentrations are above 1, so that there is one peak, inside the interval.
    """

    # Proposals per draw; each is accepted with a chance of 0.95 or more, so all fail in 1 of 10^8.
    TRIES = 6

    alpha: Tensor  # [N, A]
    beta: Tensor  # [N, A]

    def sample(self, noise: Tensor) -> Tensor:
        """Beta = X / (X + Y) of two Gamma samples; noise [N, A * 4 * TRIES] is normal."""
        per_gamma = noise.view(*self.alpha.shape, 4, self.TRIES).unbind(-2)
        x, y = _gamma(self.alpha, *per_gamma[:2]), _gamma(self.beta, *per_gamma[2:])
        return self._inside(2 * x / (x + y) - 1)

    def mode(self) -> Tensor:
        """The peak; or the mean where rounding leaves a flat density (both concentrations 1)."""
        above_one = self.alpha - 1
        total = above_one + (self.beta - 1)  # exact where alpha + beta - 2 would round to zero
        return torch.where(total > 0, 2 * above_one / total, 1.0) - 1

    def log_prob(self, action: Tensor) -> Tensor:
        share = (self._inside(action) + 1) / 2
        powers = (self.alpha - 1) * share.log() + (self.beta - 1) * (-share).log1p()
        return (powers - self._log_norm() - _LOG_2).sum(-1)

    def entropy(self) -> Tensor:
        total = self.alpha + self.beta
        slopes = (total - 2) * total.digamma()
        slopes = slopes - (self.alpha - 1) * self.alpha.digamma()
        slopes = slopes - (self.beta - 1) * self.beta.digamma()
        return (self._log_norm() + slopes + _LOG_2).sum(-1)

    def _log_norm(self) -> Tensor:
        return self.alpha.lgamma() + self.beta.lgamma() - (self.alpha + self.beta).lgamma()

    @staticmethod
    def _inside(action: Tensor) -> Tensor:
        """Clamp actions off the ends of the interval, where the density is zero."""
        return action.clamp(-1 + 1e-6, 1 - 1e-6)


def _gamma(shape: Tensor, proposal: Tensor, coin: Tensor) -> Tensor:
    """Gamma samples for shapes of at least 1 (Marsaglia & Tsang 2000): the first accepted proposal.

    proposal and coin [..., tries] are normal.
    """
    d = (shape - 1 / 3).unsqueeze(-1)
    v = (1 + proposal / (3 * d.sqrt())).pow(3)
    positive = v.clamp_min(1e-12)
    limit = 0.5 * proposal.square() + d - d * positive + d * positive.log()
    log_uniform = torch.special.log_ndtr(coin)
    accepted = (v > 0) & (log_uniform < limit)
    first = accepted.to(torch.int8).argmax(-1, keepdim=True)
    return (d * positive).gather(-1, first).squeeze(-1)


def _log_det_tanh(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), stable for large |u|."""
    return 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))


def _mean_magnitude(mean: Tensor, variance: Tensor) -> Tensor:
    """E|x| for x ~ N(mean, variance)."""
    scaled = mean * (2 * variance).rsqrt()
    return (2 / math.pi * variance).sqrt() * (-scaled.square()).exp() + mean * scaled.erf()


@dataclass(frozen=True)
class ActionDistribution:
    """Factory of the distributions of an action space; also the heads and noise that they need."""

    pdtype: str
    spaces: Spaces
    own: Any = None  # class of the user's own, made of (logits) or of (location, log scale)

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
        """Distribution of the noise that `sample` takes."""
        own: NoiseKind | None = getattr(self.own, "noise_kind", None)
        if own is not None:
            return own
        if self.spaces.is_continuous:
            return "gumbel" if self.pdtype == "Gumbel" else "normal"
        return "uniform" if self.spaces.action_type == "multi_binary" else "gumbel"

    @property
    def noise_dim(self) -> int:
        """Numbers of noise for each sample."""
        size = sum(self.spaces.action_sizes)
        return size * 4 * Beta.TRIES if self.pdtype == "Beta" else size

    def __call__(self, heads: Sequence[Tensor]) -> Distribution:
        if self.own is not None and not self.spaces.is_continuous:
            of_logits: Distribution = self.own(torch.cat(tuple(heads), -1))
            return of_logits
        match self.spaces.action_type:
            case "discrete":
                return Categorical(heads[0])
            case "multi_discrete":
                return MultiCategorical(torch.cat(tuple(heads), -1), self.spaces.action_sizes)
            case "multi_binary":
                return Bernoulli(heads[0])
            case _:
                first, second = heads if len(heads) == 2 else heads[0].chunk(2, -1)
                if self.pdtype == "Beta":
                    return Beta(1 + F.softplus(first), 1 + F.softplus(second))
                return (self.own or _BY_LOCATION.get(self.pdtype, Normal))(
                    first, second.clamp(LOG_STD_MIN, LOG_STD_MAX)
                )

    def to_env(self, action: Tensor) -> Tensor:
        """Bound actions for the env, by tanh or clipping. Samples are stored unchanged."""
        if hasattr(self.own, "to_env"):
            executed: Tensor = self.own.to_env(action)
            return executed
        if self.pdtype == "NormalTanh":
            return action.tanh()
        if self.spaces.is_continuous and self.spaces.action_bounded:
            return action.clamp(-1.0, 1.0)
        return action


_BY_LOCATION: dict[str, Callable[[Tensor, Tensor], Distribution]] = {
    "NormalTanh": TanhNormal,
    "LogNormal": LogNormal,
    "Gumbel": Gumbel,
}
"""Distributions by location and log-scale; any other name is a Normal."""

_BOUNDED_OR_SKEWED = ("NormalTanh", "Beta", "Gumbel", "LogNormal")
_PDTYPES = {  # the first is the default
    # A draw of GumbelSoftmax is a draw of Categorical, and so is its probability.
    "discrete": ("Categorical", "GumbelSoftmax"),
    "multi_discrete": ("MultiCategorical",),
    "multi_binary": ("Bernoulli",),
    "continuous": ("Normal", *_BOUNDED_OR_SKEWED),
    "multi_continuous": ("Normal", "MultivariateNormal", *_BOUNDED_OR_SKEWED),
}


def make_action_distribution(spaces: Spaces, pdtype: str | None) -> ActionDistribution:
    """Choose the distribution that `action_pdtype` names, by default the usual one of the space."""
    allowed = _PDTYPES[spaces.action_type]
    if pdtype is None or pdtype == "default":
        pdtype = allowed[0]
    if is_own(pdtype):
        return ActionDistribution(pdtype, spaces, own=imported_object(pdtype))
    if pdtype not in allowed:
        options = " or ".join(("default", *allowed))
        fault = f"cannot describe {spaces.action_type} actions"
        if pdtype == "Argmax" and spaces.action_type == "discrete":
            fault = "is for Q values: a policy over discrete actions must be able to choose"
        fix = f"{pdtype} {fault}. Use {options}."
        raise SpecError([Problem("agent.algorithm.action_pdtype", fix)])
    return ActionDistribution(pdtype, spaces)
