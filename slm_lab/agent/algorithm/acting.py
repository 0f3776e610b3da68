"""Sampling actions from a policy net, one batched call per env step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.distribution import Distribution, Family, Noise
from slm_lab.agent.algorithm.privileged import seen_by_policy
from slm_lab.agent.algorithm.setup import Setup
from slm_lab.agent.learning.compiler import Compiled
from slm_lab.agent.learning.learner import State, Trainable
from slm_lab.agent.net.small_batch import Forward, numpy_forward

PolicyOfHeads = Callable[[Sequence[Tensor]], Distribution]
Judgement = Callable[[Sequence[Tensor]], tuple[Distribution, Tensor]]
"""Heads of a shared net -> (pi(.|s), V(s))."""


class Recall:
    """What acting found out on the way: log-probs of its actions, and values of the states.

    Through convolutions, a second pass over the rollout is a tenth of the training. The actions
    are kept beside, [T, B] integers like the rest, to know a rollout that was acted in elsewhere.
    """

    def __init__(self, judgement: Judgement, length: int, num_envs: int, device: torch.device):
        self.judgement = judgement
        shape = (length, num_envs)
        self._action = torch.zeros(shape, dtype=torch.int64, device=device)
        self._log_prob = torch.zeros(shape, device=device)
        self._value = torch.zeros(shape, device=device)
        self._steps = 0

    def add(self, action: Tensor, log_prob: Tensor, value: Tensor) -> None:
        if self._steps < len(self._action):
            self._action[self._steps] = action
            self._log_prob[self._steps] = log_prob
            self._value[self._steps] = value
        self._steps += 1

    def take(self, action: Tensor) -> tuple[Tensor, Tensor] | None:
        """(log-probs, values) of a rollout's actions [T, B]; None if they are not those acted."""
        is_whole = self._steps == len(self._action)
        self._steps = 0
        if not is_whole or not torch.equal(action, self._action):
            return None
        return self._log_prob, self._value

    def state_dict(self) -> dict[str, Tensor]:
        columns = {"action": self._action, "log_prob": self._log_prob, "value": self._value}
        copies = {name: column.clone() for name, column in columns.items()}
        return copies | {"steps": torch.tensor(self._steps)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._action.copy_(state["action"])
        self._log_prob.copy_(state["log_prob"])
        self._value.copy_(state["value"])
        self._steps = int(state["steps"])


class PolicyActor:
    """Draws from pi(.|obs) with its own stream of noise.

    Three ways to the same policy: a small MLP on few rows in NumPy; else the module, whose
    parameters view the training state; or, compiled, a pure function of that state.
    """

    def __init__(
        self,
        family: Family,
        net: Trainable,
        policy: PolicyOfHeads,
        state: State,
        setup: Setup,
        recall: Recall | None = None,
    ) -> None:
        self._net = net
        self._recall = recall
        self._policy = policy
        shape = (setup.num_envs, family.noise_dim)
        self._noise = Noise(family.noise_kind, shape, setup.seeds.act, setup.device)
        self._numpy = numpy_way(net.net, setup)
        self._is_categorical = setup.spaces.action_type == "discrete"
        self._privileged = setup.spaces.privileged
        # The policy net's own entries: every further input would cost a little at each call.
        own = net.own_entries(state)
        self._keys = list(own)
        self._tensors = tuple(own.values())
        mode = setup.compile_act if self._numpy is None else None
        self._native = Compiled(self._sample, mode=mode, fixed=1 + len(own)) if mode else None

    def __call__(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """obs [B, ...] -> actions [B, ...] as sampled; the mode of the policy if not exploring."""
        obs = seen_by_policy(obs, self._privileged)
        # No parameter requires a gradient outside a learning step, so none is recorded here.
        if not explore:
            return self._policy(self._net.net(obs)).mode()
        noise = self._noise()
        if self._numpy is not None:
            heads = self._numpy(obs.numpy())
            if self._is_categorical:  # drawn in NumPy too, as Categorical.sample does
                return torch.from_numpy((heads[0] + noise.numpy()).argmax(-1))
            return self._policy([torch.from_numpy(head) for head in heads]).sample(noise)
        if self._native is None:
            drawn: Sequence[Tensor] = self._draw(self._net.net(obs), noise)
        else:
            drawn = self._native(noise, *self._tensors, obs)
        if self._recall is not None:
            self._recall.add(*drawn)
        return drawn[0]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {**self._noise.state_dict()}
        return state if self._recall is None else state | {"recall": self._recall.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._noise.load_state_dict(state)
        if self._recall is not None:
            self._recall.load_state_dict(state["recall"])

    def _sample(self, noise: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(self._keys, inputs[:-1], strict=True))
        return self._draw(self._net(state, inputs[-1]), noise)

    def _draw(self, heads: Sequence[Tensor], noise: Tensor) -> tuple[Tensor, ...]:
        """(actions,), and their log-probs and the states' values where those are to be kept."""
        if self._recall is None:
            return (self._policy(heads).sample(noise),)
        policy, value = self._recall.judgement(heads)
        action = policy.sample(noise)
        return action, policy.log_prob(action), value


def numpy_way(net: nn.Module, setup: Setup) -> Forward | None:
    """The net's forward pass in NumPy, where that is the fastest way to act."""
    if setup.device.type != "cpu" or setup.spaces.obs_dtype != "float32":
        return None
    return numpy_forward(net, setup.num_envs)
