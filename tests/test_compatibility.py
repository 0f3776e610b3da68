"""Every pair of features is tested, refused or not applicable; none is simply unknown.

What is accepted is constructed, learns for some frames with finite numbers, resumes bit for bit and
evaluates. What is refused names both keys. `-m compatibility` also walks every pair with every
algorithm, and compiled: about an hour.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.learning import precision
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.spec import Spec, SpecError, spec_from_dict
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.compatibility import (
    FEATURES,
    LEARNING,
    algorithms_with,
    compatibility_page,
    refusal_of,
    verdict,
    verdict_with_algorithm,
)
from slm_lab.training.distributed import SharedAlgorithm
from slm_lab.training.executors.local import shared_nets
from slm_lab.training.loop import Loop, evaluate
from slm_lab.types import Rows, Transition, on_host
from tests import masks, parts
from tests.lives import LosesLives

FRAMES = 200
ON_PURPOSE = {"compiled"}  # a C++ compiler for every pair: minutes

_FAST: dict[str, dict[str, Any]] = {
    "PPO": {"time_horizon": 8, "minibatch_size": 8, "training_epoch": 2},
    "ActorCritic": {"training_frequency": 8},
    "Reinforce": {"training_frequency": 8},
    "SARSA": {"training_frequency": 8},
    "DQN": {"training_frequency": 4, "training_start_step": 24},
    "SoftActorCritic": {"training_frequency": 4, "training_start_step": 24},
}
_FAST |= {"SIL": _FAST["ActorCritic"], "PPOSIL": _FAST["PPO"], "CrossQ": _FAST["SoftActorCritic"]}
_SUPPORT = {"num_atoms": 5, "v_min": -1, "v_max": 20}
_FAST |= {"VanillaDQN": _FAST["DQN"], "DoubleDQN": _FAST["DQN"]}
_FAST |= dict.fromkeys(("DDPG", "TD3", "TQC"), _FAST["SoftActorCritic"])
_FAST |= {"QRDQN": _FAST["DQN"] | {"num_quantiles": 4}, "C51": _FAST["DQN"] | _SUPPORT}
_FAST |= {"Rainbow": _FAST["C51"]}
_SMALL_NET: dict[str, Any] = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "tanh"}
_CONV_NET: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[2, 3, 3, 0, 1], [2, 3, 1, 0, 1]],
}
_CONV_NET |= {"fc_hid_layers": [8], "hid_layers_activation": "relu"}
_RECURRENT: dict[str, Any] = {"type": "RecurrentNet", "rnn_hidden_size": 4, "seq_len": 4}
_MULTI_INPUT: dict[str, Any] = {"type": "MultiInputNet", "hid_layers": [8]}
_MULTI_INPUT |= {"conv_hid_layers": [[2, 3, 3], [2, 3, 2]], "fc_hid_layers": [4]}
_NETS = ("recurrent net", "dict observations")  # features that name a net
_IMITATING = ("SIL", "PPOSIL")


StepResult = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Images(gym.Env[np.ndarray, Any]):
    """Random 12x12 frames; an episode is truncated after 7 steps or terminated before."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (12, 12), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._frame(), {}

    def step(self, action: Any) -> StepResult:
        self.steps += 1
        ended = bool(self.np_random.random() < 0.1)
        return self._frame(), float(action), ended, self.steps >= 7, {}

    def _frame(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (12, 12), np.uint8)


class TwoChoices(gym.Env[np.ndarray, Any]):
    """Two sub-actions of 2 and 3 choices; episodes of 6 steps, every second one terminated."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([2, 3])
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> StepResult:
        self.steps += 1
        is_over = self.steps >= 6
        ended = is_over and bool(self.np_random.random() < 0.5)
        return self._obs(), float(action[0]), ended, is_over and not ended, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class OnDevice:
    """An env whose observations are tensors, as those of JAX are."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        self.spaces = replace(env.spaces, on_device=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @property
    def obs(self) -> Rows:
        return torch.tensor(on_host(self._env.obs))

    def reset(self) -> Rows:
        return torch.tensor(on_host(self._env.reset()))

    def step(self, action: Rows) -> Transition:
        seen = self._env.step(on_host(action))
        obs, next_obs = (torch.tensor(on_host(rows)) for rows in (seen.obs, seen.next_obs))
        return replace(seen, obs=obs, next_obs=next_obs)


