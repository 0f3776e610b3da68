"""Acting: observations -> actions, one batched call per env step, for every algorithm.

`Actor` decides between NumPy, compiled and eager evaluation. How the outputs of a net become
actions is the part of an algorithm: `SampledPolicy` samples a distribution, `QExploration` explores
around the best Q value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.base import Setup
from slm_lab.agent.algorithm.distribution import (
    ActionDistribution,
    Categorical,
    Distribution,
    NoiseKind,
)
from slm_lab.agent.algorithm.schedule import scheduled_value
from slm_lab.agent.learning.compiler import Compiled
from slm_lab.agent.learning.learner import NetState, State
from slm_lab.agent.net.mlp import DuelingMLPNet, MLPNet
from slm_lab.agent.net.noisy import NoisyLinear
from slm_lab.agent.net.rows import FORBIDDEN, NumpyPolicy, RowNet, draw_allowed
from slm_lab.spec.algorithm.dqn import ValueBasedSpec

Heads = Sequence[Tensor]
NumpyNoise = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(input of a layer, noise of the net) -> what is added to its output."""


class Choice:
    """How head outputs become actions."""

    noise_kind: NoiseKind
    noise_dim: int
    evaluates = False  # whether it also gives log-probs and values, which learning compares with

    def __call__(self, heads: Heads, *inputs: Tensor) -> tuple[Tensor, ...]:
        """(actions,), or (actions, log-probs, values); pure, so that it can be compiled."""
        raise NotImplementedError

    def greedy(self, heads: Heads) -> Tensor:
        """Actions without exploration."""
        raise NotImplementedError

    def inputs(self, noise: Tensor, frame: int) -> tuple[Tensor, ...]:
        """Inputs of a call beside the heads."""
        return (noise,)

    def in_numpy(self, heads: list[np.ndarray], noise: Tensor, frame: int) -> Tensor:
        """The same actions from NumPy heads; for a handful of rows NumPy calls are cheaper."""
        raise NotImplementedError


