"""The last observations read both ways, against torch's bidirectional modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from slm_lab.agent.net.mlp import make_net
from slm_lab.agent.net.recurrent import BidirectionalNet
from slm_lab.spec import RecurrentNetSpec, Spec
from slm_lab.training.loop import Loop

OBS, HIDDEN = 2, 5


def net_of(cell: Any, *, layers: int = 1, seq_len: int = 4) -> BidirectionalNet:
    torch.manual_seed(0)
    spec = RecurrentNetSpec(
        type="RecurrentNet",
        cell_type=cell,
        fc_hid_layers=(3,),
        hid_layers_activation="tanh",
        rnn_hidden_size=HIDDEN,
        rnn_num_layers=layers,
        bidirectional=True,
        seq_len=seq_len,
    )
    net = make_net(spec, (OBS,), (3,))
    assert isinstance(net, BidirectionalNet)
    return net


def rows_of(net: BidirectionalNet, episode: Tensor) -> Tensor:
    """The rows [T, B, W] of an episode's observations [T, B, OBS], remembered step by step."""
    memory = torch.zeros(episode.shape[1], net.memory_size)
    rows = []
    for obs in episode:
        rows.append(torch.cat([obs, torch.zeros(len(obs), 1), memory], -1))
        memory = net.remember(rows[-1])
    return torch.stack(rows)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["GRU", "LSTM", "RNN"])
def test_a_row_is_the_end_of_its_last_observations_read_both_ways(cell: str, layers: int) -> None:
    net = net_of(cell, layers=layers)
    episode = torch.randn(6, 3, OBS)
    outputs = net(rows_of(net, episode))[0].view(6, 3, -1)
    for t in range(6):
        # seq_len = 4 observations, fewer in a young episode
        _, last = net.rnn_model(net.fc_model(episode[max(0, t - 3) : t + 1]))
        hidden = last[0] if cell == "LSTM" else last  # [layers * 2, B, H]
        expected = net.tails(torch.cat([hidden[-2], hidden[-1]], -1))
        torch.testing.assert_close(outputs[t], expected)


def test_one_observation_needs_no_memory() -> None:
    net = net_of("GRU", seq_len=1)
    assert net.memory_size == 0
    assert net(rows_of(net, torch.randn(2, 3, OBS)))[0].shape == (6, 3)


@pytest.mark.parametrize("algorithm", ["PPO", "ActorCritic", "SIL", "DQN", "SARSA"])
def test_algorithms_learn_with_it(
    make_spec: Callable[..., Spec], train: Callable[..., Loop], algorithm: str
) -> None:
    net: dict[str, Any] = {
        "type": "RecurrentNet",
        "fc_hid_layers": [],
        "hid_layers_activation": "tanh",
        "rnn_hidden_size": 8,
        "bidirectional": True,
        "seq_len": 4,
        "optim_spec": {"name": "Adam", "lr": 0.01},
    }
    if algorithm == "DQN":
        net |= {"update_type": "polyak", "polyak_coef": 0.05}
    values = {"agent.net": net, "env.name": "probe/RepeatPrevious-v0"}
    loop = train(make_spec(algorithm, values), frames=1500 if algorithm == "SARSA" else 300)
    assert loop.metrics is not None
    assert loop.metrics.values["grad_norm"] > 0
    if algorithm == "SARSA":  # epsilon is 0.3: of the 7 steps with an answer most are right
        assert loop.env.episodes.total_reward() > 2
