"""Learners of separate nets, one thread each.

A minibatch of a few dozen rows is too small for two threads to share its products: on two cores a
step takes nine tenths of its time on one. But an actor and a critic that share nothing can each go
through all minibatches on a core of their own, without waiting for one another in between.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.learning.learner import Learner, State


class ParallelLearners:
    """Learners over one state, each of which moves its own entries.

    The result is that of one after the other: no learner reads what another moves.
    """

    def __init__(self, learners: Sequence[Learner], threads: int) -> None:
        self._learners = learners
        self._threads = max(1, threads // len(learners))
        # Native steps release the interpreter; of eager ones only one would run at a time anyway.
        self._pool = concurrent.futures.ThreadPoolExecutor(
            len(learners), "learner", torch.set_num_threads, (self._threads,)
        )
        self._have_compiled = False

    @property
    def state(self) -> State:
        return self._learners[0].state

    @property
    def shared_state(self) -> State:
        return self._learners[0].shared_state

    @property
    def is_compiled(self) -> bool:
        return all(learner.is_compiled for learner in self._learners)

    def steps(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        """Step every learner with every batch."""
        with _threads(self._threads):
            if self.is_compiled and self._have_compiled:
                tasks = [self._pool.submit(learner.steps, batches) for learner in self._learners]
                concurrent.futures.wait(tasks)
                for task in tasks:
                    task.result()
                return
            for learner in self._learners:  # compilers are not made for several threads
                learner.steps(batches)
            self._have_compiled = True

    def set_coefficients(self, **values: float) -> None:
        self._learners[0].set_coefficients(**values)

    def mean_metrics(self) -> dict[str, float]:
        """Mean metrics as of one learner: losses add up, gradient norms are averaged."""
        parts = [learner.mean_metrics() for learner in self._learners]
        if not all(parts):
            return {}
        metrics = {name: value for part in parts for name, value in part.items()}
        metrics["loss"] = sum(part["loss"] for part in parts)
        metrics["grad_norm"] = sum(part["grad_norm"] for part in parts) / len(parts)
        return metrics

    def state_dict(self) -> dict[str, Tensor]:
        return self._learners[0].state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._learners[0].load_state_dict(state)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Run products and compiled loops on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
