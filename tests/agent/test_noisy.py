"""Noisy nets: weights by hand, whose noise is whose, and no noise where none belongs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.actor import Noise
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.learning.learner import NetState
from slm_lab.agent.net.mlp import make_net
from slm_lab.agent.net.noisy import NoisyLinear
from slm_lab.spec import MLPNetSpec, Spec, SpecError
from slm_lab.types import ReplayBatch, Spaces

MakeSpec = Callable[..., Spec]
MakeBatch = Callable[..., ReplayBatch]
SPACES = Spaces((2,), "float32", "discrete", (2,))
NOISY = {"agent.net.noisy": True, "agent.net.hid_layers": [4]}
OBS = np.array([[0.5, -1.0], [2.0, 1.0], [0.0, 0.3], [-1.0, 0.7]], np.float32)


def layer() -> NoisyLinear:
    """W = (1, 2), b = 3; S = (0.5, 0.25), s = 2."""
    made = NoisyLinear(2, 1)
    values = {"weight": [[1.0, 2.0]], "bias": [3.0]}
    values |= {"weight_sigma": [[0.5, 0.25]], "bias_sigma": [2.0]}
    made.load_state_dict({key: torch.tensor(value) for key, value in values.items()})
    return made


def test_noise_shifts_each_weight_by_its_sigma_and_both_factors() -> None:
    noisy = layer()
    noisy.noise = torch.tensor([2.0, 4.0, 10.0])
    # W = (1 + 0.5 * 2 * 10, 2 + 0.25 * 4 * 10) = (11, 12), b = 3 + 2 * 10 = 23
    assert noisy(torch.tensor([[1.0, 1.0], [0.0, 2.0]])).tolist() == [[46.0], [47.0]]


def test_each_row_can_have_noise_of_its_own() -> None:
    noisy = layer()
    noisy.noise = torch.tensor([[2.0, 4.0, 10.0], [0.0, 0.0, 0.0], [1.0, 0.0, -1.0]])
    # 11 + 12 + 23, as above; 1 + 2 + 3; (1 - 0.5) + 2 + (3 - 2)
    assert noisy(torch.ones(3, 2)).tolist() == [[46.0], [6.0], [3.5]]


def test_without_noise_it_is_the_plain_layer() -> None:
    noisy = layer()
    assert noisy(torch.tensor([[1.0, 1.0]])).tolist() == [[6.0]]
    assert "noise" not in noisy.state_dict()
    zero = layer()
    zero.noise = torch.zeros(3)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    plain = torch.nn.functional.linear(x, noisy.weight, noisy.bias)
    assert torch.equal(noisy(x), plain)
    assert torch.equal(zero(x), plain)


def test_weights_begin_as_in_the_paper() -> None:
    torch.manual_seed(0)
    noisy = NoisyLinear(100, 400, std=0.5)
    for mean in (noisy.weight, noisy.bias):  # U[-1/sqrt(p), 1/sqrt(p)], whose std is 0.1 / sqrt(3)
        assert mean.abs().max() <= 0.1
        assert mean.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.1)
    for sigma in (noisy.weight_sigma, noisy.bias_sigma):  # std / sqrt(p)
        assert torch.equal(sigma, torch.full_like(sigma, 0.5 / 100**0.5))


def test_noise_has_the_mean_and_the_spread_of_the_paper() -> None:
    noise = Noise("factors", (64, 40), seed=0)
    drawn = torch.stack([noise() for _ in range(100)])
    # sgn(x) sqrt|x| of a normal: mean 0, variance E|x| = sqrt(2 / pi), and squared it is |x|
    assert drawn.mean().abs() < 0.01
    assert drawn.square().mean() == pytest.approx((2 / torch.pi) ** 0.5, rel=0.01)
    assert drawn.pow(4).mean() == pytest.approx(1.0, rel=0.02)
    # A weight's noise is a product of two: its std is that of one squared.
    weights = drawn[..., :20, None] * drawn[..., None, 20:]
    assert weights.std() == pytest.approx((2 / torch.pi) ** 0.5, rel=0.02)


def test_the_noise_of_a_net_is_that_of_its_layers_side_by_side() -> None:
    spec = MLPNetSpec(type="MLPNet", hid_layers=(3,), noisy=True)
    net = NetState("net", make_net(spec, (2,), (2,)), spec)
    assert net.noise_size == (2 + 3) + (3 + 2)
    state = net.initial_state()
    assert not any("noise" in key for key in state)
    drawn = torch.arange(10.0)
    noisy = net.with_noise(state, drawn)
    assert noisy["net.buffer.model.0.noise"].tolist() == [0, 1, 2, 3, 4]
    assert noisy["net.buffer.tails.0.noise"].tolist() == [5, 6, 7, 8, 9]
    obs = torch.from_numpy(OBS)
    ours = net(noisy, obs)[0]
    each = net(net.with_noise(state, drawn.expand(4, -1)), obs)[0]
    assert torch.allclose(ours, each, atol=1e-5)
    assert not torch.allclose(ours, net(state, obs)[0], atol=0.1)


# Acting


def noisy_agent(make_spec: MakeSpec, name: str = "DQN", seed: int = 0, **keys: Any) -> Agent:
    values = NOISY | {"agent.algorithm.explore_var_spec": None}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    return make_agent(make_spec(name, values), SPACES, seed=seed)


def test_epsilon_is_zero_unless_a_spec_says_otherwise(make_spec: MakeSpec) -> None:
    def start_of(**keys: Any) -> float:
        algorithm: Any = make_spec("DQN", keys).agent.algorithm
        return float(algorithm.explore_var_spec.start_val)

    none = {"agent.algorithm.explore_var_spec": None}
    assert start_of(**none) == 1.0
    assert start_of(**none, **{"agent.net.noisy": True}) == 0.0
    assert start_of(**{"agent.net.noisy": True}) == 0.3  # what the spec says


NETS: dict[str, dict[str, Any]] = {
    "MLP": {},
    "dueling": {"agent__net__type": "DuelingMLPNet"},
    "wide": {"agent__net__hid_layers": [300]},  # not in NumPy
    "recurrent": {
        "agent__net": {"type": "RecurrentNet", "rnn_hidden_size": 4, "seq_len": 4, "noisy": True}
    },
}


@pytest.mark.parametrize("keys", NETS.values(), ids=NETS)
def test_each_env_explores_with_weights_of_its_own_and_evaluation_with_none(
    make_spec: MakeSpec, keys: dict[str, Any]
) -> None:
    agent = noisy_agent(make_spec, env__num_envs=4, **keys)
    obs = np.repeat(OBS[:1], 4, 0)
    state = agent.initial_recurrent_state(4)
    drawn = np.stack([agent.act(obs, recurrent_state=state) for _ in range(200)])
    assert {tuple(row) for row in drawn} >= {(0, 0, 0, 1), (0, 1, 0, 0)} or len(
        {tuple(row) for row in drawn}
    ) > 4
    greedy = {
        tuple(agent.act(obs, explore=False, recurrent_state=state).tolist()) for _ in range(20)
    }
    assert len(greedy) == 1
    assert len(set(greedy.pop())) == 1


@pytest.mark.parametrize("net", ["MLPNet", "DuelingMLPNet"])
@pytest.mark.parametrize("name", ["DQN", "QRDQN"])
def test_numpy_acts_as_torch_does(make_spec: MakeSpec, name: str, net: str) -> None:
    agent, other = (
        noisy_agent(make_spec, name, agent__net__type=net, env__num_envs=4) for _ in range(2)
    )
    act: Any = other.algorithm.act
    assert act._numpy is not None
    act._numpy = None
    rng = np.random.default_rng(0)
    for _ in range(50):
        obs = rng.normal(size=(4, 2)).astype(np.float32)
        assert np.array_equal(agent.act(obs), other.act(obs))


@pytest.mark.slow
def test_compiled_acting_is_eager_acting(make_spec: MakeSpec) -> None:
    wide: dict[str, Any] = {"agent__net__hid_layers": [300], "env__num_envs": 4}
    eager, compiled = (
        noisy_agent(make_spec, "C51", meta__compile=mode, env__max_frame=10**7, **wide)
        for mode in ("off", "on")
    )
    act: Any = compiled.algorithm.act
    assert act._compiled is not None
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs = rng.normal(size=(4, 2)).astype(np.float32)
        assert np.array_equal(eager.act(obs), compiled.act(obs))
    assert act._compiled.is_native


def test_noise_goes_on_where_a_checkpoint_left_it(make_spec: MakeSpec) -> None:
    agent, restored = (noisy_agent(make_spec, seed=seed, env__num_envs=4) for seed in (1, 2))
    for _ in range(300):  # into the second block of noise
        agent.act(OBS)
    restored.load_state_dict(agent.state_dict())
    for _ in range(300):
        assert np.array_equal(agent.act(OBS), restored.act(OBS))


# Learning


class Spy:
    """Notes the noise of each call of the algorithm's net."""

    def __init__(self, dqn: DQN) -> None:
        self.seen: list[tuple[str, Tensor]] = []
        net, self._call = dqn._q, dqn._q.__call__
        names = {id(dqn.learner.state[key]): key for key in ("net", "target_net")}
        places = list(net._noise_sizes)

        def noted(state: dict[str, Tensor], *inputs: Tensor, **options: Any) -> Any:
            which = names.get(id(state["net"]), "net")
            self.seen.append((which, torch.cat([state[place] for place in places])))
            return NetState.__call__(net, state, *inputs, **options)

        dqn._q = noted  # type: ignore[assignment]
        for part in ("with_noise", "in_sequences", "optimizer_step"):
            setattr(noted, part, getattr(net, part))


