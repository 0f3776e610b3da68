"""What a recurrent net asks of the rest of a spec, and what it is told when that is missing."""

from __future__ import annotations

from typing import Any

import pytest

from slm_lab.spec import SpecError, spec_from_dict
from slm_lab.spec.algorithm.ppo import ppo_minibatch_size
from slm_lab.spec.schema import build_spec

NET = {
    "type": "RecurrentNet",
    "fc_hid_layers": [],
    "rnn_hidden_size": 8,
    "seq_len": 4,
    "hid_layers_activation": "relu",
}


@pytest.fixture
def recurrent_ppo(ppo: dict[str, Any]) -> dict[str, Any]:
    ppo["agent"]["net"] = dict(NET)
    ppo["agent"]["algorithm"] |= {"time_horizon": 32, "minibatch_size": 64}
    ppo["env"]["num_envs"] = 4
    return ppo


@pytest.fixture
def recurrent_dqn(dqn: dict[str, Any]) -> dict[str, Any]:
    dqn["agent"]["net"] = dict(NET)
    dqn["agent"]["memory"] |= {"name": "Replay", "batch_size": 32, "max_size": 1000}
    dqn["agent"]["algorithm"]["training_start_step"] = 32
    dqn["env"]["num_envs"] = 4
    return dqn


def complaint(tree: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        spec_from_dict(tree)
    return str(caught.value)


def test_sequences_must_fill_the_rollout(recurrent_ppo: dict[str, Any]) -> None:
    spec_from_dict(recurrent_ppo)
    recurrent_ppo["agent"]["algorithm"]["time_horizon"] = 30
    assert "time_horizon: found 30; expected a multiple of agent.net.seq_len = 4, such as 28" in (
        complaint(recurrent_ppo)
    )


@pytest.mark.parametrize(("given", "used"), [(64, 64), (63, 64), (2, 4), (500, 128)])
def test_minibatches_hold_whole_sequences(
    recurrent_ppo: dict[str, Any], given: int, used: int
) -> None:
    # 32 steps of 4 envs are 32 sequences of 4; 63 asks for 15 of them, and 32 // (32 // 15) = 16.
    recurrent_ppo["agent"]["algorithm"]["minibatch_size"] = given
    spec, warnings = build_spec(recurrent_ppo, "ppo")
    assert ppo_minibatch_size(spec) == used
    assert any("minibatch_size" in warning for warning in warnings) == (given != used)


def test_actor_and_critic_remember_together(recurrent_ppo: dict[str, Any]) -> None:
    recurrent_ppo["agent"]["net"]["critic_seq_len"] = 8
    assert "with the same seq_len" in complaint(recurrent_ppo)


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ", "TD3", "TQC"])
def test_algorithms_without_a_recurrent_form_say_which_have_one(
    recurrent_dqn: dict[str, Any], name: str
) -> None:
    recurrent_dqn["agent"]["algorithm"] = {"name": name, "gamma": 0.99, "training_frequency": 4}
    text = complaint(recurrent_dqn)
    assert f"agent.net.type: does not go with agent.algorithm.name: {name}" in text
    assert "PPO or DQN with RecurrentNet" in text


@pytest.mark.parametrize(
    ("block", "key", "value", "says"),
    [
        ("memory", "batch_size", 30, "batch_size: found 30; expected a multiple of agent.net.seq"),
        ("memory", "max_size", 8, "max_size"),
        ("algorithm", "training_start_step", 15, "expected at least seq_len * num_envs = 16"),
    ],
)
def test_a_replay_must_hold_whole_sequences(
    recurrent_dqn: dict[str, Any], block: str, key: str, value: Any, says: str
) -> None:
    spec_from_dict(recurrent_dqn)
    if key == "max_size":
        recurrent_dqn["agent"]["memory"]["batch_size"] = 8
    recurrent_dqn["agent"][block][key] = value
    assert says in complaint(recurrent_dqn)
