"""Workers on one set of nets (Mnih et al. 2016; Hogwild, Recht et al. 2011).

A learner's whole training state (parameters, optimiser slots, targets) also lives in a file that
every worker maps into its memory. An update is a turn at it:

    synced   one worker at a time: take the state, learn, give it back. No update is lost.
    shared   no waiting: take the state, learn, add the change to the parameters, whatever others
             did meanwhile. Updates may interleave, and small ones on top of each other do no harm.

Between its turns a worker acts with the state it last had. Statistics of observations and rewards
are each worker's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.agent import Algorithm
from slm_lab.agent.learner import Learner, State
from slm_lab.agent.parallel_learners import ParallelLearners
from slm_lab.experiment.workers import SharedNets
from slm_lab.types import Metrics

LONGEST_TURN_SECONDS = 600.0
_ALIGNMENT = 64  # bytes; any dtype may then view its part


class Exchange:
    """A training state here, and its counterpart in the file."""

    def __init__(self, shared: SharedNets, state: State) -> None:
        self._lock, self._synced = shared.lock, shared.synced
        self._here = state
        with self._lock:
            is_first = os.path.getsize(shared.path) == 0
            if is_first:
                os.truncate(shared.path, _size(state))
            self._there = _mapped(shared.path, state)
            if is_first:
                self._give()
            else:
                self._take()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The state to learn from on entry; what was learned is everybody's on leaving."""
        if self._synced:
            if not self._lock.acquire(timeout=LONGEST_TURN_SECONDS):
                raise RuntimeError("no turn at the shared nets: another worker died in its own")
            try:
                self._take()
                yield
                self._give()
            finally:
                self._lock.release()
        else:
            self._take()
            before = {key: self._here[key].clone() for key in self._here if _is_weights(key)}
            yield
            self._add_change(before)

    def _take(self) -> None:
        for key, value in self._here.items():
            value.copy_(self._there[key])

    def _give(self) -> None:
        for key, value in self._here.items():
            self._there[key].copy_(value)

    def _add_change(self, before: State) -> None:
        for key, value in self._here.items():
            if key in before:
                self._there[key].add_((value - before[key]).cpu())
            else:
                # Averages and counters: of two at once the later counts. A sum of their changes
                # could make a running square negative.
                self._there[key].copy_(value)
        self._take()


def _is_weights(key: str) -> bool:
    """Flat vectors are named after their net; slots, buffers and rates are `net.something`."""
    return "." not in key


def _mapped(path: str, state: State) -> State:
    """The tensors of a state as views of the file."""
    data = torch.from_file(path, shared=True, size=_size(state), dtype=torch.uint8)
    tensors, start = {}, 0
    for key, value in state.items():
        part = data[start : start + value.nbytes]
        tensors[key] = part.view(value.dtype).view(value.shape)
        start += _padded(value.nbytes)
    return tensors


def _size(state: State) -> int:
    return sum(_padded(value.nbytes) for value in state.values())


def _padded(size: int) -> int:
    return -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT


class SharedAlgorithm:
    """An algorithm whose updates are turns at the nets of all workers."""

    def __init__(self, algorithm: Algorithm, shared: SharedNets) -> None:
        self._algorithm = algorithm
        self._exchange = Exchange(shared, algorithm.learner.shared_state)
        self._workers = shared.workers

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        return self._algorithm.modules

    @property
    def learner(self) -> Learner | ParallelLearners:
        return self._algorithm.learner

    @property
    def act(self) -> Callable[..., Tensor]:
        return self._act

    def to_env(self, action: Tensor) -> Tensor:
        return self._algorithm.to_env(action)

    def update(self, batch: Any, frame: int) -> Metrics:
        # What the acting policy thought of its steps is asked before its nets are replaced.
        evaluate = getattr(self._algorithm, "evaluate", None)
        if evaluate is not None:
            batch = evaluate(batch)
        with self._exchange.turn():
            return self._algorithm.update(batch, frame * self._workers)

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        target_nets = getattr(self._algorithm, "target_nets", None)
        return target_nets() if target_nets else {}

    def state_dict(self) -> dict[str, Any]:
        return self._algorithm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._algorithm.load_state_dict(state)

    def _act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        # Schedules count the frames of all workers, who are about as far as this one.
        return self._algorithm.act(obs, frame=frame * self._workers, explore=explore)
