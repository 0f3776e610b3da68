"""The agent: an algorithm, its experience, the preprocessor of both; and how a spec makes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.base import AgentSeeds, Setup, resolve_device
from slm_lab.agent.learning.compiler import is_worth_compiling
from slm_lab.agent.learning.learner import Learner
from slm_lab.agent.learning.precision import FLOAT32, resolve_precision
from slm_lab.agent.memory.make import make_return_replay, make_rollout
from slm_lab.agent.memory.replay import ReplayBuffer
from slm_lab.agent.memory.return_replay import ImitationBuffer
from slm_lab.agent.memory.rollout import ExperienceBuffer, RolloutBuffer
from slm_lab.agent.net.recurrent import Recurrence, RecurrentState, recurrence_of
from slm_lab.agent.parts import make_rows_transform
from slm_lab.agent.preprocessor import (
    Preprocessor,
    RecurrentPreprocessor,
    make_reward_transform,
)
from slm_lab.agent.saving import save_agent
from slm_lab.card import card, folded
from slm_lab.spec import Problem, Spec, SpecError, batches_per_call, training_start_step
from slm_lab.spec.algorithm.base import Pace
from slm_lab.spec.trust import check_modules
from slm_lab.types import Metrics, Rows, Spaces, Transition, on_host

MASK = "action_mask"  # the part of an observation that is one
EAGER_SECONDS = 1.0
"""What a run gives away by eager first steps, so that it learns before its code is compiled."""


class Algorithm(Protocol):
    """What is minimised. Algorithms share functions; their one ancestor only saves them.

    Those that learn on-policy also have `evaluate(batch)`, which adds to a batch what the nets that
    acted say of it, and may have `evaluated`: (log-probs, values) of the actions explored last.
    """

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def act(self) -> Callable[..., Tensor]: ...  # (obs, *, frame, explore) -> actions as sampled
    @property
    def to_env(self) -> Callable[[Tensor], Tensor]: ...  # actions as sampled -> as executed
    def update(self, batch: Any, frame: int) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Agent:
    """Acts, observes and updates. Actions are as sampled; `env_action` makes them executable.

    A recurrent agent keeps the recurrent state of the episodes it trains in. To act elsewhere it is
    given another: `initial_recurrent_state`, `act(..., recurrent_state=state)`,
    `advance(state, transition)`.

    Tensors are answered with tensors. They stay on their device if the experience does; otherwise
    they are moved to the host on arrival.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        experience: ExperienceBuffer,
        preprocessor: Preprocessor,
        spaces: Spaces,
        *,
        num_envs: int,
        recurrence: Recurrence | None = None,
        precision: str = "float32",
        spec: Spec | None = None,
        learns: bool = True,
    ) -> None:
        self.algorithm = algorithm
        self.spec, self.learns = spec, learns
        self.precision = precision  # of learning, in words
        self.experience = experience
        self._preprocessor = preprocessor
        self._device_rollout: RolloutBuffer | None = None
        if preprocessor.on_device and isinstance(experience, RolloutBuffer):
            self._device_rollout = experience
        self._is_discrete = not spaces.is_continuous
        self._obs_shape, self._spaces = spaces.obs_shape, spaces
        self._recurrence = recurrence
        self._recurrent_state = self.initial_recurrent_state(num_envs)

    def __repr__(self) -> str:
        return f"<Agent {', '.join(self._facts().values())}>"

    def _repr_html_(self) -> str:
        nets = "\n\n".join(f"{name}: {net}" for name, net in self.algorithm.modules.items())
        return card("Agent", self._facts(), folded("nets", nets))

    def _facts(self) -> dict[str, str]:
        nets, spaces = self.algorithm.modules.values(), self._spaces
        parameters = sum(each.numel() for net in nets for each in net.parameters())
        name = self.spec.agent.label if self.spec else type(self.algorithm).__name__
        return {
            "algorithm": name if self.learns else f"{name}, loaded to act",
            "observation": f"obs {spaces.obs_shape} {spaces.obs_dtype}",
            "action": f"{spaces.action_type} {spaces.action_sizes}",
            "parameters": f"{parameters:,} parameters",
        }

    def initial_recurrent_state(self, num_envs: int) -> RecurrentState | None:
        """Zero recurrent state for `num_envs` new episodes; None for a feed-forward agent."""
        if self._recurrence is None:
            return None
        return RecurrentState(num_envs, self._obs_shape, self._recurrence.memory_size)

    def act(
        self,
        obs: Rows,
        *,
        frame: int = 0,
        explore: bool = True,
        recurrent_state: RecurrentState | None = None,
    ) -> Rows:
        """Raw obs [B, ...] -> actions [B, ...]. How much is explored may depend on the frame."""
        is_array = isinstance(obs, np.ndarray)
        if not is_array and self._device_rollout is None:
            obs = on_host(obs)
        if self._recurrence is not None:
            obs = self._state_to_act_on(explore, recurrent_state).rows(on_host(obs))
        x = self._preprocessor.obs(torch.from_numpy(obs) if isinstance(obs, np.ndarray) else obs)
        action = self.algorithm.act(x, frame=frame, explore=explore)
        return action.cpu().numpy() if is_array else action

    def predict(
        self,
        obs: Any,
        recurrent_state: RecurrentState | None = None,
        *,
        action_mask: Any = None,
    ) -> np.ndarray:
        """Action for one observation of a Gymnasium env, or actions for a batch of them.

            action = agent.predict(obs)
            obs, reward, terminated, truncated, info = env.step(action)

        Both are as the env itself has them. (The envs of `load_agent` and `make_env` have rows and
        units of the agent: `act` is for these.) The action is the most likely one. An agent with
        env.frame_stack sees the last frames, stacked. A recurrent one needs a state,
        `initial_recurrent_state(1)` at the start of an episode, and moves it on.
        """
        converter = self._spaces.converter
        if converter is None:
            raise ValueError("this agent was made without an env: act(rows) takes its rows")
        if self._recurrence is not None and recurrent_state is None:
            raise ValueError(
                "a recurrent agent needs the state of its episode: "
                "predict(obs, state), with state = agent.initial_recurrent_state(1) at its start"
            )
        if self._spaces.mask and not (isinstance(obs, Mapping) and MASK in obs):
            obs = {**(obs if isinstance(obs, Mapping) else {"observation": obs}), MASK: action_mask}
        rows, is_single = converter.encode(obs)
        state, nothing = recurrent_state, np.zeros(len(rows), np.float32)
        action = self.act(rows, explore=False, recurrent_state=state)
        self.advance(state, Transition(rows, rows, nothing, *[nothing > 0] * 3))
        actions = converter.decode(on_host(self.env_action(action)))
        return actions[0] if is_single else actions

    def save(self, folder: str | Path) -> Path:
        """Write the agent into a folder, for `load_agent(folder)`, `init_from` and `slm-lab enjoy`;
        returns the folder. Its memory and the progress of its optimiser are left behind."""
        if self.spec is None:
            raise ValueError("an agent is saved with its spec, and this one was made without")
        save_agent(self, self.spec, Path(folder))
        return Path(folder)

    def advance(self, recurrent_state: RecurrentState | None, transition: Transition) -> None:
        """Move a recurrent state on by the step that its envs took; None needs nothing."""
        if recurrent_state is not None:
            recurrent_state.advance(self._memory_after(recurrent_state), _on_host(transition))

    def env_action(self, action: Rows) -> Rows:
        """Actions for `env.step`: squashed or clipped where the action space asks for it."""
        if self._is_discrete:
            return action
        if isinstance(action, np.ndarray):
            return self.algorithm.to_env(torch.from_numpy(action)).numpy()
        return self.algorithm.to_env(action)

    def policy(self, obs: Tensor) -> Tensor:
        """Raw obs [B, ...] -> greedy actions for `env.step`.

        It is `act` and `env_action` in torch alone, so that it can be traced and exported.
        """
        return self.algorithm.to_env(self.algorithm.act(self._preprocessor.obs(obs), explore=False))

    def observe(self, obs: Rows, action: Rows, transition: Transition) -> None:
        """Store a step; `action` is the one explored last."""
        evaluated = getattr(self.algorithm, "evaluated", ())
        if self._device_rollout is not None:
            self._device_rollout.add(obs, action, transition, evaluated)
            return
        if not (isinstance(obs, np.ndarray) and isinstance(action, np.ndarray)):
            obs, action, transition = on_host(obs), on_host(action), _on_host(transition)
        if self._recurrent_state is not None:
            obs = self._recurrent_state.rows(obs)
            memory = self._memory_after(self._recurrent_state)
            transition = self._recurrent_state.advance(memory, transition)
        self.experience.add(obs, action, transition, evaluated)

    def truncate_episodes(self, obs: np.ndarray) -> None:
        """End the running episodes, which will not go on, at these observations [B, ...]."""
        if self._recurrent_state is not None:
            obs = self._recurrent_state.rows(obs)
            self._recurrent_state = self.initial_recurrent_state(len(obs))
        self.experience.truncate_episodes(obs)

    @property
    def ready(self) -> bool:
        """Whether enough experience is there for the next update."""
        return self.experience.ready

    def update(self, frame: int) -> Metrics:
        """Learn from the stored experience; schedules are read at the frame."""
        learned = self.algorithm.update(self.experience.batch(frame), frame)
        metrics = self._preprocessor.in_env_units(learned)
        self.experience.learned(metrics)
        return metrics

    @property
    def is_compiled(self) -> bool:
        """Whether the learning step is compiled, or will be."""
        return self.algorithm.learner.is_compiled

    @property
    def is_compiling(self) -> bool:
        """Whether the compiled learning step is still to come."""
        learner = self.algorithm.learner
        return learner.is_compiled and not learner.is_native

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        """State dicts of target nets, for algorithms that have them."""
        target_nets = getattr(self.algorithm, "target_nets", None)
        return target_nets() if target_nets else {}

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics of observations and rewards, by the name of their owner."""
        return self._preprocessor.statistics()

    def load_statistics(self, statistics: dict[str, dict[str, Tensor]]) -> None:
        """Take over what `statistics` of another agent returned."""
        self._preprocessor.load_statistics(statistics)

    def state_dict(self) -> dict[str, Any]:
        """State of algorithm, statistics and running episodes; `experience` has its own."""
        state = {"algorithm": self.algorithm.state_dict(), "statistics": self.statistics()}
        if self._recurrent_state is not None:
            state["recurrent_state"] = self._recurrent_state.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.load_statistics(state["statistics"])
        if self._recurrent_state is not None:
            self._recurrent_state.load_state_dict(state["recurrent_state"])

    def _state_to_act_on(self, explore: bool, given: RecurrentState | None) -> RecurrentState:
        if given is not None:
            return given
        if not explore or self._recurrent_state is None:
            raise ValueError(
                "a recurrent agent evaluated elsewhere needs a recurrent state of its own: "
                "act(obs, explore=False, recurrent_state=agent.initial_recurrent_state(num_envs))"
            )
        return self._recurrent_state

    def _memory_after(self, recurrent_state: RecurrentState) -> np.ndarray:
        """The memory of the nets after the rows that were acted on last."""
        assert self._recurrence is not None
        rows = self._preprocessor.obs(torch.from_numpy(recurrent_state.latest))
        return self._recurrence(rows).cpu().numpy()


def _on_host(transition: Transition) -> Transition:
    if not isinstance(transition.obs, Tensor):
        return transition
    obs = next_obs = on_host(transition.obs)
    if transition.next_obs is not transition.obs:  # the two differ only at an ending
        next_obs = on_host(transition.next_obs)
    return replace(transition, obs=obs, next_obs=next_obs)


def make_agent(
    spec: Spec, spaces: Spaces, *, seed: int, device_index: int = 0, learns: bool = True
) -> Agent:
    """The agent a spec describes, for an env with these spaces. All its draws come from `seed`.

    With `learns` false it has no memory and compiles nothing: it acts, and stays as it is.
    """
    check_modules(spec)
    _check_actions(spec, spaces)
    info, pace = spec.agent.algorithm_info, spec.agent.algorithm.pace(spec)
    setup = _make_setup(spec, spaces, pace, seed, device_index, learns)
    with _sizes_that_fit(spec):
        algorithm: Algorithm = info.load()(spec, setup)
        _check_parts(algorithm, spec)
        recurrence = recurrence_of(algorithm.modules)
        keeps_rows = recurrence is None and _keeps_rollouts(spec)
        on_device = learns and spaces.on_device and keeps_rows
        transforms = (
            make_rows_transform(spec.env, spaces, setup.device if on_device else "cpu"),
            make_reward_transform(
                spec.env,
                getattr(spec.agent.algorithm, "gamma", 0.99),
                lanes=1 if pace.whole_episodes else spec.env.num_envs,
                largest_return=spec.agent.algorithm.largest_return,
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
        if learns:
            experience = _make_experience(spec, setup, preprocessor, pace)
        return Agent(
            algorithm,
            experience,
            preprocessor,
            spaces,
            num_envs=spec.env.num_envs,
            recurrence=recurrence,
            precision=setup.precision.describe(algorithm.modules.values()),
            spec=spec,
            learns=learns,
        )


def _check_parts(algorithm: object, spec: Spec) -> None:
    """Refuse an algorithm of the user's own that lacks what the agent asks of it."""
    parts = [name for name in vars(Algorithm) if not name.startswith("_")]
    if missing := [name for name in parts if not hasattr(algorithm, name)]:
        fix = f"{spec.agent.algorithm.name} lacks {', '.join(missing)}."
        page = "docs/how-to/your-own-algorithm.md says what an algorithm has."
        raise SpecError([Problem("agent.algorithm.name", f"{fix} {page}")], spec.name)


