"""A replay of frame stacks gives exactly what one that stores every stack whole would give."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.memory.make import replay_bytes
from slm_lab.agent.memory.replay import FrameReplay, Replay, ReplayBuffer
from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.memory.sampler import PrioritizedSampler, UniformSampler
from slm_lab.spec import load_spec
from slm_lab.types import ReplayBatch, Spaces, Transition

FRAME = (2, 3)


class EveryRow(UniformSampler):
    """Draws each filled row once, in order, so that a test sees the whole replay."""

    def __init__(self) -> None:
        super().__init__(seed=0)

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        return torch.arange(size)


@dataclass
class Game:
    """Several envs whose every frame is told apart by its number. Events of an env in a step:

    "." goes on, "T" terminates, "C" is cut by time, "L" loses a life and goes on; the next episode
    starts with a stack of different frames after "T", and of copies of one after "C".
    """

    num_envs: int
    stack: int

    def __post_init__(self) -> None:
        self._count = 0
        self.obs = np.stack([self._start(copies=False) for _ in range(self.num_envs)])

    def step(self, events: str) -> Transition:
        next_obs = np.roll(self.obs, -1, axis=1)
        for env in range(self.num_envs):
            next_obs[env, -1] = self._frame()
        self.obs = next_obs
        if set(events) & set("TC"):
            self.obs = next_obs.copy()
            for env, event in enumerate(events):
                if event in "TC":
                    self.obs[env] = self._start(copies=event == "C")
        return Transition(
            obs=self.obs,
            next_obs=next_obs,
            reward=np.arange(self.num_envs, dtype=np.float32) + self._count,
            terminated=np.array([event in "TL" for event in events]),
            truncated=np.array([event == "C" for event in events]),
            episode_end=np.array([event in "TC" for event in events]),
        )

    def _start(self, *, copies: bool) -> np.ndarray:
        if copies:
            return np.stack([self._frame()] * self.stack)
        return np.stack([self._frame() for _ in range(self.stack)])

    def _frame(self) -> np.ndarray:
        self._count += 1
        return np.full(FRAME, self._count % 256, np.uint8)


def stacked(stack: int) -> Spaces:
    return Spaces((stack, *FRAME), "uint8", "discrete", (2,), frame_stack=stack)


def frame_replay(capacity: int, num_envs: int, stack: int, n_step: int = 1) -> FrameReplay:
    options: dict[str, Any] = {"batch_size": 4, "gamma": 0.5, "n_step": n_step}
    return FrameReplay(capacity, num_envs, stacked(stack), EveryRow(), **options)


def whole_replay(capacity: int, num_envs: int, stack: int, n_step: int = 1) -> Replay:
    options: dict[str, Any] = {"batch_size": 4, "gamma": 0.5, "n_step": n_step}
    return Replay(capacity, num_envs, stacked(stack), EveryRow(), **options)


def play(game: Game, steps: list[str], *replays: Replay | FrameReplay) -> Iterator[int]:
    for step, events in enumerate(steps):
        obs, action = game.obs, np.arange(game.num_envs) + step
        transition = game.step(events)
        for replay in replays:
            replay.add(obs, action, transition)
        yield step


def assert_same(ours: ReplayBatch, reference: ReplayBatch) -> None:
    for field in fields(ReplayBatch):
        ours_column, expected = getattr(ours, field.name), getattr(reference, field.name)
        assert ours_column.dtype == expected.dtype, field.name
        assert torch.equal(ours_column, expected), field.name


@st.composite
def games(draw: st.DrawFn) -> tuple[int, int, int, int, list[str]]:
    num_envs, stack = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    capacity = draw(st.integers(1, 7)) * num_envs
    event = st.sampled_from("....TCL")
    steps = st.lists(st.text(event, min_size=num_envs, max_size=num_envs), max_size=25)
    return num_envs, stack, capacity, draw(st.integers(1, 3)), draw(steps)


@given(games())
@settings(deadline=None)
def test_every_row_is_what_a_replay_of_whole_stacks_holds(game_keys):
    num_envs, stack, capacity, n_step, steps = game_keys
    ours = frame_replay(capacity, num_envs, stack, n_step=n_step)
    reference = whole_replay(capacity, num_envs, stack, n_step=n_step)
    for _ in play(Game(num_envs, stack), steps, ours, reference):
        assert_same(ours.sample(1, frame=0), reference.sample(1, frame=0))


@given(games(), st.integers(0, 25))
@settings(deadline=None)
def test_a_saved_replay_goes_on_as_if_it_had_not_been_saved(game_keys, saved_at):
    num_envs, stack, capacity, n_step, steps = game_keys
    ours = frame_replay(capacity, num_envs, stack, n_step=n_step)
    reference = whole_replay(capacity, num_envs, stack, n_step=n_step)
    for step in play(Game(num_envs, stack), steps, ours, reference):
        if step == saved_at:
            restored = frame_replay(capacity, num_envs, stack, n_step=n_step)
            for _ in play(Game(num_envs, stack), ["." * num_envs] * 3, restored):
                pass  # whatever it held before
            restored.load_state_dict(deepcopy(ours.state_dict()))
            ours = restored
            play_on = steps[step + 1 :]
            assert_same(ours.sample(1, frame=0), reference.sample(1, frame=0))
            break
    else:
        return
    game = Game(num_envs, stack)  # after a resume the env may show a new game
    for _ in play(game, play_on, ours, reference):
        assert_same(ours.sample(1, frame=0), reference.sample(1, frame=0))


def test_each_frame_is_kept_once():
    """100 steps without an ending bring 100 frames, besides the stack the game began with."""
    replay = frame_replay(100, 1, 4)
    for _ in play(Game(1, 4), ["."] * 100, replay):
        pass
    state = replay.state_dict()
    assert state["frames"].slots == 100 + 4
    assert len(state["starts"]["used"]) == 4


def test_a_lost_life_starts_no_new_stack_but_cuts_the_bootstrap():
    replay = frame_replay(8, 1, 4)
    for _ in play(Game(1, 4), [".", "L", "."], replay):
        pass
    assert len(replay.state_dict()["starts"]["used"]) == 4
    assert replay.sample(1, frame=0).discount.tolist() == [0.5, 0.0, 0.5]
    assert replay.sample(1, frame=0).obs[2, :, 0, 0].tolist() == [3, 4, 5, 6]


def test_a_life_lost_while_another_game_ends_starts_no_stack_either():
    replay = frame_replay(16, 2, 4)
    for _ in play(Game(2, 4), ["..", "LT", ".."], replay):
        pass
    assert len(replay.state_dict()["starts"]["used"]) == 3 * 4  # two first games and the new one


def test_starts_make_room_once_no_row_shows_them_and_not_before():
    """Thirty slots, an ending at every step: far more starts pass than are ever kept."""
    ours, reference = frame_replay(30, 1, 4), whole_replay(30, 1, 4)
    sizes = []
    for _ in play(Game(1, 4), ["T"] * 400, ours, reference):
        sizes.append(len(ours.state_dict()["starts"]["frames"]))
        assert_same(ours.sample(1, frame=0), reference.sample(1, frame=0))
    assert sizes[-1] == sizes[100] < 300


def test_priorities_reach_the_rows_they_were_given_for():
    sampler = PrioritizedSampler(8, alpha=1.0, epsilon=1e-6, beta=1.0, anneal_frames=100, seed=0)
    replay = FrameReplay(8, 1, stacked(2), sampler, batch_size=64, gamma=0.5)
    for _ in play(Game(1, 2), ["."] * 8, replay):
        pass
    replay.update_priorities(torch.arange(8), torch.tensor([0.0] * 5 + [1.0] + [0.0] * 2))
    assert (replay.sample(1, frame=0).index == 5).float().mean() > 0.9


@pytest.mark.parametrize("stack", [1, 4])
def test_the_predicted_size_is_the_size(stack):
    """A million Atari transitions: 57 GB with whole stacks, 7 GB with frames."""
    spaces = Spaces((4, 84, 84), "uint8", "discrete", (6,), frame_stack=stack)
    size = replay_bytes(1_000_000, spaces, keeps_frames=stack > 1)
    row = {1: 2 * 4 * 84 * 84, 4: 84 * 84 + 2 * 4 * 4}[stack] + 8 + 4 + 2
    assert size == 1_000_000 * row
    if stack == 4:
        replay = FrameReplay(1000, 1, spaces, EveryRow(), batch_size=1, gamma=0.9)
        state = replay.state_dict()
        held = _held_bytes(state)
        assert held == pytest.approx(size / 1000, rel=0.01)


def _held_bytes(state: object) -> int:
    match state:
        case Tensor():
            return state.numel() * state.itemsize
        case Ring():
            return _held_bytes(dict(state.columns))
        case dict():
            return sum(_held_bytes(value) for value in state.values())
    return 0


def test_an_agent_for_stacked_images_keeps_frames():
    spec = load_spec(
        "slm_lab/spec/benchmark/dqn/dqn_atari.json",
        "dqn_atari",
        ["env=ALE/Pong-v5", "agent.memory.max_size=1000"],
    )
    spaces = Spaces((4, 84, 84), "uint8", "discrete", (6,), frame_stack=4)
    agent = make_agent(spec, spaces, seed=0)
    experience = agent.experience
    assert isinstance(experience, ReplayBuffer)
    assert isinstance(experience._replay, FrameReplay)
