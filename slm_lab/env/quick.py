"""Gymnasium spaces that answer faster."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


class QuickDiscrete(spaces.Discrete):
    """A Discrete space whose `contains` tests a plain int without NumPy.

    Many envs ask at every step whether the action is in their space, a quarter of CartPole's time.
    """

    def contains(self, x: Any) -> bool:
        if type(x) is int:
            return bool(self.start <= x < self.start + self.n)
        return super().contains(x)


def quicken(space: spaces.Space[Any]) -> None:
    """Change the space in place, because an env and its wrappers may all refer to it."""
    if type(space) is spaces.Discrete:
        space.__class__ = QuickDiscrete
