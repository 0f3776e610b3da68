"""Recurrent state of a batch of running episodes.

A feed-forward net acts on an observation; a recurrent one on the observation and its past. Here the
two become one row, [obs | restart | memory] as `net/recurrent.py` reads it, and that row is what is
acted on, stored and learned from, so that memories and algorithms need no case for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.net.bidirectional import BidirectionalNet
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.types import Spaces, Transition


class Recurrence:
    """The recurrent nets of an algorithm, as one step from memory to memory."""

    def __init__(self, nets: list[RecurrentNet | BidirectionalNet]) -> None:
        self._nets = nets
        self.memory_size = sum(net.memory_size for net in nets)

    def __call__(self, rows: Tensor) -> Tensor:
        """rows [B, W] -> the memory [B, memory_size] after reading them."""
        return torch.cat([net.remember(rows) for net in self._nets], -1)

    def row_spaces(self, spaces: Spaces) -> Spaces:
        """The spaces of rows in place of observations."""
        width = math.prod(spaces.obs_shape) + 1 + self.memory_size
        return replace(spaces, obs_shape=(width,), obs_dtype="float32")


def recurrence_of(nets: Mapping[str, nn.Module]) -> Recurrence | None:
    """Recurrence of an algorithm's nets, in the order of their parts in a row's memory."""
    recurrent = [n for n in nets.values() if isinstance(n, RecurrentNet | BidirectionalNet)]
    return Recurrence(recurrent) if recurrent else None


class RecurrentState:
    """The rows of a batch of running episodes, owned by the caller that steps the envs.

    Acting reads it and changes nothing; `advance` moves it on after the envs have stepped.
    """

    def __init__(self, num_envs: int, obs_shape: tuple[int, ...], memory_size: int) -> None:
        self._obs_width = math.prod(obs_shape)
        self._rows = np.zeros((num_envs, self._obs_width + 1 + memory_size), np.float32)
        self._rows[:, self._obs_width] = 1.0  # an episode starts
        self._upcoming, self._successors = np.zeros_like(self._rows), np.zeros_like(self._rows)

    def rows(self, obs: np.ndarray) -> np.ndarray:
        """Observations [B, ...] with the memory before them, [B, W]; valid until the next call."""
        self._rows[:, : self._obs_width] = obs.reshape(len(obs), -1)
        return self._rows

    @property
    def latest(self) -> np.ndarray:
        """The rows returned last."""
        return self._rows

    def advance(self, memory: np.ndarray, transition: Transition) -> Transition:
        """Move on by a step: the memory [B, M] after the rows acted on -> the transition of rows.

        At an ending the successor still belongs to the old episode, the next obs to a new one. A
        lost life counts as an ending, also where whole games are scored: learning is cut there, so
        no policy was trained with a memory from before it.
        """
        at = self._obs_width
        ended = transition.terminated | transition.truncated
        successors, upcoming = self._successors, self._upcoming
        successors[:, :at] = transition.next_obs.reshape(len(ended), -1)
        # Successors follow each other just as the rows do that they come after.
        successors[:, at] = self._rows[:, at]
        successors[:, at + 1 :] = memory
        upcoming[:, :at] = transition.obs.reshape(len(ended), -1)
        upcoming[:, at] = ended
        np.multiply(memory, ~ended[:, None], out=upcoming[:, at + 1 :])
        self._rows, self._upcoming = upcoming, self._rows
        return replace(transition, obs=upcoming, next_obs=successors)

    def state_dict(self) -> dict[str, Tensor]:
        return {"rows": torch.from_numpy(self._rows.copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._rows[:] = state["rows"].numpy()
