"""Experience buffers: when an update is due, and how its batch is preprocessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.memory.replay import Replay, ReplayBuffer
from slm_lab.agent.memory.return_replay import ImitationBuffer
from slm_lab.agent.memory.rollout import RolloutBuffer, RolloutMemory
from slm_lab.agent.memory.sampler import PrioritizedSampler, UniformSampler
from slm_lab.agent.preprocessor import ObsNormalizer, Preprocessor, RewardTransform
from slm_lab.spec import Spec
from slm_lab.types import ImitationBatch, Metrics, Spaces, Transition

MakeSpec = Callable[..., Spec]
MakeTransition = Callable[..., Transition]
CPU = torch.device("cpu")
SPACES = Spaces((1,), "float32", "discrete", (2,))


def make_experience(
    num_envs: int = 1,
    preprocessor: Preprocessor | None = None,
    sampler: Any = None,
    n_step: int = 1,
    **pace: int,
) -> ReplayBuffer:
    replay = Replay(
        100,
        num_envs,
        SPACES,
        sampler or UniformSampler(0),
        batch_size=8,
        gamma=0.5,
        n_step=n_step,
    )
    options = {"start": 0, "every": 1, "batches": 1} | pace
    return ReplayBuffer(replay, preprocessor or Preprocessor(None, None, CPU), **options)


def add(
    experience: ReplayBuffer | ImitationBuffer | RolloutBuffer,
    make: MakeTransition,
    num_envs: int = 1,
    obs: float = 0.0,
    reward: float = 0.0,
    terminated: bool = False,
) -> None:
    row = np.full((num_envs, 1), obs, np.float32)
    step = make(row, row, [reward] * num_envs, [terminated] * num_envs)
    experience.add(row, np.zeros(num_envs, np.int64), step)


def due(experience: ReplayBuffer, make: MakeTransition, num_envs: int, steps: int) -> list[int]:
    """The transitions seen at each update."""
    found = []
    for t in range(1, steps + 1):
        add(experience, make, num_envs)
        if experience.ready:
            found.append(t * num_envs)
            experience.batch(frame=0)
    return found


def test_learning_starts_after_so_many_transitions_and_comes_every_so_many(
    transition: MakeTransition,
) -> None:
    assert due(make_experience(start=5, every=3), transition, 1, 16) == [6, 9, 12, 15]
    # Steps of 4: every 8 transitions is every second step.
    assert due(make_experience(4, start=8, every=8), transition, 4, 8) == [16, 24, 32]
    # Every 6: the first step at or past 12, 18, 24, ...
    assert due(make_experience(4, start=8, every=6), transition, 4, 8) == [12, 20, 24, 32]


@pytest.mark.parametrize(
    ("num_envs", "every", "minibatches"),
    [
        (1, 4, [0, 0, 0, 2, 0, 0, 0, 2]),
        (4, 4, [2, 2]),
        (8, 4, [4]),  # two calls became due by one step, of two minibatches each
        (8, 16, [0, 2]),
        (8, 3, [4, 6]),  # at 3 and 6, then at 9, 12 and 15
    ],
)
def test_all_training_calls_that_a_vector_step_makes_due_are_drawn(
    transition: MakeTransition, num_envs: int, every: int, minibatches: list[int]
) -> None:
    experience = make_experience(num_envs, every=every, batches=2)
    found = []
    for _ in minibatches:
        add(experience, transition, num_envs)
        found.append(len(experience.batch(frame=0).index) // 8 if experience.ready else 0)
    assert found == minibatches


def test_an_update_that_is_due_is_made_once(transition: MakeTransition) -> None:
    experience = make_experience()
    add(experience, transition)
    assert experience.ready
    experience.batch(frame=0)
    assert not experience.ready


def test_observations_are_kept_raw_and_seen_through_todays_statistics(
    transition: MakeTransition,
) -> None:
    preprocessor = Preprocessor(ObsNormalizer((1,), clip=None), None, CPU)
    experience = make_experience(preprocessor=preprocessor)
    for value in (1.0, 3.0):
        add(experience, transition, obs=value)
    batch = experience.batch(frame=0)
    # Mean 2, std 1: the first row, too, although it was added before there was a second.
    assert sorted(set(batch.obs.flatten().tolist())) == pytest.approx([-1.0, 1.0])
    assert sorted(set(batch.next_obs.flatten().tolist())) == pytest.approx([-1.0, 1.0])
    add(experience, transition, obs=5.0)
    assert min(experience.batch(frame=0).obs.flatten().tolist()) == pytest.approx(
        -2 / (8 / 3) ** 0.5
    )


def test_the_lens_of_a_replay_stands_still_once_the_rate_is_zero(
    transition: MakeTransition,
) -> None:
    # A policy that no longer learns cannot follow statistics that move under it.
    normalizer = ObsNormalizer((1,), None)
    experience = make_experience(preprocessor=Preprocessor(normalizer, None, CPU))
    for obs in (-1.0, 1.0):
        add(experience, transition, obs=obs)
    experience.batch(frame=0)
    experience.learned(Metrics({"lr": 0.0}, 1))
    resumed = make_experience(preprocessor=Preprocessor(normalizer, None, CPU))
    resumed.load_state_dict(experience.state_dict())
    add(experience, transition, obs=9.0)
    add(resumed, transition, obs=9.0)
    assert normalizer.state_dict()["count"] == 2

    experience.learned(Metrics({"lr": 1e-4}, 1))  # a scheduler may raise it again
    add(experience, transition, obs=9.0)
    assert normalizer.state_dict()["count"] == 3


@pytest.mark.parametrize(("lr", "moves"), [(1e-3, True), (0.0, False)])
def test_the_lens_of_a_rollout_stands_still_once_the_rate_is_zero(
    lr: float, moves: bool, transition: MakeTransition
) -> None:
    normalizer = ObsNormalizer((1,), None)
    memory = RolloutMemory(2, 1, SPACES)
    experience = RolloutBuffer(memory, Preprocessor(normalizer, None, CPU))
    for obs in (-1.0, 1.0):
        add(experience, transition, obs=obs)
    experience.batch(frame=0)
    experience.learned(Metrics({"lr": lr}, 1))
    assert normalizer.state_dict()["count"] == (2 if moves else 0)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize("kind", ["rollout", "replay"])
def test_the_return_whose_spread_scales_rewards_begins_anew_with_each_episode(
    transition: MakeTransition, kind: str, ending: str
) -> None:
    transform = RewardTransform(1, 0.5, scale=1.0, normalize=True, clip=None)
    preprocessor = Preprocessor(None, transform, CPU)
    experience: RolloutBuffer | ReplayBuffer
    if kind == "rollout":
        memory = RolloutMemory(2, 1, SPACES)
        experience = RolloutBuffer(memory, preprocessor)
    else:
        experience = make_experience(preprocessor=preprocessor, every=2)
    row, no_action = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)
    experience.add(row, no_action, transition([[0]], [[0]], [4.0], **{ending: [True]}))
    experience.add(row, no_action, transition([[0]], [[0]], [2.0]))
    experience.batch(frame=2)
    # Returns of 4 and 2: a standard deviation of 1. Carried over, it would be 4 and 2 + 4 / 2.
    assert transform(torch.tensor([4.0])).item() == pytest.approx(4.0)


def test_each_reward_of_an_n_step_return_is_clipped_not_their_sum(
    transition: MakeTransition,
) -> None:
    rewards = RewardTransform(1, 0.5, scale=1.0, normalize=False, clip=(-1.0, 1.0))
    experience = make_experience(preprocessor=Preprocessor(None, rewards, CPU), n_step=2)
    for _ in range(3):
        add(experience, transition, reward=10.0)
    batch = experience.batch(frame=0)
    returns = dict(zip(batch.index.tolist(), batch.reward.tolist(), strict=True))
    assert returns == {0: 1.5, 1: 1.5, 2: 1.0}


def test_errors_go_back_to_the_rows_they_came_from(transition: MakeTransition) -> None:
    sampler = PrioritizedSampler(100, alpha=1.0, epsilon=0.0, beta=1.0, anneal_frames=1, seed=0)
    experience = make_experience(sampler=sampler)
    for _ in range(8):
        add(experience, transition)
    batch = experience.batch(frame=0)
    error = batch.index.float() + 2
    experience.learned(Metrics({}, 1, td_error=-error))
    assert sampler.state_dict()["priority"][:8].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def test_a_prioritised_dqn_teaches_its_memory(
    make_spec: MakeSpec, transition: MakeTransition
) -> None:
    memory = {
        "name": "PrioritizedReplay",
        "batch_size": 32,
        "max_size": 64,
        "alpha": 1.0,
        "epsilon": 0.0,
    }
    agent = make_agent(make_spec("DQN", {"agent.memory": memory}), SPACES, seed=0)
    obs = np.zeros((4, 1), np.float32)
    while not agent.ready:
        agent.observe(obs, agent.act(obs), transition(obs, obs, [0.0, 1.0, 2.0, 5.0], [True] * 4))
    metrics = agent.update(frame=36)
    assert metrics.td_error is not None
    assert metrics.td_error.shape == (64,)  # two minibatches
    priority = replay_of(agent).state_dict()["sampler"]["priority"]
    expected = {round(abs(e), 5) for e in metrics.td_error.tolist()} | {1.0}
    assert {round(p, 5) for p in priority.tolist() if p} <= expected
    assert len(set(priority.tolist())) > 3


def replay_of(agent: Agent) -> Replay:
    experience = agent.experience
    assert isinstance(experience, ReplayBuffer)
    assert isinstance(experience._replay, Replay)
    return experience._replay


def imitation(agent: Agent) -> ImitationBuffer:
    assert isinstance(agent.experience, ImitationBuffer)
    return agent.experience


def take(agent: Agent, make: MakeTransition, *, terminated: bool) -> ImitationBatch:
    experience = imitation(agent)
    while not experience.ready:
        add(experience, make, num_envs=4, reward=7.0, terminated=terminated)
    return experience.batch(frame=0)


def test_there_is_a_past_once_it_fills_a_batch(
    make_spec: MakeSpec, transition: MakeTransition
) -> None:
    values = {"agent.algorithm.training_frequency": 2, "agent.algorithm.training_iter": 3}
    agent = make_agent(make_spec("SIL", values), SPACES, seed=0)
    # Two steps of 4 envs: none has ended, then 8 rows of the 16 that a batch takes, then 16.
    assert take(agent, transition, terminated=False).past is None
    assert take(agent, transition, terminated=True).past is not None  # 8 + 8 rows
    past = take(agent, transition, terminated=True).past
    assert past is not None
    assert past.return_.shape == (48,)  # three minibatches of 16


def test_past_returns_are_made_of_rewards_as_they_are_learned_from(
    make_spec: MakeSpec, transition: MakeTransition
) -> None:
    values = {"env.clip_reward": 1.0, "agent.algorithm.training_frequency": 4}
    agent = make_agent(make_spec("SIL", values), SPACES, seed=0)
    batch = take(agent, transition, terminated=True)
    assert batch.past is not None
    assert batch.past.return_.unique().tolist() == [1.0]
    assert batch.rollout.reward.unique().tolist() == [1.0]


@pytest.mark.parametrize("algorithm", ["SIL", "PPOSIL"])
def test_past_and_present_returns_are_on_one_scale_under_normalised_rewards(
    make_spec: MakeSpec, transition: MakeTransition, algorithm: str
) -> None:
    values = {"env.normalize_reward": True, "env.clip_reward": 1e9}
    agent = make_agent(make_spec(algorithm, values), SPACES, seed=0)
    experience = imitation(agent)
    for reward in (1.0, 100.0, 10.0):  # the scale of later rewards changes what a 1 counts
        while not experience.ready:
            add(experience, transition, num_envs=4, reward=reward, terminated=True)
        batch = experience.batch(frame=0)
    assert batch.past is not None
    ten = batch.rollout.reward.unique().item()
    expected = {round(ten * share, 4) for share in (0.1, 1, 10)}
    assert {round(r, 4) for r in batch.past.return_.tolist()} <= expected


def test_what_the_past_had_to_teach_becomes_its_priority(
    make_spec: MakeSpec, transition: MakeTransition
) -> None:
    values = {
        "agent.memory.sil_replay_name": "PrioritizedReplay",
        "agent.memory.alpha": 1.0,
        "agent.memory.epsilon": 0.0,
        "agent.algorithm.training_frequency": 4,
        "agent.algorithm.training_iter": 1,
    }
    agent = make_agent(make_spec("SIL", values), SPACES, seed=0)
    past = take(agent, transition, terminated=True).past
    assert past is not None
    imitation(agent).learned(Metrics({}, 1, td_error=past.index.float()))
    priority = imitation(agent)._past._sampler.state_dict()["priority"][:16]
    drawn = set(past.index.tolist())
    assert priority.tolist() == [float(i) if i in drawn else 1.0 for i in range(16)]