class Actor:
    """Acts with a net and a stream of noise of its own.

    A small MLP on few rows runs in NumPy. Otherwise the module runs eagerly, its parameters being
    views of the training state, or a compiled function of that state does.
    """

    def __init__(self, net: NetState, choice: Choice, state: State, setup: Setup) -> None:
        self._net = net
        self._choice = choice
        self._noise = Noise(
            choice.noise_kind, (setup.num_envs, choice.noise_dim), setup.seeds.act, setup.device
        )
        self._net_noise = None
        if net.noise_size:  # each env explores with weights of its own
            shape = setup.num_envs, net.noise_size
            self._net_noise = Noise("factors", shape, setup.seeds.noise, setup.device)
        self._privileged = setup.spaces.privileged
        in_numpy = setup.device.type == "cpu" and setup.spaces.obs_dtype == "float32"
        self._numpy = numpy_policy(net.net, setup.num_envs) if in_numpy else None
        # The net's own entries alone: every further input would cost a little at each call.
        self._own = own = net.own_entries(state)
        self._keys, self._tensors = list(own), tuple(own.values())
        # Rounding the weights at each step pays for many rows only. But log-probs that learning
        # will compare with are computed as it computes them.
        as_learned = choice.evaluates or setup.num_envs > MAX_ROWS
        self._exact = not (net.rounds and as_learned)
        self._compiled = None
        if setup.compile_act is not None and self._numpy is None:
            self._num_inputs = len(choice.inputs(self._noise.first, 0)) + (net.noise_size > 0)
            fixed = self._num_inputs + len(own)
            self._compiled = Compiled(self._pure, mode=setup.compile_act, fixed=fixed)
        self.evaluated: list[Tensor] = []
        """Log-probs and values of the actions explored last, where the choice gives them."""

    def __call__(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """obs [B, ...] -> actions [B, ...] as sampled, or the greedy ones."""
        if self._privileged:  # the last columns are for the critic alone
            obs = obs[..., : -self._privileged]
        # No parameter requires a gradient outside a learning step, so none is recorded here.
        if not explore:  # in torch alone, whatever the net: see Agent.policy
            return self._choice.greedy(self._net.net(obs))
        noise = self._noise()
        of_net = () if self._net_noise is None else (self._net_noise(),)
        if self._numpy is not None:
            heads = self._numpy(obs.numpy(), *(rows.numpy() for rows in of_net))
            return self._choice.in_numpy(heads, noise, frame)
        inputs = self._choice.inputs(noise, frame)
        if self._compiled is not None:
            action, *self.evaluated = self._compiled(*of_net, *inputs, *self._tensors, obs)
        else:
            plain = self._exact and not of_net
            found = self._net.net(obs) if plain else self._heads(self._own, obs, *of_net)
            action, *self.evaluated = self._choice(found, *inputs)
        return action

    def state_dict(self) -> dict[str, Any]:
        if self._net_noise is None:
            return self._noise.state_dict()
        return {**self._noise.state_dict(), "net_noise": self._net_noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._noise.load_state_dict(state)
        if self._net_noise is not None:
            self._net_noise.load_state_dict(state["net_noise"])

    def _heads(self, state: State, obs: Tensor, *of_net: Tensor) -> Heads:
        noisy = self._net.with_noise(state, *of_net) if of_net else state
        return self._net(noisy, obs, exact=self._exact)

    def _pure(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, parameters = tensors[: self._num_inputs], tensors[self._num_inputs : -1]
        of_net, inputs = inputs[: self._net.noise_size > 0], inputs[self._net.noise_size > 0 :]
        state = dict(zip(self._keys, parameters, strict=True))
        return self._choice(self._heads(state, tensors[-1], *of_net), *inputs)


class SampledPolicy(Choice):
    """Samples from pi(.|s); with `policy_and_value` also gives log-probs and values.

    A `squashed` policy acts by tanh of its samples. `policy_and_value` is for nets through which a
    second pass over the rollout would be expensive: for convolutions, a tenth of the training.
    """

    def __init__(
        self,
        distribution: ActionDistribution,
        policy: Callable[[Heads], Distribution] | None = None,
        policy_and_value: Callable[[Heads], tuple[Distribution, Tensor]] | None = None,
        *,
        squashed: bool = False,
    ) -> None:
        self.noise_kind, self.noise_dim = distribution.noise_kind, distribution.noise_dim
        self._policy = policy or distribution
        self._policy_and_value = policy_and_value
        self.evaluates = policy_and_value is not None
        self._squashed = squashed
        is_discrete = distribution.spaces.action_type == "discrete"
        self._is_categorical = is_discrete and distribution.own is None

    def __call__(self, heads: Heads, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self._policy_and_value is None:
            action = self._policy(heads).sample(inputs[0])
            return (action.tanh() if self._squashed else action,)
        policy, value = self._policy_and_value(heads)
        action = policy.sample(inputs[0])
        return action, policy.log_prob(action), value

    def greedy(self, heads: Heads) -> Tensor:
        action = self._policy(heads).mode()
        return action.tanh() if self._squashed else action

    def in_numpy(self, heads: list[np.ndarray], noise: Tensor, frame: int) -> Tensor:
        if self._is_categorical:  # as Categorical.sample
            return torch.from_numpy((heads[0] + noise.numpy()).argmax(-1))
        return self([torch.from_numpy(head) for head in heads], noise)[0]


class QExploration(Choice):
    """Explores around the best Q value: epsilon-greedy, Boltzmann or at random.

    The epsilon or temperature is a schedule over frames. `q_value` makes Q values of a head that
    says more of the return.
    """

    def __init__(
        self,
        spec: ValueBasedSpec,
        setup: Setup,
        q_value: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._q_value = q_value
        self._schedule = spec.explore_var_spec
        self._policy = spec.action_policy
        if self._policy == "default":  # the one that suits the pdtype
            is_sampled = spec.action_pdtype in ("Categorical", "GumbelSoftmax")
            self._policy = "boltzmann" if is_sampled else "epsilon_greedy"
        is_boltzmann = self._policy == "boltzmann"
        self.noise_kind = "gumbel" if is_boltzmann else "uniform"
        self.noise_dim = setup.spaces.action_sizes[0] if is_boltzmann else 2
        self._has_masks = setup.spaces.mask > 0
        self._explore_var = torch.zeros((), device=setup.device)

    def __call__(self, heads: Heads, *inputs: Tensor) -> tuple[Tensor, ...]:
        explore_var, noise = inputs
        q_value = self._q(heads[0])
        if self._policy == "boltzmann":
            return (boltzmann(q_value, explore_var, noise),)
        if self._policy == "random":
            explore_var = torch.ones_like(explore_var)
        if self._has_masks:
            return (masked_epsilon_greedy(q_value, explore_var, noise),)
        return (epsilon_greedy(q_value, explore_var, noise),)

    def greedy(self, heads: Heads) -> Tensor:
        return self._q(heads[0]).argmax(-1)

    def inputs(self, noise: Tensor, frame: int) -> tuple[Tensor, ...]:
        return self._explore_var.fill_(self.explore_var(frame)), noise

    def in_numpy(self, heads: list[np.ndarray], noise: Tensor, frame: int) -> Tensor:
        if self._policy == "epsilon_greedy" and not self._has_masks:
            epsilon, q_value = self.explore_var(frame), heads[0]
            if self._q_value is not None:
                q_value = self._q_value(torch.from_numpy(q_value)).numpy()
            return torch.from_numpy(numpy_epsilon_greedy(q_value, epsilon, noise.numpy()))
        return self([torch.from_numpy(heads[0])], *self.inputs(noise, frame))[0]

    def explore_var(self, frame: int) -> float:
        """Epsilon or temperature."""
        return scheduled_value(self._schedule, frame)

    def _q(self, head: Tensor) -> Tensor:
        return head if self._q_value is None else self._q_value(head)


def epsilon_greedy(q_value: Tensor, epsilon: Tensor, noise: Tensor) -> Tensor:
    """With probability epsilon a uniform action, else the best; drawn for each env apart.

    noise [B, 2] is uniform: the first column decides whether to explore, the second picks the
    action.
    """
    count = q_value.shape[-1]
    uniform = (noise[:, 1] * count).long().clamp(max=count - 1)
    return torch.where(noise[:, 0] < epsilon, uniform, q_value.argmax(-1))


def masked_epsilon_greedy(q_value: Tensor, epsilon: Tensor, noise: Tensor) -> Tensor:
    """`epsilon_greedy` among the allowed actions, which are those of another Q than FORBIDDEN."""
    uniform = draw_allowed(q_value != FORBIDDEN, noise[:, 1])
    return torch.where(noise[:, 0] < epsilon, uniform, q_value.argmax(-1))


def numpy_epsilon_greedy(q_value: np.ndarray, epsilon: float, noise: np.ndarray) -> np.ndarray:
    """`epsilon_greedy` in NumPy: the same choice from the same noise."""
    best: np.ndarray = q_value.argmax(-1)
    explores = noise[:, 0] < epsilon
    if explores.any():  # seldom, once epsilon is small
        count = q_value.shape[-1]
        uniform = np.minimum((noise[:, 1] * count).astype(np.int64), count - 1)
        best[explores] = uniform[explores]
    return best


def boltzmann(q_value: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
    """A sample from softmax(Q / temperature); noise [B, A] is Gumbel-distributed."""
    return Categorical(q_value / temperature.clamp_min(1e-8)).sample(noise)


class Noise:
    """Blocks of seeded noise, so that acting costs one slice per step and no generator call."""

    BLOCK_STEPS = 256
    BLOCK_NUMBERS = 2**20  # with thousands of envs a block has fewer steps

    def __init__(
        self, kind: NoiseKind, shape: tuple[int, ...], seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self._kind = kind
        self._device = device
        steps = min(self.BLOCK_STEPS, self.BLOCK_NUMBERS // math.prod(shape))
        self._shape = (max(1, steps), *shape)
        self._generator = torch.Generator().manual_seed(seed)
        self._start = self._generator.get_state()
        self._next = 0
        self._rows = self._draw()

    def __call__(self) -> Tensor:
        if self._next == len(self._rows):
            self._start = self._generator.get_state()
            self._rows = self._draw()
            self._next = 0
        self._next += 1
        return self._rows[self._next - 1]

    @property
    def first(self) -> Tensor:
        """The first row of the current block."""
        return self._rows[0]

    def state_dict(self) -> State:
        """The generator as it was before the current block, and the rows of the block used."""
        return {"generator": self._start.clone(), "next": torch.tensor(self._next)}

    def load_state_dict(self, state: State) -> None:
        self._generator.set_state(state["generator"])
        self._start = state["generator"].clone()
        self._rows = self._draw()
        self._next = int(state["next"])

    def _draw(self) -> Sequence[Tensor]:
        # Drawn on the CPU whatever the device, so that one seed means one stream everywhere.
        draw = torch.randn if self._kind in ("normal", "factors") else torch.rand
        noise = draw(self._shape, generator=self._generator)
        if self._kind == "gumbel":
            noise = -(-noise.clamp_min(torch.finfo(torch.float32).tiny).log()).log()
        elif self._kind == "factors":  # of the noise of a NoisyLinear: sgn(x) sqrt|x|
            noise = noise.sign() * noise.abs().sqrt()
        return noise.to(self._device).unbind(0)


MAX_ROWS = 64
MAX_WIDTH = 256  # beyond, arithmetic weighs more than calls

_IN_PLACE: dict[type[nn.Module], Callable[[np.ndarray], object]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0.0, out=x),
}


def numpy_policy(net: nn.Module, rows: int) -> NumpyPolicy | None:
    """The forward pass of a small MLP in NumPy; None where torch is faster or NumPy cannot.

    A NumPy call costs a third of a torch call, and acting in a handful of envs is all calls. The
    weights are views of the net's own parameters, so an update shows at once.
    """
    if isinstance(net, RowNet):
        inside = numpy_policy(net.net, rows)
        if inside is None:
            return None
        return lambda *seen: net.in_numpy(inside, *seen)
    if type(net) not in (MLPNet, DuelingMLPNet) or rows > MAX_ROWS:  # others compute anything
        return None
    heads: list[list[nn.Module]]
    if isinstance(net, DuelingMLPNet):
        model, heads = net.model_body, [[net.v], [net.adv]]
    else:
        assert isinstance(net, MLPNet)
        tails = list(net.tails) if isinstance(net.tails, nn.ModuleList) else [net.tails]
        model, heads = net.model, [list(tail.children()) for tail in tails]
    body = [(model[i], model[i + 1]) for i in range(0, len(model) - 1, 2)]
    is_plain = (
        len(model) == 2 * len(body)
        and all(isinstance(a, nn.Linear) and type(b) in _IN_PLACE for a, b in body)
        and all(len(head) == 1 and isinstance(head[0], nn.Linear) for head in heads)
    )
    linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if not is_plain or any(max(layer.weight.shape) > MAX_WIDTH for layer in linear):
        return None
    if any(layer.weight.device.type != "cpu" for layer in linear):
        return None
    noise_at = _noise_places(net)
    hidden = [(*_views(a, noise_at), _IN_PLACE[type(b)]) for a, b in body]
    outputs = [_views(head[0], noise_at) for head in heads]
    log_std = net.log_std.numpy() if hasattr(net, "log_std") else None
    join = net.join if isinstance(net, DuelingMLPNet) else None

    def forward(obs: np.ndarray, noise: np.ndarray | None = None) -> list[np.ndarray]:
        x = obs.reshape(obs.shape[0], -1)
        for weight, bias, noisy, activate in hidden:
            seen, x = x, x @ weight
            x += bias
            if noise is not None:
                x += noisy(seen, noise)
            activate(x)
        heads = [x @ weight + bias for weight, bias, _ in outputs]
        if noise is not None:
            parts = zip(heads, outputs, strict=True)
            heads = [head + noisy(x, noise) for head, (*_, noisy) in parts]
        if join is not None:
            return [join(*map(torch.from_numpy, heads)).numpy()]
        if log_std is not None:
            # Copied, because torch warns of arrays that cannot be written, such as a broadcast.
            heads.append(np.broadcast_to(log_std, heads[0].shape).copy())
        return heads

    return forward


def _noise_places(net: nn.Module) -> dict[nn.Module, int]:
    """Noisy layers -> where in the noise of the net theirs begins."""
    layers = [layer for layer in net.modules() if isinstance(layer, NoisyLinear)]
    ends = itertools.accumulate(layer.noise_size for layer in layers)
    return dict(zip(layers, [0, *ends], strict=False))


def _views(
    layer: nn.Module, noise_at: Mapping[nn.Module, int]
) -> tuple[np.ndarray, np.ndarray, NumpyNoise]:
    """Weight, bias, and what noise adds to the layer's output, as `NoisyLinear` for rows apart."""
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
    if not isinstance(layer, NoisyLinear):
        return weight, bias, lambda x, noise: np.zeros((), np.float32)
    middle = noise_at[layer] + layer.in_features
    inputs, outputs = slice(noise_at[layer], middle), slice(middle, middle + layer.out_features)
    sigma, of_bias = layer.weight_sigma.detach().numpy().T, layer.bias_sigma.detach().numpy()

    def noisy(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
        added: np.ndarray = noise[:, outputs] * ((x * noise[:, inputs]) @ sigma + of_bias)
        return added

    return weight, bias, noisy
