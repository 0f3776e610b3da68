"""The agent: an algorithm, the experience it learns from, and the lens it sees both through."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from loguru import logger
from torch import Tensor, nn

from slm_lab.agent.algorithm.a2c import ActorCritic, rollout_length
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.reinforce import Reinforce
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.agent.algorithm.sarsa import SARSA
from slm_lab.agent.algorithm.setup import Setup
from slm_lab.agent.compiler import is_worth_compiling
from slm_lab.agent.device import resolve_device
from slm_lab.agent.experience import Experience, Lens, OnPolicyExperience, ReplayExperience
from slm_lab.agent.learner import Learner
from slm_lab.agent.memory.budget import check_fits, replay_bytes
from slm_lab.agent.memory.replay import Replay
from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
from slm_lab.agent.memory.sampler import PrioritizedSampler, Sampler, UniformSampler
from slm_lab.agent.normalizer import make_obs_transform, make_reward_transform
from slm_lab.agent.seeds import AgentSeeds
from slm_lab.spec import (
    ActorCriticSpec,
    CrossQSpec,
    DQNSpec,
    PPOSpec,
    PrioritizedReplaySpec,
    Problem,
    ReinforceSpec,
    ReplaySpec,
    SARSASpec,
    SoftActorCriticSpec,
    SpecError,
    ppo_minibatch_size,
    training_start_step,
)
from slm_lab.types import Metrics, Spaces, Transition

if TYPE_CHECKING:
    from slm_lab.spec import Spec


class Algorithm(Protocol):
    """What is minimised. Concrete algorithms share functions, not an ancestor."""

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def act(self) -> Callable[..., Tensor]: ...  # (obs, *, frame, explore) -> actions as sampled
    def to_env(self, action: Tensor) -> Tensor: ...
    def update(self, batch: Any, frame: int) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Agent:
    """act, observe, update. Actions are as sampled; `env_action` makes them executable."""

    def __init__(
        self, algorithm: Algorithm, experience: Experience, lens: Lens, spaces: Spaces
    ) -> None:
        self.algorithm = algorithm
        self._experience = experience
        self._lens = lens
        self._acts_as_sampled = not spaces.is_continuous

    def act(self, obs: np.ndarray, *, frame: int = 0, explore: bool = True) -> np.ndarray:
        """obs [B, ...], raw -> actions [B, ...]. How much is explored may depend on the frame."""
        x = self._lens.obs(torch.from_numpy(obs))
        return self.algorithm.act(x, frame=frame, explore=explore).cpu().numpy()

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What to hand to `env.step`: squashed or clipped where the action space asks for it."""
        if self._acts_as_sampled:
            return action
        return self.algorithm.to_env(torch.from_numpy(action)).numpy()

    def observe(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self._experience.add(obs, action, transition)

    @property
    def ready(self) -> bool:
        """Whether enough has been observed for an update."""
        return self._experience.ready

    def update(self, frame: int) -> Metrics:
        metrics = self.algorithm.update(self._experience.batch(frame), frame)
        self._experience.learned(metrics)
        return metrics

    @property
    def is_compiled(self) -> bool:
        return self.algorithm.learner.is_compiled

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics of observations and rewards, by the name of their owner."""
        return self._lens.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Everything the agent has learned; stored experience belongs to its memory."""
        return {"algorithm": self.algorithm.state_dict(), "statistics": self.statistics()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self._lens.load_statistics(state["statistics"])


@dataclass(frozen=True, slots=True)
class _Pace:
    """How an algorithm alternates between acting and learning."""

    frames: int  # between updates; counts episodes instead with whole_episodes
    gradient_steps: int  # per update
    whole_episodes: bool = False


def make_agent(spec: Spec, spaces: Spaces, *, seed: int, device_index: int = 0) -> Agent:
    """The agent a spec describes, for an env with these spaces. All its draws come from `seed`."""
    _check_action_space(spec, spaces)
    pace = _pace(spec)
    # Whole episodes vary in length, and a compiled step has one shape. Per call, compiling saves
    # a learning step about a millisecond and an act about 35 microseconds, for small nets.
    steps = spec.env.max_frame / pace.frames * pace.gradient_steps
    compile = not pace.whole_episodes and is_worth_compiling(
        spec.meta.compile, seconds_saved=1e-3 * steps, seconds_spent=15
    )
    acts = spec.env.max_frame / spec.env.num_envs
    setup = Setup(
        spaces=spaces,
        num_envs=spec.env.num_envs,
        seeds=AgentSeeds.spawn(seed),
        device=resolve_device(spec.agent.net.gpu, device_index),
        compile=compile,
        compile_act=compile
        and is_worth_compiling(spec.meta.compile, seconds_saved=35e-6 * acts, seconds_spent=1.5),
    )
    lens = Lens(
        make_obs_transform(spec.env, spaces.obs_shape),
        make_reward_transform(
            spec.env,
            getattr(spec.agent.algorithm, "gamma", 0.99),
            lanes=1 if pace.whole_episodes else spec.env.num_envs,
        ),
        setup.device,
    )
    algorithm = _make_algorithm(spec, setup)
    return Agent(algorithm, _make_experience(spec, setup, lens, pace), lens, spaces)


def _make_algorithm(spec: Spec, setup: Setup) -> Algorithm:
    algorithm, net, critic_net = spec.agent.algorithm, spec.agent.net, spec.agent.critic_net
    memory = spec.agent.memory
    batch_size = memory.batch_size if isinstance(memory, ReplaySpec | PrioritizedReplaySpec) else 0
    match algorithm:
        case PPOSpec() if critic_net:
            return PPO(algorithm, net, critic_net, setup, ppo_minibatch_size(spec))
        case ActorCriticSpec() if critic_net:
            return ActorCritic(algorithm, net, critic_net, setup)
        case ReinforceSpec():
            return Reinforce(algorithm, net, setup)
        case SARSASpec():
            return SARSA(algorithm, net, setup)
        case DQNSpec():
            return DQN(algorithm, net, setup, batch_size=batch_size)
        case SoftActorCriticSpec() | CrossQSpec():
            return SoftActorCritic(algorithm, net, critic_net or net, setup, batch_size=batch_size)
    raise _not_built(spec)


def _pace(spec: Spec) -> _Pace:
    whole_episodes = spec.agent.memory.name in ("OnPolicyReplay", "OnPolicyCrossEntropy")
    num_envs = spec.env.num_envs
    match algorithm := spec.agent.algorithm:
        case PPOSpec():
            rows = algorithm.time_horizon * num_envs
            steps = algorithm.training_epoch * rows // ppo_minibatch_size(spec)
            return _Pace(rows, steps)
        case ActorCriticSpec() if not whole_episodes:
            return _Pace(rollout_length(algorithm) * num_envs, 1)
        case ActorCriticSpec() | ReinforceSpec() | SARSASpec():
            frames = algorithm.training_frequency * (1 if whole_episodes else num_envs)
            return _Pace(frames, 1, whole_episodes)
        case DQNSpec():
            steps = algorithm.training_iter * algorithm.training_batch_iter
            return _Pace(max(algorithm.training_frequency, num_envs), steps)
        case SoftActorCriticSpec() | CrossQSpec():
            steps = algorithm.training_iter or num_envs
            return _Pace(max(algorithm.training_frequency, num_envs), steps)
    raise _not_built(spec)


def _make_experience(spec: Spec, setup: Setup, lens: Lens, pace: _Pace) -> Experience:
    spaces, num_envs, memory = setup.spaces, setup.num_envs, spec.agent.memory
    if isinstance(memory, ReplaySpec | PrioritizedReplaySpec):
        algorithm = spec.agent.algorithm
        assert isinstance(algorithm, DQNSpec | SoftActorCriticSpec | CrossQSpec)
        return ReplayExperience(
            _make_replay(spec, memory, algorithm, setup),
            lens,
            start=training_start_step(spec),
            every=algorithm.training_frequency,
            batches=algorithm.training_iter or num_envs,
        )
    if pace.whole_episodes:
        keep_above = getattr(memory, "cross_entropy", 1.0)
        episodes = EpisodeMemory(pace.frames, num_envs, spaces.obs_dtype, keep_above)
        return OnPolicyExperience(episodes, lens)
    rollout = RolloutMemory(
        pace.frames // num_envs,
        num_envs,
        spaces.obs_shape,
        spaces.obs_dtype,
        *_action_layout(spaces),
    )
    return OnPolicyExperience(rollout, lens)


def _make_replay(
    spec: Spec,
    memory: ReplaySpec | PrioritizedReplaySpec,
    algorithm: DQNSpec | SoftActorCriticSpec | CrossQSpec,
    setup: Setup,
) -> Replay:
    spaces = setup.spaces
    capacity = min(memory.max_size, spec.env.max_frame + setup.num_envs)
    action_shape, action_dtype = _action_layout(spaces)
    size = replay_bytes(capacity, spaces.obs_shape, spaces.obs_dtype, action_shape)
    logger.info(f"replay of {capacity:,} transitions takes {size / 1e6:,.0f} MB")
    check_fits(size)
    sampler: Sampler = UniformSampler(setup.seeds.memory)
    if isinstance(memory, PrioritizedReplaySpec):
        sampler = PrioritizedSampler(
            capacity,
            alpha=memory.alpha,
            epsilon=memory.epsilon,
            beta=memory.beta,
            anneal_frames=spec.env.max_frame,
            seed=setup.seeds.memory,
        )
    return Replay(
        capacity,
        setup.num_envs,
        spaces.obs_shape,
        spaces.obs_dtype,
        action_shape,
        action_dtype,
        sampler,
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        n_step=algorithm.n_step,
        use_cer=memory.use_cer,
    )


def _action_layout(spaces: Spaces) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of one stored action."""
    match spaces.action_type:
        case "discrete":
            return (), torch.int64
        case "multi_discrete":
            return (len(spaces.action_sizes),), torch.int64
    return (math.prod(spaces.action_sizes),), torch.float32


def _check_action_space(spec: Spec, spaces: Spaces) -> None:
    algorithm = spec.agent.algorithm
    if isinstance(algorithm, DQNSpec | SARSASpec) and spaces.action_type != "discrete":
        fix = f"{algorithm.name} needs discrete actions; {spec.env.name} has {spaces.action_type}"
    elif isinstance(algorithm, SoftActorCriticSpec | CrossQSpec) and (
        spaces.action_type in ("multi_discrete", "multi_binary")
    ):
        fix = f"{algorithm.name} takes discrete or continuous actions, not {spaces.action_type}"
    else:
        return
    raise SpecError([Problem("agent.algorithm.name", f"{fix}. Use PPO.")], spec.name)


def _not_built(spec: Spec) -> SpecError:
    fix = f"{spec.agent.algorithm.name} cannot be trained yet. Use PPO, SAC or DQN."
    return SpecError([Problem("agent.algorithm.name", fix)], spec.name)
