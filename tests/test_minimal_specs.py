"""With nothing but an algorithm, an env and a budget a spec learns: defaults of the field."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from slm_lab.agent.agent import make_agent
from slm_lab.env.make import make_env
from slm_lab.spec import Spec, spec_from_dict
from slm_lab.training.loop import Loop, play

# Name -> algorithm, env, frames, mean return of 20 greedy episodes to be reached, more of the
# spec. Random actions get 22 and -1,200. The score at the end varies with seed and machine (A2C
# with its one env: 80 to 500), so it is asked for at every fifth of the frames.
CASES: dict[str, tuple[str, str, int, float, dict[str, Any]]] = {
    "REINFORCE": ("Reinforce", "CartPole-v1", 60_000, 300, {}),
    "SARSA": ("SARSA", "CartPole-v1", 50_000, 150, {}),
    "DQN": ("DQN", "CartPole-v1", 30_000, 150, {}),
    "DDQN+PER": ("DDQN", "CartPole-v1", 30_000, 150, {"memory": {"name": "PrioritizedReplay"}}),
    "A2C": ("A2C", "CartPole-v1", 50_000, 400, {}),
    "PPO": ("PPO", "CartPole-v1", 50_000, 400, {}),
    "SIL": ("SIL", "CartPole-v1", 50_000, 400, {}),
    "PPO-SIL": ("PPO-SIL", "CartPole-v1", 50_000, 400, {}),
    "SAC": ("SAC", "Pendulum-v1", 6_000, -300, {}),
    "CrossQ": ("CrossQ", "Pendulum-v1", 6_000, -300, {}),
    "TD3": ("TD3", "Pendulum-v1", 6_000, -300, {}),
    "TQC": ("TQC", "Pendulum-v1", 6_000, -300, {}),
}
ON_PURPOSE = ("SAC", "CrossQ", "TD3", "TQC")  # half a minute to a minute each


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


def start(spec: Spec) -> Loop:
    env = make_env(spec.env, seed=0)
    return Loop(make_agent(spec, env.spaces, seed=0), env, spec.env.max_frame)


def train(loop: Loop, until: int) -> None:
    loop.run(lambda: None, loop.max_frame, lambda: False, until=until)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(
    ("algorithm", "env", "frames", "goal", "agent"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.long_learning] * (name in ON_PURPOSE))
        for name, case in CASES.items()
    ],
)
def test_a_minimal_spec_learns(
    algorithm: str, env: str, frames: int, goal: float, agent: dict[str, Any]
) -> None:
    spec = minimal(algorithm, env, frames, **agent)
    loop = start(spec)
    test_env = make_env(spec.env.model_copy(update={"num_envs": 10}), seed=1000)
    scores: list[float] = []
    while loop.clock.frame < frames and max(scores, default=-np.inf) < goal:
        train(loop, until=loop.clock.frame + frames // 5)
        scores.append(float(np.mean(play(loop.agent, test_env, 20).returns)))
    assert max(scores) >= goal, scores


@pytest.mark.slow
@pytest.mark.parametrize("net", [{}, {"net": {"type": "ConvNet", "shared": True}}])
def test_a_minimal_spec_trains_on_images_without_a_warning(net: dict[str, Any]) -> None:
    spec = minimal("PPO", "ALE/Pong-v5", 2100, **net)
    assert spec.agent.net.type == "ConvNet"
    # Two of ten passes over the rollout: the same step, a fifth of the time.
    loop = start(spec.with_values({"agent.algorithm.training_epoch": 2}))
    train(loop, until=2100)
    assert loop.metrics is not None
    assert all(np.isfinite(value) for value in loop.metrics.values.values())
    assert spec.agent.net.normalize, "pixels are divided by 255"
