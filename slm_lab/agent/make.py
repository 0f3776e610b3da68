"""Spec -> agent: which algorithm, which memory, how fast they alternate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from loguru import logger

from slm_lab.agent.agent import Agent, Algorithm, ExperienceBuffer, NoBuffer
from slm_lab.agent.algorithm.a2c import ActorCritic, rollout_length
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.random import Random
from slm_lab.agent.algorithm.reinforce import Reinforce
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.agent.algorithm.sarsa import SARSA
from slm_lab.agent.algorithm.setup import AgentSeeds, Setup, resolve_device
from slm_lab.agent.algorithm.sil import SelfImitation
from slm_lab.agent.learning.compiler import is_worth_compiling
from slm_lab.agent.memory.budget import check_fits, replay_bytes
from slm_lab.agent.memory.frame_replay import FrameReplay
from slm_lab.agent.memory.replay import Replay, ReplayBuffer
from slm_lab.agent.memory.return_replay import ImitationBuffer, ReturnReplay
from slm_lab.agent.memory.rollout import (
    DeviceRolloutBuffer,
    EpisodeMemory,
    RolloutBuffer,
    RolloutMemory,
)
from slm_lab.agent.memory.sampler import PrioritizedSampler, Sampler, UniformSampler
from slm_lab.agent.memory.sequence_sampler import SequenceSampler
from slm_lab.agent.net.recurrent import sequence_length
from slm_lab.agent.preprocessor import (
    Preprocessor,
    RecurrentPreprocessor,
    make_obs_transform,
    make_reward_transform,
)
from slm_lab.agent.recurrence import recurrence_of
from slm_lab.spec import (
    ActorCriticSpec,
    CrossQSpec,
    DQNSpec,
    PPOSILSpec,
    PPOSpec,
    PrioritizedReplaySpec,
    Problem,
    RandomSpec,
    RecurrentNetSpec,
    ReinforceSpec,
    ReplaySpec,
    SARSASpec,
    SILSpec,
    SoftActorCriticSpec,
    Spec,
    SpecError,
    batches_per_call,
    ppo_minibatch_size,
    training_start_step,
)
from slm_lab.types import Spaces


@dataclass(frozen=True, slots=True)
class _Pace:
    """How an algorithm alternates between acting and learning."""

    frames: int  # between updates; counts episodes instead with whole_episodes
    gradient_steps: int  # per update
    whole_episodes: bool = False


def make_agent(
    spec: Spec, spaces: Spaces, *, seed: int, device_index: int = 0, learns: bool = True
) -> Agent:
    """The agent a spec describes, for an env with these spaces. All its draws come from `seed`.

    One that does not learn has no memory and compiles nothing: it acts, and stays as it is.
    """
    _check_action_space(spec, spaces)
    pace = _pace(spec)
    # Whole episodes vary in length, and a compiled step has one shape.
    steps = spec.env.max_frame / pace.frames * pace.gradient_steps
    per_step = _seconds_saved_per_step(spec, spaces)
    # A recurrent step is as many cells long as a sequence.
    spent = 15 + 1.2 * (sequence_length(spec.agent.net) or 0)
    compiles = (learns and not pace.whole_episodes) and is_worth_compiling(
        spec.meta.compile, seconds_saved=per_step * steps, seconds_spent=spent
    )
    # An act of a small net is shorter by about 35 microseconds.
    acts = spec.env.max_frame / spec.env.num_envs
    compiles_act = compiles and is_worth_compiling(
        spec.meta.compile, seconds_saved=35e-6 * acts, seconds_spent=1.5
    )
    setup = Setup(
        spaces=spaces,
        num_envs=spec.env.num_envs,
        seeds=AgentSeeds.spawn(seed),
        device=resolve_device(spec.agent.net.gpu, device_index),
        compile=spec.meta.compile_mode if compiles else None,
        compile_act=spec.meta.compile_mode if compiles_act else None,
        threads=spec.meta.threads or 1,
        distributed=bool(spec.meta.distributed),
    )
    with _sizes_that_fit(spec):
        algorithm = _make_algorithm(spec, setup)
        recurrence = recurrence_of(algorithm.modules)
        keeps_rows = recurrence is None and _keeps_rollouts(spec, pace)
        on_device = learns and spaces.on_device and keeps_rows
        transforms = (
            make_obs_transform(spec.env, spaces.obs_shape, setup.device if on_device else "cpu"),
            make_reward_transform(
                spec.env,
                getattr(spec.agent.algorithm, "gamma", 0.99),
                lanes=1 if pace.whole_episodes else spec.env.num_envs,
            )
            if learns
            else None,
        )
        if recurrence is None:
            preprocessor = Preprocessor(*transforms, setup.device, on_device=on_device)
        else:
            preprocessor = RecurrentPreprocessor(*transforms, setup.device, spaces.obs_shape)
            setup = replace(setup, spaces=recurrence.row_spaces(spaces))
        experience: ExperienceBuffer
        if on_device:
            memory = _make_rollout_memory(setup, pace, setup.device)
            experience = DeviceRolloutBuffer(memory, preprocessor)
        else:
            experience = _make_experience(spec, setup, preprocessor, pace) if learns else NoBuffer()
        return Agent(
            algorithm,
            experience,
            preprocessor,
            spaces,
            num_envs=spec.env.num_envs,
            recurrence=recurrence,
        )


@contextmanager
def _sizes_that_fit(spec: Spec) -> Iterator[None]:
    """A net or memory that the machine cannot hold is a mistake in the spec."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if "allocate" not in str(error):
            raise
        fix = "it does not fit into memory. Lower the layer widths, rollout, max_size or num_envs."
        raise SpecError([Problem("agent", fix)], spec.name) from error


