"""`predict` speaks an env's own language; `save` and `load_agent` keep what an agent knows."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.playback.saved_agent import load_agent
from slm_lab.spec.keywords import spec_from_keywords
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.types import Spaces


def agent_for(name: str, algorithm: str = "PPO", **keys: Any) -> tuple[Agent, VectorEnv]:
    given = {"env": {"name": name}, "frames": 5_000, "compile": "off", **keys}
    spec = spec_from_keywords(algorithm, given, "agent")
    made = make_env(spec.env, seed=0)
    return make_agent(spec, made.spaces, seed=0), made


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("CartPole-v1", "PPO"),
        ("Pendulum-v1", "SAC"),
        ("FrozenLake-v1", "DQN"),
        ("Blackjack-v1", "PPO"),
    ],
)
def test_an_observation_of_the_env_becomes_an_action_of_its_space(name, algorithm):
    agent, _ = agent_for(name, algorithm)
    env = gym.make(name)
    obs, _ = env.reset(seed=0)
    action = agent.predict(obs)
    assert env.action_space.contains(action)
    env.step(action)


def test_actions_are_in_the_units_of_the_env():
    agent, _ = agent_for("Pendulum-v1", "SAC")
    obs = np.ones((2, 3), np.float32)
    torque = agent.predict(obs)
    in_units_of_the_agent = agent.env_action(agent.act(obs, explore=False))
    np.testing.assert_allclose(torque, 2 * np.asarray(in_units_of_the_agent), rtol=1e-6)


def test_a_batch_gives_the_actions_of_its_rows():
    agent, _ = agent_for("Pendulum-v1", "SAC")
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    each = [agent.predict(row) for row in rows]
    np.testing.assert_allclose(agent.predict(rows), np.stack(each), atol=1e-6)


def test_integers_are_a_batch_too():
    agent, _ = agent_for("FrozenLake-v1", "DQN")
    assert agent.predict(3).shape == ()
    assert agent.predict(np.array([3, 0, 15])).shape == (3,)


def test_another_shape_is_refused_with_the_expected_one():
    agent, _ = agent_for("CartPole-v1")
    with pytest.raises(
        ValueError, match=r"shape \(5,\); expected \(4,\), or a batch of them, \(B, 4"
    ):
        agent.predict(np.zeros(5))


def test_a_recurrent_agent_moves_its_state_on():
    agent, _ = agent_for("CartPole-v1", net={"type": "RecurrentNet", "rnn_hidden_size": 4})
    obs = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="initial_recurrent_state"):
        agent.predict(obs)
    state = agent.initial_recurrent_state(1)
    assert state is not None
    first = state.rows(obs[None]).copy()
    agent.predict(obs, state)
    second = state.rows(obs[None])
    assert first[:, 4] == 1
    assert second[:, 4] == 0, "only the first row starts an episode"
    assert np.abs(second[:, 5:]).sum() > 0 == np.abs(first[:, 5:]).sum()


def test_a_mask_is_kept_to():
    class Masked(gym.Wrapper[Any, Any, Any, Any]):
        def action_masks(self) -> np.ndarray:
            return np.array([0, 1])

    masked: Any = lambda: Masked(gym.make("CartPole-v1"))  # noqa: E731
    gym.register("test/Masked-v0", entry_point=masked)
    try:
        agent, _ = agent_for("test/Masked-v0")
        obs = np.zeros((50, 4), np.float32)
        for mask, allowed in (([0, 1], 1), ([1, 0], 0)):
            assert agent.predict(obs[0], action_mask=mask) == allowed
            assert set(agent.predict(obs, action_mask=np.tile(mask, (50, 1)))) == {allowed}
        assert agent.predict(obs).shape == (50,), "without a mask every action is allowed"
    finally:
        del gym.registry["test/Masked-v0"]


def test_an_agent_made_without_an_env_says_so():
    spec = spec_from_keywords("PPO", {"env": "CartPole-v1", "frames": 5_000})
    agent = make_agent(spec, Spaces((4,), "float32", "discrete", (2,)), seed=0)
    with pytest.raises(ValueError, match="made without an env"):
        agent.predict(np.zeros(4))


def test_a_saved_agent_acts_as_before_and_learns_on_with_its_critic(tmp_path):
    agent, env = agent_for("CartPole-v1", normalize_obs=True)
    obs = env.reset()
    for _ in range(20):  # so that there are statistics
        action = agent.act(obs)
        step = env.step(agent.env_action(action))
        agent.observe(obs, action, step)
        obs = step.obs
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    folder = agent.save(tmp_path / "agents" / "one")
    again, _ = load_agent(folder)
    np.testing.assert_array_equal(again.predict(rows), agent.predict(rows))
    learner, _ = load_agent(folder, learns=True)
    for name, module in agent.algorithm.modules.items():
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, learner.algorithm.modules[name].state_dict()[key])
    assert learner.learns
    assert not again.learns
    acting = again.save(tmp_path / "acting")
    names = {path.name for path in (acting / "model").iterdir()}
    assert not any("critic" in name for name in names), "its critic has learned nothing"
    np.testing.assert_array_equal(load_agent(acting)[0].predict(rows), agent.predict(rows))
    agent.save(folder)  # over the earlier one
    (tmp_path / "other.txt").touch()
    with pytest.raises(RunFolderError, match="Give a new folder"):
        agent.save(tmp_path)


def test_agent_env_and_spec_show_what_they_are():
    agent, env = agent_for("CartPole-v1")
    assert repr(agent) == "<Agent PPO, obs (4,) float32, discrete (2,), 9,155 parameters>"
    assert repr(env).startswith("<GymnasiumVectorEnv: 1 (gymnasium), (4,) float32, discrete (2,)")
    assert repr(agent.spec) == "<Spec agent: PPO on CartPole-v1 x 1, 5,000 frames>"
    for shown in (agent, env, agent.spec):
        assert "<table>" in shown._repr_html_()  # type: ignore[union-attr]
