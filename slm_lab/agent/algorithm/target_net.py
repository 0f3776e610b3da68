"""Target nets: slow copies that a bootstrap reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from slm_lab.agent.learning.learner import State

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec


def polyak(target: Tensor, online: Tensor, share: float) -> Tensor:
    """(1 - share) * target + share * online; `polyak_coef` is the share of the new weights."""
    return target.lerp(online, share)


class TargetUpdate:
    """How targets follow: a step of polyak with each gradient step, or a copy now and then.

    A spec gives `polyak_coef` per env step. Where several env steps share a gradient step, or the
    other way round, the share is adjusted so that the target lags by the same number of env steps.
    """

    def __init__(self, spec: NetSpec, *, env_steps_per_gradient_step: float) -> None:
        self.is_polyak = spec.update_type == "polyak"
        self.share = 1 - (1 - (spec.polyak_coef or 0.0)) ** env_steps_per_gradient_step
        self._every = spec.update_frequency or 1.0
        self._copied_at = 0
        self._has_copied = False

    def copy_if_due(self, state: State, pairs: dict[str, str], frame: int) -> None:
        """Replace targets (keys) by online nets (values) once per `update_frequency` frames."""
        self._has_copied = not self.is_polyak and frame // self._every != self._copied_at
        if not self._has_copied:
            return
        self._copied_at = int(frame // self._every)
        for target, online in pairs.items():
            state[target].copy_(state[online])

    def kept(self, steps: int) -> float:
        """Share of the targets before an update of so many moving steps that is left in them."""
        return (1 - self.share) ** steps if self.is_polyak else float(not self._has_copied)

    def state_dict(self) -> dict[str, int]:
        return {"copied_at": self._copied_at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._copied_at = int(state["copied_at"])

    def moved(self, state: State, pairs: dict[str, str]) -> State:
        """The targets after one gradient step; unchanged where copies are made instead."""
        if not self.is_polyak:
            return {}
        return {t: polyak(state[t], state[online], self.share) for t, online in pairs.items()}
