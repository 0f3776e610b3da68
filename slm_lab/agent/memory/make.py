"""Build the memory that a spec describes: one function per kind, named by the memories' records."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from loguru import logger

from slm_lab.agent.memory.budget import check_fits, replay_bytes
from slm_lab.agent.memory.frame_replay import FrameReplay
from slm_lab.agent.memory.replay import Replay, RewardTransform
from slm_lab.agent.memory.return_replay import ReturnReplay
from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
from slm_lab.agent.memory.sampler import PrioritizedSampler, Sampler, UniformSampler
from slm_lab.agent.memory.sequence_sampler import SequenceSampler
from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import Spec
    from slm_lab.spec.algorithm.base import Pace
    from slm_lab.types import Spaces


def make_rollout(
    spec: Spec, spaces: Spaces, pace: Pace, seed: int, device: torch.device | None = None
) -> RolloutMemory:
    """A fixed number of steps of every env, on the device that is given."""
    num_envs = spec.env.num_envs
    shapes = spaces.obs_shape, spaces.obs_dtype, *_action_layout(spaces)
    return RolloutMemory(pace.frames // num_envs, num_envs, *shapes, device)


def make_episodes(spec: Spec, spaces: Spaces, pace: Pace, seed: int) -> EpisodeMemory:
    """Whole episodes, of which the better ones are kept."""
    keep_above = getattr(spec.agent.memory, "cross_entropy", 1.0)
    return EpisodeMemory(pace.frames, spec.env.num_envs, spaces.obs_dtype, keep_above)


def make_replay(spec: Spec, spaces: Spaces, pace: Pace, seed: int) -> Replay | FrameReplay:
    """A ring of transitions; of images with stacked frames each frame is stored once."""
    algorithm: Any = spec.agent.algorithm
    memory, num_envs = spec.agent.memory, spec.env.num_envs
    if memory.max_size < num_envs:
        fix = f"found {memory.max_size}; expected at least env.num_envs = {num_envs}"
        raise SpecError([Problem("agent.memory.max_size", fix)], spec.name)
    capacity = min(memory.max_size, spec.env.max_frame + num_envs)
    action_shape, action_dtype = _action_layout(spaces)
    obs_layout = spaces.obs_shape, spaces.obs_dtype
    # Vectors are cheaper to store whole than to put together again.
    frame_stack = spaces.frame_stack if spaces.is_image else 1
    size = replay_bytes(capacity, *obs_layout, action_shape, action_dtype, frame_stack)
    logger.info(f"replay of {capacity:,} transitions takes {size / 1e6:,.0f} MB")
    check_fits(size)
    sampler = _make_sampler(spec, capacity, seed)
    seq_len = spec.agent.net.sequence_length
    if seq_len is not None:
        sampler = SequenceSampler(
            sampler,
            seq_len,
            batch_size=memory.batch_size,
            slots=capacity // num_envs,
            num_envs=num_envs,
            use_cer=memory.use_cer,
        )
    make = Replay if frame_stack == 1 else partial(FrameReplay, frame_stack=frame_stack)
    return make(
        capacity=capacity,
        num_envs=num_envs,
        obs_shape=spaces.obs_shape,
        obs_dtype=spaces.obs_dtype,
        action_shape=action_shape,
        action_dtype=action_dtype,
        sampler=sampler,
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        n_step=algorithm.n_step,
        use_cer=memory.use_cer and seq_len is None,
    )


def make_return_replay(
    spec: Spec, spaces: Spaces, seed: int, *, transform_reward: RewardTransform, rescales: bool
) -> ReturnReplay:
    """The past steps that self-imitation keeps beside its rollout."""
    algorithm: Any = spec.agent.algorithm
    memory = spec.agent.memory
    capacity = min(memory.max_size, spec.env.max_frame)
    return ReturnReplay(
        capacity,
        spec.env.num_envs,
        spaces.obs_shape,
        spaces.obs_dtype,
        *_action_layout(spaces),
        _make_sampler(spec, capacity, seed),
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        use_cer=memory.use_cer,
        transform_reward=transform_reward,
        rescales=rescales,
    )


def _make_sampler(spec: Spec, capacity: int, seed: int) -> Sampler:
    memory: Any = spec.agent.memory
    if not memory.prioritizes:
        return UniformSampler(seed)
    return PrioritizedSampler(
        capacity,
        alpha=memory.alpha,
        epsilon=memory.epsilon,
        beta=memory.beta,
        anneal_frames=spec.env.max_frame,
        seed=seed,
    )


def _action_layout(spaces: Spaces) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of one stored action."""
    match spaces.action_type:
        case "discrete":
            return (), torch.int64
        case "multi_discrete":
            return (len(spaces.action_sizes),), torch.int64
    return (math.prod(spaces.action_sizes),), torch.float32
