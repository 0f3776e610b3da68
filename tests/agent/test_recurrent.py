"""RecurrentNet against torch's own cells, and an agent that remembers its episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.ppo import shuffled_minibatches
from slm_lab.agent.net.mlp import make_net
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.env.make import make_env
from slm_lab.spec import RecurrentNetSpec, Spec, SpecError
from slm_lab.training.loop import Loop, evaluate
from slm_lab.types import Spaces, Transition
from tests.lives import LosesLives

MakeSpec = Callable[..., Spec]
CELLS = ["GRU", "LSTM", "RNN"]
OBS, HIDDEN = 2, 5

NET: dict[str, Any] = {
    "type": "RecurrentNet",
    "fc_hid_layers": [16],
    "hid_layers_activation": "tanh",
    "rnn_hidden_size": 16,
    "seq_len": 8,
    "optim_spec": {"name": "Adam", "lr": 0.01},
}


def recurrent(make_spec: MakeSpec, algorithm: str, **values: Any) -> Spec:
    """A spec with a recurrent net; keys of the net are given bare, others dotted."""
    net = {k: v for k, v in values.items() if "." not in k}
    dotted = {k: v for k, v in values.items() if "." in k}
    if algorithm in ("DQN", "DoubleDQN"):
        net |= {"update_type": "polyak", "polyak_coef": 0.05}
    return make_spec(algorithm, {"agent.net": NET | net} | dotted)


def net_of(
    cell: Any, *, layers: int = 1, seq_len: int = 8, fc: tuple[int, ...] = (4,)
) -> RecurrentNet:
    torch.manual_seed(0)
    spec = RecurrentNetSpec(
        type="RecurrentNet",
        cell_type=cell,
        fc_hid_layers=fc,
        hid_layers_activation="tanh",
        rnn_hidden_size=HIDDEN,
        rnn_num_layers=layers,
        seq_len=seq_len,
    )
    net = make_net(spec, (OBS,), (3,))
    assert isinstance(net, RecurrentNet)
    return net


def rows_of(obs: Tensor, memory: Tensor, restart: Tensor | None = None) -> Tensor:
    """obs [..., OBS] and memory [..., S] -> rows."""
    flag = torch.zeros(*obs.shape[:-1], 1) if restart is None else restart.unsqueeze(-1)
    return torch.cat([obs, flag, memory], -1)


def by_torch(net: RecurrentNet, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and final memory of torch's own module on a sequence [T, B, OBS]."""
    parts = memory.view(memory.shape[0], net.rnn_model.num_layers, -1, HIDDEN).permute(2, 1, 0, 3)
    start = [part.contiguous() for part in parts]
    is_lstm = isinstance(net.rnn_model, torch.nn.LSTM)
    hidden, after = net.rnn_model(net.fc_model(obs), tuple(start) if is_lstm else start[0])
    after = torch.stack(list(after) if is_lstm else [after])  # [parts, layers, B, H]
    return net.tails(hidden).flatten(0, 1), after.permute(2, 1, 0, 3).flatten(1)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_is_read_as_torch_reads_it(cell: str, layers: int) -> None:
    net = net_of(cell, layers=layers)
    obs, start = torch.randn(6, 3, OBS), torch.randn(3, net.memory_size)
    expected, _ = by_torch(net, obs, start)
    memory = torch.zeros(6, 3, net.memory_size)
    memory[0] = start  # of the later rows none is asked
    torch.testing.assert_close(net(rows_of(obs, memory))[0], expected)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_one_step_moves_the_memory_as_torch_does(cell: str, layers: int) -> None:
    net = net_of(cell, layers=layers, fc=())
    obs, start = torch.randn(3, OBS), torch.randn(3, net.memory_size)
    expected, after = by_torch(net, obs[None], start)
    rows = rows_of(obs, start)
    torch.testing.assert_close(net(rows)[0], expected)
    torch.testing.assert_close(net.remember(rows), after)


