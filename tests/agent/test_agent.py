"""The agent as a whole: determinism, saved state, divergence, and what reaches the env."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.learning import compiler
from slm_lab.agent.learning.learner import DivergenceError, check_finite
from slm_lab.spec import Spec, SpecError
from slm_lab.training.loop import Loop
from slm_lab.types import ActionType, Spaces, Transition

MakeSpec = Callable[..., Spec]
MakeTransition = Callable[..., Transition]

ALGORITHMS = ["PPO", "ActorCritic", "Reinforce"]
SPACES = Spaces((1,), "float32", "discrete", (2,))

# Everything that has a state: normalisers, schedules, both kinds of statistics.
STATEFUL: dict[str, Any] = {
    "env.normalize_obs": True,
    "env.normalize_reward": True,
    "agent.net.lr_scheduler_spec": {"name": "LinearToZero", "frame": 2000},
    "agent.algorithm.entropy_coef_spec": {"name": "no_decay", "start_val": 0.01},
}


def live(agent: Agent, steps: int, seed: int) -> list[list[int]]:
    """Let an agent act and learn in a made-up world of 4 envs; the actions it took."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(4, 1)).astype(np.float32)
    actions = []
    for step in range(steps):
        action = agent.act(obs)
        after = rng.normal(size=(4, 1)).astype(np.float32)
        reward = (action * obs[:, 0] + 1).astype(np.float32)
        chance = rng.random(4)
        terminated, truncated = chance < 0.1, chance > 0.9
        ends = terminated, truncated, terminated | truncated
        agent.observe(obs, action, Transition(after, after, reward, *ends))
        if agent.ready:
            agent.update(frame=4 * (step + 1))
        obs = after
        actions.append(action.tolist())
    return actions


def flatten(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def assert_same(a: Agent, b: Agent) -> None:
    ours, theirs = dict(flatten(a.state_dict())), dict(flatten(b.state_dict()))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, theirs[key]), key
        else:
            assert value == theirs[key], key


