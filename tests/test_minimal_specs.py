"""With nothing but an algorithm, an env and a budget a spec learns: defaults of the field."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from slm_lab.agent.make import make_agent
from slm_lab.env.make import make_env
from slm_lab.playback.play import play
from slm_lab.spec import Spec, spec_from_dict
from slm_lab.training.loop import Loop

# Name -> algorithm, env, frames, least mean return of 20 greedy episodes, what else the spec says.
# The scores seen with seed 0 on one core are beside; random actions get 22 and -1,200.
CASES: dict[str, tuple[str, str, int, float, dict[str, Any]]] = {
    "REINFORCE": ("Reinforce", "CartPole-v1", 60_000, 300, {}),  # 469
    "SARSA": ("SARSA", "CartPole-v1", 50_000, 150, {}),  # 296
    "DQN": ("DQN", "CartPole-v1", 30_000, 150, {}),  # 238
    "DDQN+PER": ("DDQN", "CartPole-v1", 30_000, 150, {"memory": {"name": "PrioritizedReplay"}}),
    "A2C": ("A2C", "CartPole-v1", 50_000, 400, {}),  # 500
    "PPO": ("PPO", "CartPole-v1", 50_000, 400, {}),  # 500
    "SIL": ("SIL", "CartPole-v1", 50_000, 400, {}),  # 500
    "PPO-SIL": ("PPO-SIL", "CartPole-v1", 50_000, 400, {}),  # 500
    "SAC": ("SAC", "Pendulum-v1", 6_000, -300, {}),
    "CrossQ": ("CrossQ", "Pendulum-v1", 6_000, -300, {}),
}


def minimal(algorithm: str, env: str, frames: int, **agent: Any) -> Spec:
    tree = {
        "agent": {"algorithm": {"name": algorithm}, **agent},
        "env": {"name": env, "max_frame": frames},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = spec_from_dict(tree)
    # Compiling would take longer than these short runs.
    return spec.with_values({"meta.compile": "off"})


def trained(spec: Spec) -> Loop:
    env = make_env(spec.env, seed=0)
    loop = Loop(make_agent(spec, env.spaces, seed=0), env, spec.env.max_frame)
    loop.run(lambda: None, spec.env.max_frame, lambda: False)
    return loop


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(
    ("algorithm", "env", "frames", "least", "agent"), CASES.values(), ids=CASES
)
def test_a_minimal_spec_learns(
    algorithm: str, env: str, frames: int, least: float, agent: dict[str, Any]
) -> None:
    spec = minimal(algorithm, env, frames, **agent)
    loop = trained(spec)
    test_env = make_env(spec.env.model_copy(update={"num_envs": 10}), seed=1000)
    assert np.mean(play(loop.agent, test_env, 20).returns) >= least


@pytest.mark.slow
@pytest.mark.parametrize("net", [{}, {"net": {"type": "ConvNet", "shared": True}}])
def test_a_minimal_spec_trains_on_images_without_a_warning(net: dict[str, Any]) -> None:
    spec = minimal("PPO", "ALE/Pong-v5", 2100, **net)
    assert spec.agent.net.type == "ConvNet"
    # Two of ten passes over the rollout: the same step, a fifth of the time.
    loop = trained(spec.with_values({"agent.algorithm.training_epoch": 2}))
    assert loop.metrics is not None
    assert all(np.isfinite(value) for value in loop.metrics.values.values())
    assert spec.agent.net.normalize, "pixels are divided by 255"