@pytest.fixture(scope="module", autouse=True)
def _envs() -> Iterator[None]:
    envs: dict[str, Any] = {
        "compatibility/Images-v0": Images,
        "compatibility/TwoChoices-v0": TwoChoices,
    }
    for name, env in envs.items():
        gym.register(name, entry_point=env)
    with masks.registered(), parts.registered():
        yield
    for name in envs:
        del gym.registry[name]


@pytest.fixture(autouse=True)
def _small_layers_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bfloat16 reach the layers of small nets, on every CPU."""
    monkeypatch.setattr(precision, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(precision, "_LEAST_SIDE", 1)
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device_type: True)


def spec_with(algorithm: str, *features: str) -> Spec:
    """A small spec of the algorithm with these features on."""
    keys: dict[str, Any] = {"meta.compile": "on" if "compiled" in features else "off"}
    is_continuous = "discrete" not in ALGORITHMS[algorithm].actions
    # All layers of a small MLP are noisy, and noisy weights are not rounded; convolutions are.
    has_images = "frame stack" in features or {"noisy net", "bfloat16"} <= set(features)
    # Critics that read an action join it to vectors.
    is_image = has_images and "recurrent net" not in features and not is_continuous
    for feature in sorted(features, key=lambda name: name not in _NETS):
        keys |= _keys_of(feature, algorithm)
    if {"multi-discrete actions", "action masks"} <= set(features):
        keys["env.name"] = masks.CHOICES
    if "dict observations" in features and is_continuous:
        keys["env.name"] = parts.STEER
    if {"dict observations", "action masks"} <= set(features):
        keys |= {"env.name": parts.SIGNS, "env.masks": True}
    if algorithm == "CrossQ" and "dict observations" in features:
        keys["agent.critic_net"] = dict(_MULTI_INPUT)
    has_own_net = {"multi-discrete actions", "action masks", "dict observations"}
    is_vector = has_own_net & set(features)
    if "life loss" in features or (is_image and not is_vector):
        net = _CONV_NET | {
            "batch_norm": "batch norm" in features,
            "unit_weights": "unit weights" in features,
            "shared": "shared net" in features,
            "noisy": "noisy net" in features,
        }
        if "recurrent net" not in features and "privileged critic" not in features:
            keys = {k: v for k, v in keys.items() if not k.startswith("agent.net.")}
            keys["agent.net"] = net
            if "life loss" not in features and "env.name" not in keys:
                keys["env.name"] = "compatibility/Images-v0"
    memory: dict[str, Any] = {"name": "OnPolicyBatchReplay"}
    if "replay" in ALGORITHMS[algorithm].memories:
        memory = {"name": "Replay", "batch_size": 8, "max_size": 60}
    elif algorithm in _IMITATING:
        memory = {"name": "OnPolicyBatchReplay", "batch_size": 8, "max_size": 60}
    tree = {
        "agent": {
            "algorithm": {"name": algorithm, **_FAST[algorithm]},
            "net": dict(_SMALL_NET),
            "memory": memory,
        },
        "env": {
            "name": "Pendulum-v1" if is_continuous else "CartPole-v1",
            "max_t": 11,
            "max_frame": FRAMES,
        },
        "meta": {"random_seed": 0, "log_frequency": 10},
    }
    if algorithm == "CrossQ":
        tree["agent"]["critic_net"] = _SMALL_NET | {"batch_norm": True}  # type: ignore[index]
    spec = spec_from_dict(tree)
    return spec.with_values(keys)


def _keys_of(feature: str, algorithm: str) -> dict[str, Any]:
    """The keys that turn a feature on, for a spec of an algorithm."""
    if (
        feature == "n-step"
        and "n_step" not in type(spec_with(algorithm).agent.algorithm).model_fields
    ):
        return {"agent.algorithm.lam": None, "agent.algorithm.num_step_returns": 8}
    if feature == "PER":
        per = {"agent.memory.sil_replay_name": "PrioritizedReplay"}
        return per if algorithm in _IMITATING else {"agent.memory.name": "PrioritizedReplay"}
    keys: dict[str, dict[str, Any]] = {
        "recurrent net": {"agent.net": dict(_RECURRENT)},
        "n-step": {"agent.algorithm.n_step": 3},
        "CER": {"agent.memory.use_cer": True},
        "whole episodes": {
            "agent.memory.name": "OnPolicyReplay",
            "agent.algorithm.training_frequency": 2,
        },
        "frame stack": {"env.frame_stack": 2},
        "life loss": {"env.name": "ALE/Breakout-v5", "env.life_loss_info": True, "env.max_t": None},
        "normalize_obs": {"env.normalize_obs": True},
        "normalize_reward": {"env.normalize_reward": True},
        "normalize_v_targets": {"agent.algorithm.normalize_v_targets": True},
        "privileged critic": {"env.privileged": True},
        "distributed": {"meta.distributed": "synced", "meta.max_session": 2},
        "parallel learners": {"meta.threads": 2},
        "shared net": {"agent.net.shared": True},
        "batch norm": {"agent.net.batch_norm": True},
        "unit weights": {"agent.net.unit_weights": True},
        "noisy net": {"agent.net.noisy": True},
        "categorical critic": {
            "agent.algorithm.critic": {"name": "categorical", "num_atoms": 5, "v_max": 20.0}
        },
        "symlog": {"agent.algorithm.symlog": True},
        "clip_vloss": {"agent.algorithm.clip_vloss": True},
        "target_kl": {"agent.algorithm.target_kl": 1e-4},
        "multi-discrete actions": {"env.name": "compatibility/TwoChoices-v0", "env.max_t": None},
        "action masks": {"env.name": masks.MINES, "env.max_t": None},
        "dict observations": {
            "env.name": parts.SIGNS,
            "env.side": 12,
            "env.max_t": None,
            "agent.net": dict(_MULTI_INPUT),
        },
        "rows on a device": {},  # no spec of a plain env gives them: see `OnDevice`
        "several envs": {"env.num_envs": 3},
        "compiled": {},
        "bfloat16": {"meta.precision": "bfloat16"},
    }
    return keys[feature]


def start(
    spec: Spec, features: tuple[str, ...], stack: ExitStack, *, resumed: bool = False
) -> Loop:
    env: Any = make_env(env_of(spec, features), seed=0)
    if "privileged critic" in features:  # the last two columns are the critic's
        env.spaces = replace(env.spaces, privileged=2)
    if "life loss" in features:
        env = LosesLives(env, steps=3)
    if "rows on a device" in features:
        env = OnDevice(env)
    agent = make_agent(spec, env.spaces, seed=0)
    if "distributed" in features:
        shared = stack.enter_context(shared_nets(spec))
        assert shared is not None
        agent.algorithm = SharedAlgorithm(agent.algorithm, shared, join=not resumed)
    return Loop(agent, env, FRAMES)


def env_of(spec: Spec, features: tuple[str, ...]) -> Any:
    """What is played: an env that can be saved, where that of the spec cannot."""
    if "privileged critic" in features:  # columns are made up afterwards
        return spec.env.model_copy(update={"privileged": False})
    if "life loss" in features:  # lives, too: a running Atari game cannot be saved
        stacked = {"name": "compatibility/Images-v0", "frame_stack": 4, "kwargs": {}}
        return spec.env.model_copy(update=stacked)
    return spec.env


def run(loop: Loop, until: int) -> None:
    loop.run(lambda: None, FRAMES, lambda: False, until=until)


def state_of(loop: Loop) -> dict[str, Any]:
    agent = loop.agent
    return copy.deepcopy(
        {
            "agent": agent.state_dict(),
            "experience": agent.experience.state_dict(),
            "env": loop.env.state_dict(),
            "loop": loop.state_dict(),
        }
    )


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, torch.Tensor | np.ndarray | int | float):
        yield path, np.asarray(tree)


def walk(algorithm: str, *features: str) -> None:
    """Construct, learn, save half-way, resume, compare, evaluate."""
    spec = spec_with(algorithm, *features)
    for feature in features:
        if feature not in ("rows on a device", "multi-discrete actions", "action masks"):
            assert FEATURES[feature].is_on(spec), f"{feature} is not on"
    with ExitStack() as stack:
        whole = start(spec, features, stack)
        run(whole, FRAMES // 2)
        half = state_of(whole)
        resumed = start(spec, features, stack, resumed=True)
        load(resumed, half)
        for loop in (whole, resumed):
            run(loop, FRAMES)
        assert whole.clock.updates > 0, "nothing was learned"
        assert "in 0 of" not in whole.agent.precision, "nothing was rounded"
        learned, again = state_of(whole)["agent"], dict(leaves(state_of(resumed)["agent"]))
        for path, value in leaves(learned):
            assert np.isfinite(value).all(), path
            np.testing.assert_array_equal(again[path], value, err_msg=path)
        assert math.isfinite(evaluate(whole.agent, whole.env))


def load(loop: Loop, state: dict[str, Any]) -> None:
    loop.agent.load_state_dict(state["agent"])
    loop.agent.experience.load_state_dict(state["experience"])
    loop.env.load_state_dict(state["env"])
    loop.load_state_dict(state["loop"])
    if isinstance(loop.agent.algorithm, SharedAlgorithm):
        loop.agent.algorithm.join([], max_bytes=0)  # the first of the workers to be back


PAIRS = list(itertools.combinations(FEATURES, 2))
WITH_ALGORITHMS = list(itertools.product(FEATURES, LEARNING))


def of(pairs: list[tuple[str, str]], judge: Any, expected: str) -> list[tuple[str, str]]:
    return [pair for pair in pairs if judge(*pair) == expected]


def test_no_pair_is_unknown() -> None:
    verdicts = [verdict(*pair) for pair in PAIRS]
    verdicts += [verdict_with_algorithm(*pair) for pair in WITH_ALGORITHMS]
    assert set(verdicts) == {"accepted", "refused", "not applicable"}


def test_the_page_is_what_the_code_refuses() -> None:
    page = Path(__file__).parents[1] / "docs" / "COMPATIBILITY.md"
    fix = "run: slm-lab spec --compatibility > docs/COMPATIBILITY.md"
    assert page.read_text() == compatibility_page(), fix


@pytest.mark.parametrize(
    ("feature", "algorithm"), of(WITH_ALGORITHMS, verdict_with_algorithm, "refused")
)
def test_a_refused_algorithm_names_both_keys(feature: str, algorithm: str) -> None:
    def build() -> None:
        with ExitStack() as stack:
            start(spec_with(algorithm, feature), (feature,), stack)

    with pytest.raises(SpecError) as caught:
        build()
    text = str(caught.value)
    assert algorithm in text
    assert FEATURES[feature].key in text


@pytest.mark.parametrize(("feature", "other"), of(PAIRS, verdict, "refused"))
def test_a_refused_pair_names_both_keys(feature: str, other: str) -> None:
    refusal = refusal_of(feature, other)
    assert refusal is not None
    algorithms = algorithms_with(feature, other)
    assert algorithms
    for algorithm in algorithms:
        with pytest.raises(SpecError) as caught:
            spec_with(algorithm, feature, other)
        assert FEATURES[feature].key in str(caught.value)
        assert FEATURES[other].key in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feature", "algorithm"), of(WITH_ALGORITHMS, verdict_with_algorithm, "accepted")
)
def test_an_accepted_feature_learns_resumes_and_evaluates(feature: str, algorithm: str) -> None:
    if feature in ON_PURPOSE:
        pytest.skip("compiled pairs are walked by -m compatibility")
    walk(algorithm, feature)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", algorithms_with("life loss"))
def test_real_games_with_lives_are_learned_from(algorithm: str) -> None:
    spec = spec_with(algorithm, "life loss")
    env = make_env(spec.env, seed=0)
    loop = Loop(make_agent(spec, env.spaces, seed=0), env, FRAMES)
    run(loop, FRAMES)
    assert loop.clock.updates > 0
    for path, value in leaves(state_of(loop)["agent"]):
        assert np.isfinite(value).all(), path


@pytest.mark.slow
@pytest.mark.parametrize(("feature", "other"), of(PAIRS, verdict, "accepted"))
def test_an_accepted_pair_learns_resumes_and_evaluates(feature: str, other: str) -> None:
    if {feature, other} & ON_PURPOSE:
        pytest.skip("compiled pairs are walked by -m compatibility")
    algorithms = algorithms_with(feature, other)
    # Each pair with one of its algorithms, another one for every pair.
    walk(algorithms[PAIRS.index((feature, other)) % len(algorithms)], feature, other)


@pytest.mark.compatibility
@pytest.mark.parametrize(
    ("algorithm", "feature", "other"),
    [
        (algorithm, feature, other)
        for feature, other in of(PAIRS, verdict, "accepted")
        for algorithm in algorithms_with(feature, other)
    ],
)
def test_every_accepted_pair_with_every_algorithm(algorithm: str, feature: str, other: str) -> None:
    walk(algorithm, feature, other)
