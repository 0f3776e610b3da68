"""Workers on one set of nets (Mnih et al. 2016; Hogwild, Recht et al. 2011).

A learner's whole training state (parameters, optimiser slots, targets) also lives in a file that
every worker maps into its memory. An update is a turn at it:

    synced   one worker at a time: take the state, learn, give it back. No update is lost.
    shared   no waiting: take the state, learn, add the change to the parameters, whatever others
             did meanwhile. Updates may interleave, and small ones on top of each other do no harm.

A worker may die at any instant. The kernel takes its lock back, and a state is given by writing it
beside the one that is in use, and then pointing to it: the others go on from the last whole state.

Between its turns a worker acts with the state it last had. Statistics of observations and rewards
are each worker's own.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.agent import Algorithm
from slm_lab.agent.learning.learner import Learner, State
from slm_lab.runs.checkpoint_manifest import CheckpointError
from slm_lab.training.checkpoint import read_checkpoint
from slm_lab.training.state_tree import check_fits
from slm_lab.training.workers import SharedNets
from slm_lab.types import Metrics

_ALIGNMENT = 64  # bytes; any dtype may then view its part
_HEADER_BYTES = _ALIGNMENT


class Exchange:
    """Exchanges a training state with its counterpart in the shared file.

    `trained` names the entries that an optimiser moves: changes of these add up. `targets` names
    slow copies of them, and `targets_kept` says how much of the targets before a turn is still in
    them after it: nothing after a copy, (1 - share) for each step of polyak.
    """

    def __init__(
        self,
        shared: SharedNets,
        state: State,
        trained: Collection[str],
        targets: Collection[str] = (),
        targets_kept: Callable[[], float] = lambda: 0.0,
        *,
        join: bool = True,
    ) -> None:
        self._file, self._synced = shared.file, shared.synced
        self._here, self._trained, self._targets = state, trained, targets
        self._targets_kept = targets_kept
        with self._file.locked():
            size = _HEADER_BYTES + 2 * _size(state)
            if os.fstat(self._file.descriptor).st_size < size:
                os.ftruncate(self._file.descriptor, size)
            memory = mmap.mmap(self._file.descriptor, size)
        # 0 before the first state is there, else which of the two copies is the whole one; and the
        # turns taken so far, by all workers.
        header = torch.frombuffer(memory, dtype=torch.int64, count=2)
        self._current, self._turns = header[0], header[1]
        self._copies = [_views(memory, _HEADER_BYTES + i * _size(state), state) for i in range(2)]
        if join:
            self.join()

    @property
    def turns(self) -> int:
        return int(self._turns.item())

    def join(self, turns: int = 0) -> None:
        """Take the shared nets; the first worker gives its own, after `turns` updates, instead."""
        with self._file.locked():
            if self._current.item() == 0:
                self._turns.fill_(turns)
                self._give()
            else:
                self._take()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Take the shared state on entry, and share what was learned on exit."""
        if self._synced:
            with self._file.locked():
                self._take()
                yield
                self._give()
                self._turns.add_(1)
        else:
            self._take()
            before = {key: value.clone() for key, value in self._here.items()}
            yield
            self._give_changes(before)
            self._turns.add_(1)
            self._take()

    @property
    def _there(self) -> State:
        return self._copies[int(self._current.item()) - 1]

    def _take(self) -> None:
        there = self._there
        for key, value in self._here.items():
            value.copy_(there[key])

    def _give(self) -> None:
        beside = 0 if self._current.item() != 1 else 1
        for key, value in self._here.items():
            self._copies[beside][key].copy_(value)
        self._current.fill_(beside + 1)  # one store: a worker that dies before it has given nothing

    def _give_changes(self, before: State) -> None:
        """Give the entries that this turn changed; others may have changed the rest."""
        there = self._there
        for key, value in self._here.items():
            now, was = value.cpu(), before[key].cpu()
            if torch.equal(now, was):
                continue
            if key in self._trained:
                there[key].add_(now - was)
            elif key in self._targets:
                # The same move from where the target is now: added up, two copies of a net would
                # carry the target beyond it.
                there[key].copy_(now + self._targets_kept() * (there[key] - was))
            else:
                # Averages and counters: of two at once the later counts. A sum of their changes
                # could make a running square negative.
                there[key].copy_(now)


def _views(memory: mmap.mmap, start: int, state: State) -> State:
    """Views of the memory from `start` on, one per tensor of a state."""
    data = torch.frombuffer(memory, dtype=torch.uint8)
    tensors = {}
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

    def __init__(self, algorithm: Algorithm, shared: SharedNets, *, join: bool = True) -> None:
        self._algorithm = algorithm
        self._exchange = Exchange(
            shared,
            algorithm.learner.shared_state,
            trained=algorithm.modules.keys(),
            targets=self.target_nets().keys(),
            targets_kept=getattr(algorithm, "targets_kept", lambda: 0.0),
            join=join,
        )
        self._turns = 0  # that the nets restored here have seen
        self._workers = shared.workers

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        return self._algorithm.modules

    @property
    def learner(self) -> Learner:
        return self._algorithm.learner

    @property
    def act(self) -> Callable[..., Tensor]:
        return self._act

    @property
    def to_env(self) -> Callable[[Tensor], Tensor]:
        return self._algorithm.to_env

    @property
    def evaluated(self) -> Sequence[Tensor]:
        return getattr(self._algorithm, "evaluated", ())

    def update(self, batch: Any, frame: int) -> Metrics:
        # The acting policy evaluates its steps before its nets are replaced.
        evaluate = getattr(self._algorithm, "evaluate", None)
        if evaluate is not None:
            batch = evaluate(batch)
        with self._exchange.turn():
            return self._algorithm.update(batch, frame * self._workers)

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        target_nets = getattr(self._algorithm, "target_nets", None)
        return target_nets() if target_nets else {}

    def state_dict(self) -> dict[str, Any]:
        return {**self._algorithm.state_dict(), "turns": self._exchange.turns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._algorithm.load_state_dict(state)
        self._turns = int(state["turns"])

    def join(self, checkpoints: Iterable[Path], max_bytes: int) -> None:
        """Rejoin the others after an interruption, from the nets that have learned most.

        `checkpoints` are those of all workers: one that has finished takes no part any more, and
        one that died may have the older nets.
        """
        for folder in checkpoints:
            try:
                state = read_checkpoint(folder, max_bytes=max_bytes)[1]["agent"]["algorithm"]
                check_fits(state["learner"], self.learner.state)
            except (CheckpointError, KeyError, TypeError, ValueError):
                continue  # none yet, damaged, or replaced at this moment
            if int(state["turns"]) > self._turns:
                self._turns = int(state["turns"])
                self.learner.load_state_dict(state["learner"])
        self._exchange.join(self._turns)

    def _act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        # Schedules count the frames of all workers, who are about as far as this one.
        return self._algorithm.act(obs, frame=frame * self._workers, explore=explore)
