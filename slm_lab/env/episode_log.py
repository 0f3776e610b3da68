"""Log of running episodes: where each began and its actions since, so that a resume replays it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np


class EpisodeLog:
    """The start of each running episode and its actions since, from which it is replayed.

    `actions` has one entry per step, for the whole batch. Entries are dropped once every episode
    that they belong to has ended; how long an episode has been running, `running_length` says.
    """

    LIMIT = 100_000  # steps, so that an episode without end does not fill the memory

    def __init__(self, num_envs: int, running_length: Callable[[int], int]) -> None:
        self.actions: deque[Any] = deque(maxlen=self.LIMIT)
        self._running_length = running_length
        self._origins: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._restored: list[list[Any]] = [[] for _ in range(num_envs)]
        self._trim_at = 1000

    @property
    def complete(self) -> bool:
        """Whether the log still holds every action of the running episodes."""
        return all(self._logged(slot) <= len(self.actions) for slot in range(len(self._origins)))

    def begin(self, slot: int, origin: Mapping[str, Any], restored: Iterable[Any] = ()) -> None:
        """Begin an episode; the `restored` actions of a loaded one precede those logged."""
        self._origins[slot] = dict(origin)
        self._restored[slot] = list(restored)
        if len(self.actions) > self._trim_at:
            longest = max(map(self._running_length, range(len(self._origins))))
            while len(self.actions) > longest:
                self.actions.popleft()
            self._trim_at = 1000 + len(self.actions)

    def running(self, slot: int) -> dict[str, Any]:
        first = len(self.actions) - self._logged(slot)
        logged = (actions[slot] for actions in islice(self.actions, first, None))
        actions = np.array([*self._restored[slot], *logged])
        return {"origin": dict(self._origins[slot]), "actions": actions}

    def _logged(self, slot: int) -> int:
        """Steps of the running episode that were logged here."""
        return self._running_length(slot) - len(self._restored[slot])


NOT_RESTORED = (
    "env.name: the running episodes could not be restored: the env is not "
    "deterministic given its np_random, or an episode was longer than "
    f"{EpisodeLog.LIMIT} steps. The run goes on with new episodes, not bit for bit."
)