def _make_setup(
    spec: Spec, spaces: Spaces, pace: Pace, seed: int, device_index: int, learns: bool
) -> Setup:
    """What an algorithm is built for; decides whether compiling its steps is worth the time."""
    # Whole episodes vary in length, and a compiled step has one shape.
    steps = spec.env.max_frame / pace.frames * pace.gradient_steps
    # The step of a recurrent net is as many cells long as a sequence.
    seq_len = spec.agent.net.sequence_length or 0
    saved = spec.agent.algorithm_info.seconds_saved + 4e-4 * seq_len
    if spaces.has_images:
        saved = 1e-2  # more is read and written between the products
    compiles = (learns and not pace.whole_episodes) and is_worth_compiling(
        spec.meta.compile, seconds_saved=saved * steps, seconds_spent=15 + 1.2 * seq_len
    )
    # An act of a small net is shorter by about 35 microseconds.
    acts = spec.env.max_frame / spec.env.num_envs
    compiles_act = compiles and is_worth_compiling(
        spec.meta.compile, seconds_saved=35e-6 * acts, seconds_spent=1.5
    )
    device = resolve_device(spec.agent.net.gpu, device_index)
    starts_eagerly = spec.meta.compile == "auto" and device.type == "cpu"
    return Setup(
        spaces=spaces,
        num_envs=spec.env.num_envs,
        seeds=AgentSeeds.spawn(seed),
        device=device,
        compile=spec.meta.compile_mode if compiles else None,
        compile_act=spec.meta.compile_mode if compiles_act else None,
        eager_steps=math.ceil(EAGER_SECONDS / saved) if starts_eagerly else 0,
        threads=spec.meta.threads or 1,
        distributed=bool(spec.meta.distributed),
        precision=resolve_precision(spec, device) if learns else FLOAT32,
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
    # Without learning a rollout, whatever memory the spec names, counts the updates.
    if preprocessor.on_device or not info.learns:
        device = setup.device if preprocessor.on_device else None
        return RolloutBuffer(make_rollout(spec, setup.spaces, pace, seed, device), preprocessor)
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
    past = make_return_replay(spec, setup.spaces, seed, preprocessor)
    return ImitationBuffer(present, past, preprocessor, batches=batches_per_call(spec))


def _check_actions(spec: Spec, spaces: Spaces) -> None:
    info = spec.agent.algorithm_info
    if spaces.mask and not info.action_masks:
        fix = f"{info.name} cannot keep to the action mask that {spec.env.name} offers. Set it to"
        raise SpecError([Problem("env.action_mask", f"{fix} false, or use PPO or DQN.")], spec.name)
    if ("continuous" if spaces.is_continuous else spaces.action_type) in info.actions:
        return
    takes = " or ".join(sorted(info.actions, reverse=True)).replace("_", "-")
    fix = f"{info.name} takes {takes} actions; env.name: {spec.env.name} has {spaces.action_type}."
    raise SpecError([Problem("agent.algorithm.name", f"{fix} Use PPO.")], spec.name)
