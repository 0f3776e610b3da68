"""What algorithms share: setup, losses by name, learners of their nets, saving of their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from loguru import logger
from torch import Tensor, nn

from slm_lab.agent.learning.compiler import CompileMode
from slm_lab.agent.learning.learner import Learner, NetState, State, acting_weights, gradient_update
from slm_lab.agent.learning.precision import FLOAT32, Precision
from slm_lab.spec import LossSpec
from slm_lab.spec.record import imported_object
from slm_lab.spec.trust import is_own
from slm_lab.types import Spaces

Loss = Callable[[Tensor, Tensor], Tensor]
"""(prediction, target) -> scalar, or one number per row."""

_LOSSES = {name.lower(): getattr(nn, name) for name in dir(nn) if name.endswith("Loss")}


@dataclass(frozen=True, slots=True)
class AgentSeeds:
    """One seed per kind of draw, so that e.g. another minibatch order leaves exploration alone."""

    net: int
    act: int
    learn: int
    memory: int
    noise: int  # of weights while acting

    @classmethod
    def spawn(cls, seed: int) -> AgentSeeds:
        return cls(*(int(c.generate_state(1)[0]) for c in np.random.SeedSequence(seed).spawn(5)))


@dataclass(frozen=True, slots=True)
class Setup:
    """What an algorithm is built with beside its spec: spaces, seeds, device, how to compile."""

    spaces: Spaces
    num_envs: int
    seeds: AgentSeeds
    device: torch.device
    compile: CompileMode | None  # of the learning step; None runs it eagerly
    compile_act: CompileMode | None
    eager_steps: int = 0  # gradient steps before the compiled ones
    threads: int = 1  # of this session
    distributed: bool = False  # whether other workers move the same nets
    precision: Precision = FLOAT32


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any) -> None: ...


class SavedInParts:
    """Saves an object as the states of its `_parts`, by their names."""

    _parts: Mapping[str, Stateful]

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Seed torch's global stream, from which layers draw initial weights; restore it after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_loss(spec: LossSpec, **options: str) -> Loss:
    """Build a value loss by its `torch.nn` name; `reduction="none"` gives one number per row.

    A loss of the user's own gives rows: a class is made with its keys, a function is called with
    them beside (prediction, target).
    """
    if is_own(spec.name):
        thing = imported_object(spec.name)
        is_class = isinstance(thing, type)
        made: Loss = thing(**spec.kwargs) if is_class else partial(thing, **spec.kwargs)
        if options.get("reduction") == "none":
            return made
        return lambda prediction, target: made(prediction, target).mean()
    loss: Loss = _LOSSES[spec.name.lower()](**{**spec.kwargs, **options})
    return loss


def on_policy_learner(
    net_states: Sequence[NetState],
    state: State,
    loss: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    setup: Setup,
) -> Learner:
    """Learner of a loss whose gradient holds for the policy that acted; adds to the state."""
    if setup.distributed:
        state |= acting_weights(net_states, state)
    update = gradient_update(net_states, loss, at_acting_weights=setup.distributed)
    return Learner(state, update, compile=setup.compile, eager_steps=setup.eager_steps)


def resolve_device(gpu: bool | None, index: int = 0) -> torch.device:
    """Resolve `gpu` of a net spec: null or auto takes CUDA when there is one, false the CPU.

    `index` spreads sessions over the cards of a machine.
    """
    if gpu is False:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", index % torch.cuda.device_count())
    if gpu:
        logger.warning("agent.net.gpu: true, but torch finds no CUDA device. Training on the CPU.")
    return torch.device("cpu")