@pytest.mark.parametrize("cell", CELLS)
def test_a_restart_inside_a_sequence_takes_the_memory_of_its_row(cell: str) -> None:
    net = net_of(cell)
    obs, start = torch.randn(5, 2, OBS), torch.randn(2, net.memory_size)
    memory = torch.zeros(5, 2, net.memory_size)
    memory[0] = start
    restart = torch.zeros(5, 2)
    restart[3, 1] = 1.0  # the second env begins an episode at step 3, from an empty memory
    outputs = net(rows_of(obs, memory, restart))[0].view(5, 2, -1)
    whole = by_torch(net, obs, start)[0].view(5, 2, -1)
    anew = by_torch(net, obs[3:], torch.zeros_like(start))[0].view(2, 2, -1)
    torch.testing.assert_close(outputs[:, 0], whole[:, 0])
    torch.testing.assert_close(outputs[:3, 1], whole[:3, 1])
    torch.testing.assert_close(outputs[3:, 1], anew[:, 1])


@pytest.mark.parametrize("steps", [4, 5, 7])
def test_long_rollouts_are_cut_into_sequences_from_stored_memory(steps: int) -> None:
    net = net_of("GRU", seq_len=4)
    obs = torch.randn(steps, 3, OBS)
    memory = torch.zeros(steps, 3, net.memory_size)
    for t in range(steps - 1):
        memory[t + 1] = net.remember(rows_of(obs[t], memory[t])).detach()
    expected, _ = by_torch(net, obs, memory[0])
    torch.testing.assert_close(net(rows_of(obs, memory))[0], expected)


def test_the_gradient_reaches_back_to_the_start_of_its_sequence() -> None:
    net = net_of("GRU", seq_len=2)
    obs = torch.randn(4, 1, OBS, requires_grad=True)
    outputs = net(rows_of(obs, torch.zeros(4, 1, net.memory_size)))[0]
    outputs[3].sum().backward()
    assert obs.grad is not None
    # 0 1 | 2 3
    assert (obs.grad.abs().sum((1, 2)) > 0).tolist() == [False, False, True, True]


def test_checkpoint_names_are_those_of_torch() -> None:
    names = set(net_of("LSTM").state_dict())
    assert {"fc_model.0.weight", "rnn_model.weight_ih_l0", "rnn_model.bias_hh_l0"} <= names
    assert "tails.0.weight" in names


def test_images_are_refused(make_spec: MakeSpec) -> None:
    spec = recurrent(make_spec, "PPO")
    with pytest.raises(SpecError, match=r"agent\.net\.type: RecurrentNet reads vectors"):
        make_net(spec.agent.net, (1, 84, 84), (2,))


# The agent


def play(agent: Agent, spec: Spec, steps: int) -> Any:
    """Act and observe on a fresh env; the env afterwards."""
    env = make_env(spec.env, seed=0)
    obs = env.reset()
    for _ in range(steps):
        action = agent.act(obs)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs
    return env


def fresh(spec: Spec) -> Agent:
    return make_agent(spec, make_env(spec.env, seed=0).spaces, seed=0)


def test_the_memory_is_carried_over_steps_and_emptied_at_each_ending(
    make_spec: MakeSpec, transition: Callable[..., Transition]
) -> None:
    spec = recurrent(
        make_spec, "Reinforce", **{"env.num_envs": 2, "agent.algorithm.training_frequency": 3}
    )
    agent: Any = make_agent(spec, Spaces((1,), "float32", "discrete", (2,)), seed=0)
    first, second, third = [[0.5], [1.0]], [[-1.0], [0.2]], [[0.3], [0.7]]
    last = [[0.9], [0.1]]
    for obs, after, final, terminated, truncated in (
        (first, second, second, [False, False], [False, False]),
        (second, third, [[8.0], [0.7]], [True, False], [False, False]),
        (third, last, [[0.9], [9.0]], [False, False], [False, True]),
    ):
        seen = np.array(obs, np.float32)
        step = transition(after, final, [0.0, 0.0], terminated, truncated)
        agent.observe(seen, agent.act(seen), step)
    rollout = agent.experience.batch(0)
    net = agent.algorithm.modules["net"]

    def memory_after(*obs: list[list[float]], env: int) -> Tensor:
        seen = torch.tensor([o[env] for o in obs]).unsqueeze(1)
        hidden: Tensor = net.rnn_model(net.fc_model(seen))[1]
        return hidden[0, 0]

    memory = rollout.obs[..., 2:]  # [T+1, B, H] behind obs and restart
    assert (memory[0] == 0).all()
    torch.testing.assert_close(memory[1, 0], memory_after(first, env=0))
    torch.testing.assert_close(memory[2, 1], memory_after(first, second, env=1))
    assert (memory[2, 0] == 0).all()  # env 0 began an episode
    torch.testing.assert_close(memory[3, 0], memory_after(third, env=0))
    assert rollout.obs[..., 1].tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]
    # The successor of the truncated step still belongs to the old episode.
    assert rollout.final_obs[0, 0].item() == 9.0
    torch.testing.assert_close(rollout.final_obs[0, 2:], memory_after(first, second, third, env=1))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shared", [True, False])