def stateful_spec(make_spec: MakeSpec, algorithm: str) -> Spec:
    critic = {} if algorithm == "Reinforce" else {"agent.algorithm.normalize_v_targets": True}
    return make_spec(algorithm, STATEFUL | critic)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_acts_and_learns_bit_for_bit_alike(
    make_spec: MakeSpec, algorithm: str
) -> None:
    first, second = (make_agent(stateful_spec(make_spec, algorithm), SPACES, seed=5) for _ in "ab")
    assert live(first, 64, seed=0) == live(second, 64, seed=0)
    assert_same(first, second)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_seed_has_other_weights_and_other_actions(
    make_spec: MakeSpec, algorithm: str
) -> None:
    first, second = (make_agent(make_spec(algorithm), SPACES, seed=seed) for seed in (5, 6))
    assert not torch.equal(
        first.algorithm.learner.state["net"], second.algorithm.learner.state["net"]
    )
    assert live(first, 10, seed=0) != live(second, 10, seed=0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_restored_agent_continues_bit_for_bit(make_spec: MakeSpec, algorithm: str) -> None:
    spec = stateful_spec(make_spec, algorithm)
    original, restored = (make_agent(spec, SPACES, seed=seed) for seed in (1, 2))
    live(original, 48, seed=0)  # whole rollouts: nothing is left in memory
    restored.load_state_dict(original.state_dict())
    assert_same(original, restored)
    assert live(original, 48, seed=1) == live(restored, 48, seed=1)
    assert_same(original, restored)


def test_a_saved_state_does_not_follow_the_agent(make_spec: MakeSpec) -> None:
    agent = make_agent(stateful_spec(make_spec, "PPO"), SPACES, seed=0)
    saved = agent.state_dict()
    before = {k: v.clone() for k, v in flatten(saved) if isinstance(v, Tensor)}
    live(agent, 32, seed=0)
    after = dict(flatten(saved))
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_global_random_streams_are_neither_used_nor_moved(
    make_spec: MakeSpec, algorithm: str
) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    agent = make_agent(make_spec(algorithm), SPACES, seed=0)
    actions = live(agent, 20, seed=0)
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(2)
    assert live(make_agent(make_spec(algorithm), SPACES, seed=0), 20, seed=0) == actions


def test_the_greedy_action_is_the_mode_and_spends_no_noise(make_spec: MakeSpec) -> None:
    first, second = (make_agent(make_spec("PPO"), SPACES, seed=0) for _ in "ab")
    obs = np.array([[0.5], [-0.5], [1.0]], np.float32)
    greedy = [first.act(obs, explore=False).tolist() for _ in range(3)]
    assert greedy[0] == greedy[1] == greedy[2]
    x = np.zeros((4, 1), np.float32)
    assert [first.act(x).tolist() for _ in "abc"] == [second.act(x).tolist() for _ in "abc"]


def test_compiled_acting_passes_the_state_and_gives_the_same_actions(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(function: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        return function

    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(compiler, "compile_graph", traced)
    for algorithm in ALGORITHMS:
        compiled = make_agent(make_spec(algorithm, {"meta.compile": "on"}), SPACES, seed=0)
        eager = make_agent(make_spec(algorithm), SPACES, seed=0)
        assert compiled.is_compiled
        assert not eager.is_compiled
        # Over several updates: compiled acting must see them, too.
        assert live(compiled, 48, seed=0) == live(eager, 48, seed=0)


@pytest.mark.parametrize(
    ("algorithm", "settings", "answer"),
    [
        # 5,000 rollouts of one step, 1.5 ms each: 7.5 s are not worth 15 of compiling.
        ("ActorCritic", {}, False),
        # Two more steps of the critic on each: 22.5 s are.
        ("ActorCritic", {"agent.algorithm.critic_iter": 2}, True),
        # 2,500 rollouts of two minibatches, once over and three times over.
        ("PPO", {"agent.algorithm.training_epoch": 1}, False),
        ("PPO", {"agent.algorithm.training_epoch": 3}, True),
    ],
)
def test_auto_compiles_by_the_number_of_gradient_steps(
    make_spec: MakeSpec,
    algorithm: str,
    settings: dict[str, Any],
    answer: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    spec = make_spec(algorithm, {"meta.compile": "auto", "env.max_frame": 160_000, **settings})
    assert make_agent(spec, SPACES, seed=0).is_compiled is answer


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number_stops_training_naming_frame_and_term(
    make_spec: MakeSpec, transition: MakeTransition, algorithm: str, bad: float
) -> None:
    agent = make_agent(make_spec(algorithm), SPACES, seed=0)
    obs = np.zeros((4, 1), np.float32)
    while not agent.ready:
        agent.observe(obs, agent.act(obs), transition(obs, obs, [1.0, bad, 1.0, 1.0]))
    with pytest.raises(DivergenceError, match=r"at frame 640: .*policy_loss = ") as error:
        agent.update(frame=640)
    assert error.value.frame == 640


def test_a_diverged_metric_is_told_from_the_finite_ones() -> None:
    with pytest.raises(DivergenceError) as error:
        check_finite({"value_loss": math.inf, "entropy": 0.5}, frame=7)
    message = str(error.value)
    assert "frame 7: value_loss = inf" in message
    assert "still finite: entropy = 0.5" in message
    assert check_finite({"entropy": 0.5}, frame=7) == {"entropy": 0.5}


@pytest.mark.parametrize(
    ("action_type", "sizes"),
    [
        ("discrete", (3,)),
        ("multi_discrete", (2, 3)),
        ("multi_binary", (2,)),
        ("continuous", (1,)),
        ("multi_continuous", (3,)),
    ],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_action_space_can_be_learned_from(
    make_spec: MakeSpec,
    transition: MakeTransition,
    algorithm: str,
    action_type: ActionType,
    sizes: tuple[int, ...],
) -> None:
    spaces = Spaces((1,), "float32", action_type, sizes)
    agent = make_agent(make_spec(algorithm), spaces, seed=0)
    obs = np.zeros((4, 1), np.float32)
    while not agent.ready:
        agent.observe(obs, agent.act(obs), transition(obs, obs, [0.0, 1.0, 2.0, 3.0]))
    assert agent.update(frame=64).opt_steps > 0


def test_samples_are_stored_as_drawn_and_only_the_env_gets_them_bounded(
    make_spec: MakeSpec,
) -> None:
    spaces = Spaces((1,), "float32", "multi_continuous", (2,))
    agent = make_agent(make_spec("PPO"), spaces, seed=0)
    raw = np.array([[-3.0, 0.5]], np.float32)
    assert agent.env_action(raw).tolist() == [[-1.0, 0.5]]
    assert raw.tolist() == [[-3.0, 0.5]]
    drawn = np.concatenate([agent.act(np.zeros((4, 1), np.float32)) for _ in range(50)])
    assert np.abs(drawn).max() > 1


def test_the_policy_learns_through_the_lens_it_acted_with(
    make_spec: MakeSpec, transition: MakeTransition
) -> None:
    # Statistics move after learning: the first update has seen the ratio pi / pi_old = 1.
    values = {
        "env.normalize_obs": True,
        "agent.algorithm.training_epoch": 1,
        "agent.algorithm.minibatch_size": 64,
    }
    agent = make_agent(make_spec("PPO", values), SPACES, seed=0)
    obs = np.full((4, 1), 7.0, np.float32)
    seen: list[float] = []
    update = agent.algorithm.update
    monitored: Any = agent.algorithm
    monitored.update = lambda rollout, frame: (
        seen.append(rollout.obs.max().item()) or update(rollout, frame)  # type: ignore[func-returns-value]
    )
    for _ in range(2):
        while not agent.ready:
            agent.observe(obs, agent.act(obs), transition(obs, obs, [1.0] * 4))
        agent.update(frame=64)
    assert seen == [7.0, 0.0]  # raw before there are statistics, then 7 - mean 7


@pytest.mark.parametrize("algorithm", ["DQN", "SoftActorCritic"])
def test_batch_norm_follows_what_is_learned_from_and_not_what_is_acted_on(
    make_spec: MakeSpec, algorithm: str
) -> None:
    agent = make_agent(make_spec(algorithm, {"agent.net.batch_norm": True}), SPACES, seed=0)

    def statistics() -> list[Tensor]:
        return [buffer.clone() for buffer in agent.algorithm.modules["net"].buffers()]

    before = statistics()
    agent.act(np.full((4, 1), 9.0, np.float32))
    agent.act(np.full((1, 1), 9.0, np.float32), explore=False)  # one env has no batch statistics
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(), strict=True))
    live(agent, 16, seed=0)  # 64 transitions, of which 32 come before learning
    assert not any(torch.equal(a, b) for a, b in zip(before, statistics(), strict=True))


def test_training_twice_from_one_seed_gives_one_curve(
    make_spec: MakeSpec, train: Callable[..., Loop]
) -> None:
    spec = make_spec("PPO", {"env.name": "probe/ActionAndObs-v0"})
    first, second = (train(spec, 128, seed=4) for _ in "ab")
    assert list(first.env.episodes.returns) == list(second.env.episodes.returns)
    assert_same(first.agent, second.agent)
    other = train(spec, 128, seed=5)
    assert list(first.env.episodes.returns) != list(other.env.episodes.returns)


@pytest.mark.parametrize(
    "algorithm",
    ["PPO", "ActorCritic", "Reinforce", "SARSA", "DQN", "SoftActorCritic", "CrossQ", "SIL", "TD3"],
)
def test_the_policy_in_torch_is_the_greedy_action_as_the_env_gets_it(
    make_spec: MakeSpec, algorithm: str
) -> None:
    spaces = SPACES
    if algorithm not in ("SARSA", "DQN"):
        spaces = Spaces((3,), "float32", "multi_continuous", (2,))
    spec = make_spec(algorithm, {"env.normalize_obs": True, "env.num_envs": 4})
    agent = make_agent(spec, spaces, seed=0)
    obs = 5 * np.random.default_rng(0).normal(size=(4, *spaces.obs_shape)).astype(np.float32)
    by_steps = agent.env_action(agent.act(obs, explore=False))
    assert np.array_equal(agent.policy(torch.from_numpy(obs)).numpy(), by_steps)


def test_an_agent_that_does_not_learn_has_no_memory_and_never_changes(make_spec: MakeSpec) -> None:
    spec = make_spec("DQN", STATEFUL_OFF_POLICY | {"agent.memory.max_size": 10**12})
    agent = make_agent(spec, SPACES, seed=0, learns=False)  # such a replay would fit nowhere
    before = dict(flatten(agent.state_dict()))
    live(agent, steps=300, seed=1)
    after = dict(flatten(agent.state_dict()))
    moved = [key for key in before if not _equal(before[key], after[key])]
    assert moved == ["algorithm.act.generator", "algorithm.act.next"]  # it drew actions
    assert not agent.ready
    with pytest.raises(RuntimeError, match="made to act only"):
        agent.update(frame=4)


STATEFUL_OFF_POLICY = {
    "env.normalize_obs": True,
    "env.normalize_reward": True,
    "env.max_frame": 10**12,
}


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


@pytest.mark.parametrize(
    ("key", "size"),
    [("agent.net.hid_layers", [10**6, 10**6]), ("agent.algorithm.time_horizon", 10**12)],
)
def test_what_no_machine_can_hold_is_a_mistake_in_the_spec(
    make_spec: MakeSpec, key: str, size: Any
) -> None:
    with pytest.raises(SpecError, match="does not fit into memory"):
        make_agent(make_spec("PPO").with_values({key: size}), SPACES, seed=0)
