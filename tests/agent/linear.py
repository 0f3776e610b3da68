"""Algorithms on linear nets, whose numbers can be done by hand: one place for all their tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.spec import Spec
from slm_lab.types import ReplayBatch, Spaces

MakeSpec = Callable[..., Spec]
MakeBatch = Callable[..., ReplayBatch]
AlgorithmT = TypeVar("AlgorithmT")

# Two states as one-hot vectors make a linear net a table; one state and one action a line.
TWO_STATES = Spaces((2,), "float32", "discrete", (2,))
S0, S1 = [1.0, 0.0], [0.0, 1.0]
ONE = Spaces((1,), "float32", "multi_continuous", (1,))
TABLE: dict[str, Any] = {
    "agent.net.hid_layers": [],
    "agent.net.init_fn": "zeros_",
    "agent.net.optim_spec": {"name": "SGD", "lr": 0.1},
    "agent.algorithm.training_iter": 1,
    "agent.memory.batch_size": 1,
}
LINEAR = TABLE | {"agent.net.polyak_coef": 0.5}


def make_linear(kind: type[AlgorithmT], spec: Spec, spaces: Spaces, **state: Any) -> AlgorithmT:
    """The algorithm of a spec; every learning rate is 0.1, `state` are other coefficients."""
    made = make_agent(spec, spaces, seed=0).algorithm
    assert isinstance(made, kind)
    rates = {key: 0.1 for key in made.learner.state if key.endswith(".lr")}
    made.learner.set_coefficients(**rates, **state)
    return made


def flat_table(table: list[Any]) -> Tensor:
    """Parameters of a linear net that gives these numbers, [state][action] or one axis more."""
    weight = torch.tensor(table).flatten(1).T
    return torch.cat([weight.flatten(), torch.zeros(len(weight))])