def test_the_first_ratio_of_ppo_is_one(make_spec: MakeSpec, cell: str, shared: bool) -> None:
    values = {"env.name": "probe/RecallFirst-v0", "env.normalize_obs": True}
    spec = recurrent(make_spec, "PPO", cell_type=cell, shared=shared, seq_len=4, **values)
    agent: Any = fresh(spec)
    env = play(agent, spec, 16)
    agent.update(64)  # the second rollout starts amid episodes, with other weights and statistics
    obs = env.obs
    for _ in range(16):
        action = agent.act(obs)
        step = env.step(action)
        agent.observe(obs, action, step)
        obs = step.obs
    algorithm = agent.algorithm
    rollout = agent.experience.batch(0)
    assert (rollout.obs[0, :, 2:] != 0).any()
    rows, action, old_log_prob, _, _, old_value = algorithm._rows(algorithm.evaluate(rollout))
    for index in shuffled_minibatches(16, 4, 32, 4, torch.Generator()):
        sequences = algorithm.nets.net_states[0].in_sequences(rows[index])
        policy, value = algorithm.nets(algorithm.learner.state, sequences)
        ratio = (policy.log_prob(action[index]) - old_log_prob[index]).exp()
        torch.testing.assert_close(ratio, torch.ones(32), atol=1e-6, rtol=0)
        torch.testing.assert_close(value, old_value[index], atol=1e-6, rtol=0)


def test_drawn_sequences_and_their_successors_equal_their_single_rows(make_spec: MakeSpec) -> None:
    # No update has made the stored memories stale, so both ways must give the same Q values, also
    # where episodes end inside a sequence.
    values = {"env.name": "probe/RecallFirst-v0", "agent.algorithm.training_start_step": 100}
    spec = recurrent(make_spec, "DQN", **values)
    agent: Any = fresh(spec)
    play(agent, spec, 40)
    batch = agent.experience.batch(0)
    net = agent.algorithm.modules["net"]
    assert (batch.obs[8:, 1] > 0).any()  # restarts beyond the first step of the 4 sequences
    for rows in (batch.obs[:32], batch.next_obs[:32]):
        torch.testing.assert_close(net(agent.algorithm._q.in_sequences(rows))[0], net(rows)[0])


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_target_of_a_sequence_is_that_of_its_single_rows(
    make_spec: MakeSpec, n_step: int
) -> None:
    # Episodes of 6 steps end inside sequences of 8. Nothing was learned yet, so the state stored
    # with each successor is what its own episode left behind.
    values = {
        "env.name": "probe/RecallFirst-v0",
        "agent.algorithm.training_start_step": 100,
        "agent.algorithm.training_iter": 1,
        "agent.algorithm.n_step": n_step,
    }
    spec = recurrent(make_spec, "DQN", **values)
    agent: Any = fresh(spec)
    play(agent, spec, 40)
    batch = agent.experience.batch(0)
    net = agent.algorithm.modules["net"]
    q_value = net(batch.obs)[0].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    target = batch.reward + batch.discount * net(batch.next_obs)[0].amax(-1)
    metrics = agent.algorithm.update(batch, frame=100)
    torch.testing.assert_close(metrics.td_error, target - q_value)