def _make_algorithm(spec: Spec, setup: Setup) -> Algorithm:
    algorithm, net, batch_size = spec.agent.algorithm, spec.agent.net, 0
    critic_net = spec.agent.critic_net or net
    if not isinstance(algorithm, RandomSpec):
        batch_size = spec.agent.memory.batch_size
    match algorithm:
        case RandomSpec():
            return Random(setup)
        case SARSASpec():
            return SARSA(algorithm, net, setup)
        case DQNSpec():
            return DQN(algorithm, net, setup, batch_size=batch_size)
        case ReinforceSpec():
            return Reinforce(algorithm, net, setup)
        case ActorCriticSpec():
            return ActorCritic(algorithm, net, critic_net, setup)
        case PPOSpec():
            return PPO(algorithm, net, critic_net, setup, ppo_minibatch_size(spec))
        case SILSpec():
            a2c = ActorCritic(algorithm, net, critic_net, setup)
            return SelfImitation(algorithm, a2c, batch_size=batch_size, compile=setup.compile)
        case PPOSILSpec():
            ppo = PPO(algorithm, net, critic_net, setup, ppo_minibatch_size(spec))
            return SelfImitation(algorithm, ppo, batch_size=batch_size, compile=setup.compile)
        case SoftActorCriticSpec() | CrossQSpec():
            return SoftActorCritic(algorithm, net, critic_net, setup, batch_size=batch_size)


def _pace(spec: Spec) -> _Pace:
    whole_episodes = spec.agent.memory.name in ("OnPolicyReplay", "OnPolicyCrossEntropy")
    num_envs = spec.env.num_envs
    match algorithm := spec.agent.algorithm:
        case RandomSpec():
            return _Pace(num_envs, 0)
        case PPOSpec() | PPOSILSpec():
            rows = algorithm.time_horizon * num_envs
            steps = algorithm.training_epoch * rows // ppo_minibatch_size(spec)
            return _Pace(rows, steps)
        case ActorCriticSpec() | SILSpec() if not whole_episodes:
            return _Pace(rollout_length(algorithm) * num_envs, 1 + algorithm.critic_iter)
        case ActorCriticSpec() | SILSpec() | ReinforceSpec() | SARSASpec():
            frames = algorithm.training_frequency * (1 if whole_episodes else num_envs)
            return _Pace(frames, 1, whole_episodes)
        case DQNSpec():
            steps = algorithm.training_iter * algorithm.training_batch_iter
            return _Pace(algorithm.training_frequency, steps)
        case SoftActorCriticSpec() | CrossQSpec():
            return _Pace(algorithm.training_frequency, batches_per_call(spec))


def _seconds_saved_per_step(spec: Spec, spaces: Spaces) -> float:
    """What compiling a gradient step is worth, from steps timed on one core."""
    if spaces.is_image:
        return 1e-2  # more is read and written between the products
    if isinstance(spec.agent.algorithm, SoftActorCriticSpec | CrossQSpec):
        return 8e-3  # three nets and a temperature: 16.9 ms -> 8.1
    # 1.5 to 2 ms for nets of 64 to 256, as 1.8 ms -> 0.24 and 3.4 -> 1.4 for PPO.
    return 1.5e-3 + 4e-4 * (sequence_length(spec.agent.net) or 0)


def _make_experience(
    spec: Spec, setup: Setup, preprocessor: Preprocessor, pace: _Pace
) -> ExperienceBuffer:
    algorithm = spec.agent.algorithm
    if isinstance(algorithm, DQNSpec | SoftActorCriticSpec | CrossQSpec):
        return ReplayBuffer(
            _make_replay(spec, algorithm, setup),
            preprocessor,
            start=training_start_step(spec),
            every=algorithm.training_frequency,
            batches=batches_per_call(spec),
        )
    present = RolloutBuffer(_make_on_policy_memory(spec, setup, pace), preprocessor)
    if isinstance(algorithm, SILSpec | PPOSILSpec):
        past = _make_return_replay(spec, algorithm, setup, preprocessor)
        return ImitationBuffer(present, past, preprocessor, batches=algorithm.training_iter)
    return present


def _make_on_policy_memory(spec: Spec, setup: Setup, pace: _Pace) -> RolloutMemory | EpisodeMemory:
    spaces, num_envs = setup.spaces, setup.num_envs
    if pace.whole_episodes:
        keep_above = getattr(spec.agent.memory, "cross_entropy", 1.0)
        return EpisodeMemory(pace.frames, num_envs, spaces.obs_dtype, keep_above)
    return _make_rollout_memory(setup, pace)


