"""Choosing actions from Q values: greedily, epsilon-greedily, or by Boltzmann's distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.acting import numpy_way
from slm_lab.agent.algorithm.distribution import Categorical, Noise
from slm_lab.agent.algorithm.schedule import scheduled_value
from slm_lab.agent.learning.compiler import Compiled
from slm_lab.agent.learning.learner import State, Trainable

if TYPE_CHECKING:
    from slm_lab.agent.algorithm.setup import Setup
    from slm_lab.spec import DQNSpec, SARSASpec


def epsilon_greedy(q_value: Tensor, epsilon: Tensor, noise: Tensor) -> Tensor:
    """With probability epsilon a uniform action, else the best; a coin of its own for every env.

    noise [B, 2] is uniform: the first column tosses the coin, the second picks the action.
    """
    count = q_value.shape[-1]
    anything = (noise[:, 1] * count).long().clamp(max=count - 1)
    return torch.where(noise[:, 0] < epsilon, anything, q_value.argmax(-1))


def boltzmann(q_value: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
    """A draw from softmax(Q / temperature); noise [B, A] is Gumbel's."""
    return Categorical(q_value / temperature.clamp_min(1e-8)).sample(noise)


def _epsilon_greedy(q_value: np.ndarray, epsilon: float, noise: np.ndarray) -> np.ndarray:
    """`epsilon_greedy` in NumPy; the same choice from the same noise."""
    best: np.ndarray = q_value.argmax(-1)
    explores = noise[:, 0] < epsilon
    if explores.any():  # seldom, once epsilon is small
        count = q_value.shape[-1]
        anything = np.minimum((noise[:, 1] * count).astype(np.int64), count - 1)
        best[explores] = anything[explores]
    return best


def chosen_policy(spec: DQNSpec | SARSASpec) -> str:
    """How a spec explores: as it says, else by the distribution that it names.

    Both ways follow `explore_var_spec`, so what a curve reports is what acted.
    """
    if spec.action_policy != "default":
        return spec.action_policy
    draws = spec.action_pdtype in ("Categorical", "GumbelSoftmax")
    return "boltzmann" if draws else "epsilon_greedy"


class QActor:
    """Acts on the Q values of a net; how much it explores is a schedule over frames."""

    def __init__(
        self, spec: DQNSpec | SARSASpec, net: Trainable, state: State, setup: Setup
    ) -> None:
        self._schedule = spec.explore_var_spec
        self._net = net
        self._policy = chosen_policy(spec)
        actions = setup.spaces.action_sizes[0]
        draws_classes = self._policy == "boltzmann"
        self._noise = Noise(
            "gumbel" if draws_classes else "uniform",
            (setup.num_envs, actions if draws_classes else 2),
            setup.seeds.act,
            setup.device,
        )
        self._explore_var = torch.zeros((), device=setup.device)
        self._numpy = numpy_way(net.net, setup)
        own = net.own_entries(state)
        self._keys = list(own)
        self._tensors = tuple(own.values())
        mode = setup.compile_act if self._numpy is None else None
        self._native = Compiled(self._pure, mode=mode, fixed=2 + len(own)) if mode else None

    def __call__(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        if not explore:
            best: Tensor = self._net.net(obs)[0].argmax(-1)
            return best
        noise = self._noise()
        if self._numpy is not None:
            q_values = self._numpy(obs.numpy())[0]
            if self._policy == "epsilon_greedy":  # a handful of rows: NumPy's calls are cheaper
                epsilon = self.explore_var(frame)
                return torch.from_numpy(_epsilon_greedy(q_values, epsilon, noise.numpy()))
            return self._choose(torch.from_numpy(q_values), self._explore_tensor(frame), noise)
        if self._native is not None:
            return self._native(self._explore_tensor(frame), noise, *self._tensors, obs)[0]
        return self._choose(self._net.net(obs)[0], self._explore_tensor(frame), noise)

    def explore_var(self, frame: int) -> float:
        """Epsilon or temperature."""
        return scheduled_value(self._schedule, frame)

    def state_dict(self) -> dict[str, Tensor]:
        return self._noise.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._noise.load_state_dict(state)

    def _explore_tensor(self, frame: int) -> Tensor:
        return self._explore_var.fill_(self.explore_var(frame))

    def _pure(self, explore_var: Tensor, noise: Tensor, *inputs: Tensor) -> tuple[Tensor]:
        state = dict(zip(self._keys, inputs[:-1], strict=True))
        return (self._choose(self._net(state, inputs[-1])[0], explore_var, noise),)

    def _choose(self, q_value: Tensor, explore_var: Tensor, noise: Tensor) -> Tensor:
        match self._policy:
            case "epsilon_greedy":
                return epsilon_greedy(q_value, explore_var, noise)
            case "boltzmann":
                return boltzmann(q_value, explore_var, noise)
        return epsilon_greedy(q_value, torch.ones_like(explore_var), noise)  # random