def test_whole_sequences_make_a_minibatch() -> None:
    first, second = shuffled_minibatches(4, 3, 6, 2, torch.Generator().manual_seed(0))
    # Rows are t * 3 + env; a minibatch is 2 steps of 3 sequences, which start at t = 0 or 2.
    for index in (first, second):
        steps = index.view(2, 3)
        assert torch.equal(steps[1], steps[0] + 3)
        assert set((steps[0] // 3).tolist()) <= {0, 2}
    assert sorted(torch.cat([first, second]).tolist()) == list(range(12))


def test_evaluating_elsewhere_leaves_the_training_memory_alone(make_spec: MakeSpec) -> None:
    spec = recurrent(make_spec, "PPO", **{"env.name": "probe/RepeatPrevious-v0"})
    agent = fresh(spec)
    play(agent, spec, 3)
    before = agent.state_dict()["recurrent_state"]["rows"]
    assert (before[:, 2:] != 0).any()
    evaluate(agent, make_env(spec.with_values({"env.num_envs": 7}).env, seed=1))
    assert torch.equal(agent.state_dict()["recurrent_state"]["rows"], before)
    with pytest.raises(ValueError, match="needs a recurrent state of its own"):
        agent.act(np.zeros((4, 1), np.float32), explore=False)


def test_a_lost_life_empties_the_memory_where_it_is_learned_from_and_where_it_is_scored(
    make_spec: MakeSpec,
) -> None:
    """Learning is cut at a lost life, so no policy was ever trained to remember across it."""
    spec = recurrent(make_spec, "PPO", **{"env.name": "CartPole-v1", "env.num_envs": 1})
    training, scoring = fresh(spec), fresh(spec)
    envs = [LosesLives(make_env(spec.env, seed=0), steps=3) for _ in range(2)]
    recurrent_state = scoring.initial_recurrent_state(1)
    kept = training._recurrent_state
    assert recurrent_state is not None
    assert kept is not None
    for env in envs:
        env.reset()
    for _ in range(7):
        action = training.act(envs[0].obs)
        training.observe(envs[0].obs, action, envs[0].step(action))
        scoring.act(envs[1].obs, explore=False, recurrent_state=recurrent_state)
        transition = envs[1].step(action)
        scoring.advance(recurrent_state, transition)
        assert not transition.episode_end.any()
        assert np.array_equal(recurrent_state.latest[:, 4:], kept.latest[:, 4:])
        assert (recurrent_state.latest[:, 5:] == 0).all() == transition.terminated[0]


def test_a_restored_agent_goes_on_where_it_was_in_its_episodes(make_spec: MakeSpec) -> None:
    values = {"env.name": "probe/RepeatPrevious-v0", "agent.algorithm.training_frequency": 64}
    spec = recurrent(make_spec, "ActorCritic", shared=True, **values)
    agent = fresh(spec)
    env = play(agent, spec, 3)
    other = fresh(spec)
    play(other, spec, 1)
    other.load_state_dict(agent.state_dict())
    obs = env.obs
    for _ in range(12):  # past endings
        action = agent.act(obs)
        assert other.act(obs).tolist() == action.tolist()
        step = env.step(action)
        agent.observe(obs, action, step)
        other.observe(obs, action, step)
        obs = step.obs
        carried = [a.state_dict()["recurrent_state"]["rows"] for a in (agent, other)]
        assert torch.equal(*carried)


def test_observations_are_normalised_and_memories_are_not(make_spec: MakeSpec) -> None:
    values = {"env.name": "probe/RepeatPrevious-v0", "env.normalize_obs": True, "env.clip_obs": 0.5}
    agent: Any = fresh(recurrent(make_spec, "PPO", **values))
    row = torch.tensor([[3.0, 1.0, *[4.0] * 32]])  # actor and critic remember 16 each
    assert agent._preprocessor.obs(row).tolist() == [[0.5, 1.0, *[4.0] * 32]]
    agent._preprocessor.observe_obs(row)
    assert agent.statistics()["obs_normalizer"]["mean"].tolist() == [3.0]


@pytest.mark.parametrize("episodes", [False, True])
@pytest.mark.parametrize("algorithm", ["Reinforce", "ActorCritic", "SARSA"])
def test_whole_episodes_and_fixed_rollouts_are_both_learned_from(
    make_spec: MakeSpec, train: Callable[..., Loop], algorithm: str, episodes: bool
) -> None:
    values: dict[str, Any] = {"env.name": "probe/RecallFirst-v0", "seq_len": 4}
    if episodes:
        values |= {"agent.memory": {"name": "OnPolicyReplay"}}
    loop = train(recurrent(make_spec, algorithm, **values), frames=400)
    assert loop.clock.updates > 0
    assert loop.metrics is not None
    assert loop.metrics.values["grad_norm"] > 0


@pytest.mark.parametrize("algorithm", ["SIL", "PPOSIL", "VanillaDQN", "DoubleDQN"])
def test_every_other_algorithm_that_may_be_recurrent_learns(
    make_spec: MakeSpec, train: Callable[..., Loop], algorithm: str
) -> None:
    values = {"env.name": "probe/RecallFirst-v0", "cell_type": "LSTM", "rnn_num_layers": 2}
    loop = train(recurrent(make_spec, algorithm, **values), frames=300)
    assert loop.metrics is not None
    assert loop.metrics.values["grad_norm"] > 0


def test_prioritised_sequences_are_learned_from(
    make_spec: MakeSpec, train: Callable[..., Loop]
) -> None:
    memory = {
        "name": "PrioritizedReplay",
        "batch_size": 32,
        "max_size": 200,
        "alpha": 0.6,
        "epsilon": 0.01,
    }
    values = {"env.name": "probe/RecallFirst-v0", "agent.memory": memory}
    loop = train(recurrent(make_spec, "DoubleDQN", **values), frames=400)  # the ring goes round
    assert loop.clock.updates > 0


@pytest.mark.parametrize("algorithm", ["PPO", "ActorCritic"])
def test_continuous_actions_may_depend_on_the_past(
    make_spec: MakeSpec, train: Callable[..., Loop], algorithm: str
) -> None:
    values = {"env.name": "probe/ContinuousAction-v0", "log_std_init": -0.5}
    loop = train(recurrent(make_spec, algorithm, **values), frames=200)
    assert loop.clock.updates > 0


# Compiled


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "cell"), [("PPO", "GRU"), ("DQN", "LSTM")])
def test_compiled_and_eager_steps_agree(make_spec: MakeSpec, algorithm: str, cell: str) -> None:
    values = {
        "env.name": "probe/RecallFirst-v0",
        "agent.algorithm.training_frequency" if algorithm == "DQN" else "env.max_t": 4,
    }
    nets = []
    for compile in ("off", "on"):
        spec = recurrent(
            make_spec,
            algorithm,
            cell_type=cell,
            seq_len=2,
            rnn_hidden_size=4,
            **values,
            **{"meta.compile": compile},
        )
        agent: Any = fresh(spec)
        play(agent, spec, 16)
        agent.update(64)
        assert agent.is_compiled == (compile == "on")
        nets.append(agent.algorithm.learner.state["net"].clone())
    torch.testing.assert_close(nets[0], nets[1], atol=1e-5, rtol=1e-4)


