"""Build the memory that a spec describes: one function per kind, named by the memories' records."""

from __future__ import annotations

from typing import Any

import psutil
import torch
from loguru import logger

from slm_lab.agent.memory.replay import FrameReplay, Replay, place_spaces
from slm_lab.agent.memory.return_replay import ReturnReplay
from slm_lab.agent.memory.ring import make_columns
from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
from slm_lab.agent.memory.sampler import (
    PrioritizedSampler,
    Sampler,
    SequenceSampler,
    UniformSampler,
)
from slm_lab.agent.preprocessor import Preprocessor
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.algorithm.base import Pace
from slm_lab.types import Spaces


def make_rollout(
    spec: Spec, spaces: Spaces, pace: Pace, seed: int, device: torch.device | None = None
) -> RolloutMemory:
    """A fixed number of steps of every env, on the device that is given."""
    num_envs = spec.env.num_envs
    return RolloutMemory(pace.frames // num_envs, num_envs, spaces, device)


def make_episodes(spec: Spec, spaces: Spaces, pace: Pace, seed: int) -> EpisodeMemory:
    """Whole episodes, of which the better ones are kept."""
    keep_above = getattr(spec.agent.memory, "cross_entropy", 1.0)
    return EpisodeMemory(pace.frames, spec.env.num_envs, spaces.obs_dtype, keep_above)


def make_replay(spec: Spec, spaces: Spaces, pace: Pace, seed: int) -> Replay:
    """A ring of transitions; of images with stacked frames each frame is stored once."""
    algorithm: Any = spec.agent.algorithm
    memory, num_envs = spec.agent.memory, spec.env.num_envs
    if memory.max_size < num_envs:
        fix = f"found {memory.max_size}; expected at least env.num_envs = {num_envs}"
        raise SpecError([Problem("agent.memory.max_size", fix)], spec.name)
    capacity = min(memory.max_size, spec.env.max_frame + num_envs)
    # Vectors are cheaper to store whole than to put together again.
    is_stacked = spaces.frame_stack > 1 or len(spaces.parts) > 0
    keeps_frames = spaces.has_images and is_stacked
    size = replay_bytes(capacity, spaces, keeps_frames=keeps_frames)
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
    return (FrameReplay if keeps_frames else Replay)(
        capacity,
        num_envs,
        spaces,
        sampler,
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        n_step=algorithm.n_step,
        use_cer=memory.use_cer and seq_len is None,
    )


def make_return_replay(
    spec: Spec, spaces: Spaces, seed: int, preprocessor: Preprocessor
) -> ReturnReplay:
    """The past steps that self-imitation keeps beside its rollout."""
    algorithm: Any = spec.agent.algorithm
    memory = spec.agent.memory
    capacity = min(memory.max_size, spec.env.max_frame)
    return ReturnReplay(
        capacity,
        spec.env.num_envs,
        spaces,
        _make_sampler(spec, capacity, seed),
        batch_size=memory.batch_size,
        gamma=algorithm.gamma,
        use_cer=memory.use_cer,
        transform_reward=preprocessor.reward,
        rescales=preprocessor.rescales_rewards,
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
        anneal_frames=memory.anneal_frames or spec.env.max_frame,
        seed=seed,
    )


def replay_bytes(capacity: int, spaces: Spaces, *, keeps_frames: bool = False) -> int:
    """Bytes of a replay, before it is allocated.

    Of stacked frames a row keeps one, and the places of all (`FrameReplay`); frames of the starts
    of episodes are not counted.
    """
    frame = 0
    if keeps_frames:
        stack = make_columns(spaces, (), ["obs"], "meta")["obs"]
        frame = stack.nbytes // spaces.frame_stack
        spaces = place_spaces(spaces)
    row = make_columns(spaces, (), Replay.COLUMNS, "meta")
    return capacity * (frame + sum(column.nbytes for column in row.values()))


def check_fits(size: int) -> None:
    """Refuse a replay that the free memory of the machine cannot hold."""
    free = psutil.virtual_memory().available
    if size > 0.9 * free:
        fix = (
            f"the replay would take {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free. "
            "Lower max_size, or run fewer sessions at once."
        )
        raise SpecError([Problem("agent.memory.max_size", fix)])
