"""Log of running episodes: where each began and its actions since, so that a resume replays it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class EpisodeLog:
    """The start of each running episode and its actions since, from which it is replayed.

    Actions are kept per step for the whole batch, which costs one append per step, and dropped
    once every episode that they belong to has ended.
    """

    LIMIT = 100_000  # steps, so that an episode without end does not fill the memory

    def __init__(self, num_envs: int) -> None:
        self.complete = True
        self._origins: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._began_at = [0] * num_envs
        self._restored: list[list[Any]] = [[] for _ in range(num_envs)]
        self._actions: list[Any] = []  # per step: one entry per env

    def append(self, actions: Sequence[Any]) -> None:
        if not self.complete:
            return
        self._actions.append(actions)
        if len(self._actions) > self.LIMIT:
            self._forget_finished()
            if len(self._actions) > self.LIMIT:
                self.complete = False
                self._actions.clear()

    def begin(self, slot: int, origin: Mapping[str, Any]) -> None:
        self._origins[slot] = dict(origin)
        self._restored[slot] = []
        self._began_at[slot] = len(self._actions)
        if self._began_at[slot] > 1000:
            self._forget_finished()

    def restore(self, slot: int, origin: Mapping[str, Any], actions: Iterable[Any]) -> None:
        """Begin with a loaded episode, whose earlier actions precede those logged from now on."""
        self.begin(slot, origin)
        self._restored[slot] = list(actions)

    def running(self, slot: int) -> dict[str, Any]:
        logged = (actions[slot] for actions in self._actions[self._began_at[slot] :])
        actions = np.array([*self._restored[slot], *logged])
        return {"origin": dict(self._origins[slot]), "actions": actions}

    def _forget_finished(self) -> None:
        oldest = min(self._began_at)
        del self._actions[:oldest]
        self._began_at = [step - oldest for step in self._began_at]


NOT_RESTORED = (
    "env.name: the running episodes could not be restored: the env is not "
    "deterministic given its np_random, or an episode was longer than "
    f"{EpisodeLog.LIMIT} steps. The run goes on with new episodes, not bit for bit."
)