# The memory task: what is shown first must be known at the end


def score(agent: Agent, make_spec: MakeSpec) -> float:
    """Mean greedy return over 64 episodes."""
    many = make_spec("PPO", {"env.name": "probe/RecallFirst-v0", "env.num_envs": 64})
    return evaluate(agent, make_env(many.env, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "frames"), [("ActorCritic", 6000), ("PPO", 5000)])
def test_a_recurrent_agent_recalls_what_an_mlp_cannot(
    make_spec: MakeSpec, train: Callable[..., Loop], algorithm: str, frames: int
) -> None:
    on_probe = {"env.name": "probe/RecallFirst-v0"}
    loop = train(recurrent(make_spec, algorithm, **on_probe), frames=frames)
    assert score(loop.agent, make_spec) == 1.0
    # To an MLP the first observation is long gone: every return is +1 or -1 by chance.
    loop = train(make_spec(algorithm, on_probe), frames=frames)
    assert abs(score(loop.agent, make_spec)) < 0.4


@pytest.mark.slow
def test_a_recurrent_dqn_recalls_it_too(make_spec: MakeSpec, train: Callable[..., Loop]) -> None:
    values = {"env.name": "probe/RecallFirst-v0", "agent.algorithm.training_frequency": 16}
    loop = train(recurrent(make_spec, "DQN", **values), frames=6000)
    assert score(loop.agent, make_spec) == 1.0
