"""Learners that go through the same minibatches side by side, on cores of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch
from torch import Tensor

from slm_lab.agent.learning.learner import Learner


class ParallelLearners(Learner):
    """Learners over one state, one thread each; each moves its own entries.

    A minibatch of a few dozen rows is too small for two threads to share its products: on two cores
    a step takes nine tenths of its time on one. But an actor and a critic that share nothing can
    each go through all minibatches on a core of their own, without waiting in between. The result
    is that of one after the other: no learner reads what another moves.
    """

    def __init__(self, learners: Sequence[Learner], threads: int) -> None:
        self.state = learners[0].state
        self._learners = learners
        self._threads = max(1, threads // len(learners))
        # Native steps release the interpreter; of eager ones only one would run at a time anyway.
        self._pool = ThreadPoolExecutor(
            len(learners), "learner", torch.set_num_threads, (self._threads,)
        )

    @property
    def is_compiled(self) -> bool:
        return all(learner.is_compiled for learner in self._learners)

    @property
    def is_native(self) -> bool:
        return all(learner.is_native for learner in self._learners)

    def steps(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        with _threads(self._threads):
            if self.is_native:
                tasks = [self._pool.submit(learner.steps, batches) for learner in self._learners]
                wait(tasks)
                for task in tasks:
                    task.result()
                return
            for learner in self._learners:  # compilers are not made for several threads
                learner.steps(batches)

    def mean_metrics(self) -> dict[str, float]:
        """Mean metrics as of one learner: losses add up, gradient norms are averaged."""
        parts = [learner.mean_metrics() for learner in self._learners]
        if not all(parts):
            return {}
        metrics = {name: value for part in parts for name, value in part.items()}
        metrics["loss"] = sum(part["loss"] for part in parts)
        metrics["grad_norm"] = sum(part["grad_norm"] for part in parts) / len(parts)
        return metrics


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
