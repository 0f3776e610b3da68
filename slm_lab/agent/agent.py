"""The agent: an algorithm, a memory, and the lenses it sees observations and rewards through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.a2c import ActorCritic, rollout_length
from slm_lab.agent.algorithm.distribution import Family
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.reinforce import Reinforce
from slm_lab.agent.algorithm.setup import Setup
from slm_lab.agent.compiler import is_worth_compiling
from slm_lab.agent.device import resolve_device
from slm_lab.agent.learner import Learner
from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
from slm_lab.agent.normalizer import (
    ObsClip,
    ObsNormalizer,
    RewardTransform,
    make_obs_transform,
    make_reward_transform,
)
from slm_lab.agent.seeds import AgentSeeds
from slm_lab.spec import (
    ActorCriticSpec,
    PPOSpec,
    Problem,
    ReinforceSpec,
    SpecError,
    ppo_minibatch_size,
)
from slm_lab.types import Metrics, Rollout, Spaces, Transition

if TYPE_CHECKING:
    from slm_lab.spec import Spec


class Algorithm(Protocol):
    """What is minimised. Concrete algorithms share functions, not an ancestor."""

    @property
    def family(self) -> Family: ...
    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def act(self) -> Callable[..., Tensor]: ...  # (obs, *, explore) -> actions as sampled
    def update(self, batch: Rollout, frame: int) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Memory(Protocol):
    @property
    def ready(self) -> bool: ...
    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None: ...
    def take(self) -> Rollout: ...


class Agent:
    """act, observe, update. Actions are as sampled; `env_action` makes them executable."""

    def __init__(
        self,
        algorithm: Algorithm,
        memory: Memory,
        obs_transform: ObsNormalizer | ObsClip | None,
        reward_transform: RewardTransform | None,
        device: torch.device,
    ) -> None:
        self.algorithm = algorithm
        self._memory = memory
        self._obs_transform = obs_transform
        self._reward_transform = reward_transform
        self._device = device
        spaces = algorithm.family.spaces
        self._acts_as_sampled = not spaces.is_continuous

    def act(self, obs: np.ndarray, *, explore: bool = True) -> np.ndarray:
        """obs [B, ...], raw -> actions [B, ...]."""
        x = torch.from_numpy(obs)
        if self._obs_transform is not None:
            x = self._obs_transform(x)
        return self.algorithm.act(x.to(self._device), explore=explore).cpu().numpy()

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What to hand to `env.step`: squashed or clipped where the action space asks for it."""
        if self._acts_as_sampled:
            return action
        return self.algorithm.family.to_env(torch.from_numpy(action)).numpy()

    def observe(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self._memory.add(obs, action, transition)

    @property
    def ready(self) -> bool:
        """Whether enough has been observed for an update."""
        return self._memory.ready

    def update(self, frame: int) -> Metrics:
        raw = self._memory.take()
        metrics = self.algorithm.update(self._transformed(raw), frame)
        if isinstance(self._obs_transform, ObsNormalizer):
            # After learning: the policy must learn through the lens it acted with.
            self._obs_transform.update(raw.obs[:-1].flatten(0, 1))
        return metrics

    @property
    def is_compiled(self) -> bool:
        return self.algorithm.learner.is_compiled

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics of observations and rewards, by the name of their owner."""
        statistics = {}
        if isinstance(self._obs_transform, ObsNormalizer):
            statistics["obs_normalizer"] = self._obs_transform.state_dict()
        if self._reward_transform is not None:
            statistics["reward_transform"] = self._reward_transform.state_dict()
        return statistics

    def state_dict(self) -> dict[str, Any]:
        """Everything the agent has learned; stored experience belongs to its memory."""
        return {"algorithm": self.algorithm.state_dict()} | self.statistics()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        if isinstance(self._obs_transform, ObsNormalizer):
            self._obs_transform.load_state_dict(state["obs_normalizer"])
        if self._reward_transform is not None:
            self._reward_transform.load_state_dict(state["reward_transform"])

    def _transformed(self, rollout: Rollout) -> Rollout:
        if self._obs_transform is not None:
            rollout = replace(
                rollout,
                obs=self._obs_transform(rollout.obs),
                final_obs=self._obs_transform(rollout.final_obs),
            )
        if self._reward_transform is not None:
            ended = rollout.terminated | rollout.truncated
            rollout = replace(rollout, reward=self._reward_transform(rollout.reward, ended))
        if self._device.type == "cpu":
            return rollout
        on_device = {f.name: getattr(rollout, f.name).to(self._device) for f in fields(Rollout)}
        return Rollout(**on_device)


@dataclass(frozen=True, slots=True)
class _Pace:
    """How an algorithm alternates between acting and learning."""

    rollout_steps: int  # env steps between updates
    gradient_steps: int  # per update
    whole_episodes: bool = False  # rollout_steps counts episodes instead


def make_agent(spec: Spec, spaces: Spaces, *, seed: int, device_index: int = 0) -> Agent:
    """The agent a spec describes, for an env with these spaces. All its draws come from `seed`."""
    pace = _pace(spec)
    updates = spec.env.max_frame / (pace.rollout_steps * spec.env.num_envs)
    setup = Setup(
        spaces=spaces,
        num_envs=spec.env.num_envs,
        seeds=AgentSeeds.spawn(seed),
        device=resolve_device(spec.agent.net.gpu, device_index),
        # Whole episodes vary in length, and a compiled step has one shape.
        compile=not pace.whole_episodes
        and is_worth_compiling(spec.meta.compile, updates * pace.gradient_steps),
        # Acting gains fifty times less from a compiled call than learning does.
        compile_act=is_worth_compiling(spec.meta.compile, updates * pace.rollout_steps / 50),
    )
    algorithm = _make_algorithm(spec, setup)
    lanes = 1 if pace.whole_episodes else spec.env.num_envs
    return Agent(
        algorithm,
        _make_memory(spec, algorithm.family, pace),
        make_obs_transform(spec.env, spaces.obs_shape),
        make_reward_transform(spec.env, getattr(spec.agent.algorithm, "gamma", 0.99), lanes),
        setup.device,
    )


def _make_algorithm(spec: Spec, setup: Setup) -> Algorithm:
    algorithm, net, critic_net = spec.agent.algorithm, spec.agent.net, spec.agent.critic_net
    match algorithm:
        case PPOSpec() if critic_net:
            return PPO(algorithm, net, critic_net, setup, ppo_minibatch_size(spec))
        case ActorCriticSpec() if critic_net:
            return ActorCritic(algorithm, net, critic_net, setup)
        case ReinforceSpec():
            return Reinforce(algorithm, net, setup)
    raise _not_built(spec)


def _pace(spec: Spec) -> _Pace:
    whole_episodes = spec.agent.memory.name != "OnPolicyBatchReplay"
    match algorithm := spec.agent.algorithm:
        case PPOSpec():
            minibatches = algorithm.time_horizon * spec.env.num_envs // ppo_minibatch_size(spec)
            return _Pace(algorithm.time_horizon, algorithm.training_epoch * minibatches)
        case ActorCriticSpec():
            steps = algorithm.training_frequency if whole_episodes else rollout_length(algorithm)
            return _Pace(steps, 1, whole_episodes)
        case ReinforceSpec():
            return _Pace(algorithm.training_frequency, 1, whole_episodes)
    raise _not_built(spec)


def _make_memory(spec: Spec, family: Family, pace: _Pace) -> Memory:
    spaces, num_envs = family.spaces, spec.env.num_envs
    if pace.whole_episodes:
        keep_above = getattr(spec.agent.memory, "cross_entropy", 1.0)
        return EpisodeMemory(pace.rollout_steps, num_envs, spaces.obs_dtype, keep_above)
    return RolloutMemory(
        pace.rollout_steps,
        num_envs,
        spaces.obs_shape,
        spaces.obs_dtype,
        family.action_shape,
        family.action_dtype,
    )


def _not_built(spec: Spec) -> SpecError:
    name = spec.agent.algorithm.name
    fix = f"{name} cannot be trained yet. Use PPO, ActorCritic or Reinforce."
    return SpecError([Problem("agent.algorithm.name", fix)], spec.name)