def test_online_target_and_selection_have_noise_apart_and_new_in_each_step(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    keys = {"agent__memory__batch_size": 2, "agent__algorithm__training_iter": 1}
    dqn = noisy_agent(make_spec, "DoubleDQN", **keys).algorithm
    assert isinstance(dqn, DQN)
    batch = make_batch([[1, 0], [0, 1]], [0, 1], [1.0, 1.0], [[1, 1], [0, 0]], [0.9, 0.9])
    dqn.update(batch, frame=4)  # the first step also learns the names of the metrics
    spy = Spy(dqn)
    for frame in (8, 12):
        dqn.update(batch, frame=frame)
    # the value of the next state, the choice of the next action, the loss
    assert [which for which, _ in spy.seen] == ["target_net", "net", "net"] * 2
    drawn = [noise for _, noise in spy.seen]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))


def test_a_step_learns_how_much_noise_there_is(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    dqn = noisy_agent(make_spec, agent__memory__batch_size=2).algorithm
    before = {k: v.clone() for k, v in dqn.modules["net"].state_dict().items()}
    batch = make_batch([[1, 0], [0, 1]] * 2, [0, 1] * 2, [1.0] * 4, [[1, 1], [0, 0]] * 2, [0.9] * 4)
    dqn.update(batch, frame=4)
    after = dqn.modules["net"].state_dict()
    assert all(not torch.equal(before[key], after[key]) for key in before)
    assert {key.split(".")[-1] for key in after} == {
        "weight", "bias", "weight_sigma", "bias_sigma",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["PPO", "SARSA", "SoftActorCritic"])
def test_an_algorithm_that_draws_no_noise_refuses_it_by_name(
    make_spec: MakeSpec, name: str
) -> None:
    fault = rf"agent\.net\.noisy: does not go with agent\.algorithm\.name: {name}"
    with pytest.raises(SpecError, match=fault):
        make_spec(name, {"agent.net.noisy": True})
