"""Build the agent that a spec describes, from the records of its algorithm and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from slm_lab.agent.agent import Agent, Algorithm
from slm_lab.agent.algorithm.base import AgentSeeds, Setup, resolve_device
from slm_lab.agent.learning.compiler import is_worth_compiling
from slm_lab.agent.memory.make import make_return_replay, make_rollout
from slm_lab.agent.memory.replay import ReplayBuffer
from slm_lab.agent.memory.return_replay import ImitationBuffer
from slm_lab.agent.memory.rollout import ExperienceBuffer, RolloutBuffer
from slm_lab.agent.net.recurrent import recurrence_of
from slm_lab.agent.preprocessor import (
    Preprocessor,
    RecurrentPreprocessor,
    make_obs_transform,
    make_reward_transform,
)
from slm_lab.spec import Problem, Spec, SpecError, batches_per_call, training_start_step
from slm_lab.spec.algorithm.base import Pace
from slm_lab.types import Spaces


def make_agent(
    spec: Spec, spaces: Spaces, *, seed: int, device_index: int = 0, learns: bool = True
) -> Agent:
    """The agent a spec describes, for an env with these spaces. All its draws come from `seed`.

    With `learns` false it has no memory and compiles nothing: it acts, and stays as it is.
    """
    _check_action_space(spec, spaces)
    info, pace = spec.agent.algorithm_info, spec.agent.algorithm.pace(spec)
    setup = _make_setup(spec, spaces, pace, seed, device_index, learns)
    with _sizes_that_fit(spec):
        algorithm: Algorithm = info.load()(spec, setup)
        recurrence = recurrence_of(algorithm.modules)
        keeps_rows = recurrence is None and _keeps_rollouts(spec)
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
        experience = ExperienceBuffer()
        if on_device:
            rollout = make_rollout(spec, spaces, pace, setup.seeds.memory, setup.device)
            experience = RolloutBuffer(rollout, preprocessor)
        elif learns:
            experience = _make_experience(spec, setup, preprocessor, pace)
        return Agent(
            algorithm,
            experience,
            preprocessor,
            spaces,
            num_envs=spec.env.num_envs,
            recurrence=recurrence,
        )


def _make_setup(
    spec: Spec, spaces: Spaces, pace: Pace, seed: int, device_index: int, learns: bool
) -> Setup:
    """What an algorithm is built for; decides whether compiling its steps is worth the time."""
    # Whole episodes vary in length, and a compiled step has one shape.
    steps = spec.env.max_frame / pace.frames * pace.gradient_steps
    # The step of a recurrent net is as many cells long as a sequence.
    seq_len = spec.agent.net.sequence_length or 0
    saved = spec.agent.algorithm_info.seconds_saved + 4e-4 * seq_len
    if spaces.is_image:
        saved = 1e-2  # more is read and written between the products
    compiles = (learns and not pace.whole_episodes) and is_worth_compiling(
        spec.meta.compile, seconds_saved=saved * steps, seconds_spent=15 + 1.2 * seq_len
    )
    # An act of a small net is shorter by about 35 microseconds.
    acts = spec.env.max_frame / spec.env.num_envs
    compiles_act = compiles and is_worth_compiling(
        spec.meta.compile, seconds_saved=35e-6 * acts, seconds_spent=1.5
    )
    return Setup(
        spaces=spaces,
        num_envs=spec.env.num_envs,
        seeds=AgentSeeds.spawn(seed),
        device=resolve_device(spec.agent.net.gpu, device_index),
        compile=spec.meta.compile_mode if compiles else None,
        compile_act=spec.meta.compile_mode if compiles_act else None,
        threads=spec.meta.threads or 1,
        distributed=bool(spec.meta.distributed),
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


def _keeps_rollouts(spec: Spec) -> bool:
    """Whether all that is kept of the past is a rollout: no replay, no list of episodes."""
    info = spec.agent.algorithm_info
    kind = spec.agent.memory_info.kind
    return not info.learns or (kind == "rollout" and not info.imitates)


def _make_experience(
    spec: Spec, setup: Setup, preprocessor: Preprocessor, pace: Pace
) -> ExperienceBuffer:
    info, seed = spec.agent.algorithm_info, setup.seeds.memory
    if not info.learns:  # a rollout, whatever memory the spec names, counts its updates
        return RolloutBuffer(make_rollout(spec, setup.spaces, pace, seed), preprocessor)
    memory = spec.agent.memory_info.load()(spec, setup.spaces, pace, seed)
    if spec.agent.memory_info.kind == "replay":
        return ReplayBuffer(
            memory,
            preprocessor,
            start=training_start_step(spec),
            every=pace.frames,
            batches=batches_per_call(spec),
        )
    present = RolloutBuffer(memory, preprocessor)
    if not info.imitates:
        return present
    past = make_return_replay(
        spec,
        setup.spaces,
        seed,
        transform_reward=preprocessor.reward,
        rescales=preprocessor.rescales_rewards,
    )
    return ImitationBuffer(present, past, preprocessor, batches=batches_per_call(spec))


def _check_action_space(spec: Spec, spaces: Spaces) -> None:
    info = spec.agent.algorithm_info
    if ("continuous" if spaces.is_continuous else spaces.action_type) in info.actions:
        return
    takes = " or ".join(sorted(info.actions, reverse=True)).replace("_", "-")
    fix = f"{info.name} takes {takes} actions; env.name: {spec.env.name} has {spaces.action_type}."
    raise SpecError([Problem("agent.algorithm.name", f"{fix} Use PPO.")], spec.name)