def _make_rollout_memory(
    setup: Setup, pace: _Pace, device: torch.device | None = None
) -> RolloutMemory:
    spaces, num_envs = setup.spaces, setup.num_envs
    shapes = spaces.obs_shape, spaces.obs_dtype, *_action_layout(spaces)
    return RolloutMemory(pace.frames // num_envs, num_envs, *shapes, device)


def _keeps_rollouts(spec: Spec, pace: _Pace) -> bool:
    """Whether all that is kept of the past is a rollout: no replay, no list of episodes."""
    keeps_more = DQNSpec | SoftActorCriticSpec | CrossQSpec | SILSpec | PPOSILSpec
    return not pace.whole_episodes and not isinstance(spec.agent.algorithm, keeps_more)


def _make_return_replay(
    spec: Spec, algorithm: SILSpec | PPOSILSpec, setup: Setup, preprocessor: Preprocessor
) -> ReturnReplay:
    memory, spaces = spec.agent.memory, setup.spaces
    assert not isinstance(memory, ReplaySpec | PrioritizedReplaySpec)
    capacity = min(memory.max_size, spec.env.max_frame)
    is_prioritized = memory.sil_replay_name == "PrioritizedReplay"
    return ReturnReplay(
        capacity,
        setup.num_envs,
        spaces.obs_shape,
        spaces.obs_dtype,
        *_action_layout(spaces),
        _make_sampler(
            spec, capacity, setup, (memory.alpha, memory.epsilon, 0.4) if is_prioritized else None
        ),
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        use_cer=memory.use_cer,
        transform_reward=preprocessor.reward,
        rescales=preprocessor.rescales_rewards,
    )


def _make_replay(
    spec: Spec, algorithm: DQNSpec | SoftActorCriticSpec | CrossQSpec, setup: Setup
) -> Replay | FrameReplay:
    memory, spaces = spec.agent.memory, setup.spaces
    assert isinstance(memory, ReplaySpec | PrioritizedReplaySpec)
    if memory.max_size < setup.num_envs:
        fix = f"found {memory.max_size}; expected at least env.num_envs = {setup.num_envs}"
        raise SpecError([Problem("agent.memory.max_size", fix)], spec.name)
    capacity = min(memory.max_size, spec.env.max_frame + setup.num_envs)
    action_shape, action_dtype = _action_layout(spaces)
    obs_layout = spaces.obs_shape, spaces.obs_dtype
    # Vectors are cheaper to keep whole than to put together again.
    frame_stack = spaces.frame_stack if spaces.is_image else 1
    size = replay_bytes(capacity, *obs_layout, action_shape, action_dtype, frame_stack)
    logger.info(f"replay of {capacity:,} transitions takes {size / 1e6:,.0f} MB")
    check_fits(size)
    priorities = None
    if isinstance(memory, PrioritizedReplaySpec):
        priorities = (memory.alpha, memory.epsilon, memory.beta)
    sampler = _in_sequences(spec, _make_sampler(spec, capacity, setup, priorities), capacity)
    make = Replay if frame_stack == 1 else partial(FrameReplay, frame_stack=frame_stack)
    return make(
        capacity=capacity,
        num_envs=setup.num_envs,
        obs_shape=spaces.obs_shape,
        obs_dtype=spaces.obs_dtype,
        action_shape=action_shape,
        action_dtype=action_dtype,
        sampler=sampler,
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        n_step=algorithm.n_step,
        use_cer=memory.use_cer and sequence_length(spec.agent.net) is None,
    )


def _make_sampler(
    spec: Spec, capacity: int, setup: Setup, priorities: tuple[float, float, float] | None
) -> Sampler:
    """Uniform, or prioritised with (alpha, epsilon, beta)."""
    if priorities is None:
        return UniformSampler(setup.seeds.memory)
    alpha, epsilon, beta = priorities
    return PrioritizedSampler(
        capacity,
        alpha=alpha,
        epsilon=epsilon,
        beta=beta,
        anneal_frames=spec.env.max_frame,
        seed=setup.seeds.memory,
    )


def _in_sequences(spec: Spec, sampler: Sampler, capacity: int) -> Sampler:
    """Whole sequences for a recurrent net; single rows for any other."""
    net, num_envs = spec.agent.net, spec.env.num_envs
    if not isinstance(net, RecurrentNetSpec):
        return sampler
    return SequenceSampler(
        sampler,
        net.seq_len,
        batch_size=spec.agent.memory.batch_size,
        slots=capacity // num_envs,
        num_envs=num_envs,
        use_cer=spec.agent.memory.use_cer,
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
        takes = "discrete actions"
    elif isinstance(algorithm, SoftActorCriticSpec | CrossQSpec) and (
        spaces.action_type in ("multi_discrete", "multi_binary")
    ):
        takes = "discrete or continuous actions"
    else:
        return
    fix = f"{algorithm.name} takes {takes}; env.name: {spec.env.name} has {spaces.action_type}."
    raise SpecError([Problem("agent.algorithm.name", f"{fix} Use PPO.")], spec.name)
