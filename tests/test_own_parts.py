"""Schedules, losses, distributions, optimisers, nets and wrappers that a spec names as
`module:Attribute`."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab import EnvError, SpecError, load_spec, make_env
from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.actor import numpy_policy
from slm_lab.agent.algorithm.base import make_loss
from slm_lab.agent.algorithm.distribution import make_action_distribution
from slm_lab.agent.algorithm.schedule import LearningRate, scheduled_value
from slm_lab.agent.learning.optimizer import Optimizer, make_optimizer
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.spec import Spec, spec_from_dict
from slm_lab.types import Spaces

MINE = """
import gymnasium as gym
import torch
from slm_lab.agent.learning.optimizer import Optimizer
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.spec.algorithm import ALGORITHMS


class Halving:
    def __init__(self, start, every=100):
        if every < 1:
            raise ValueError("every must be 1 or more")
        self.start, self.every = start, every

    def value(self, frame):
        return self.start * 0.5 ** (frame // self.every)


class NoValue:
    pass


def cubed(prediction, target, scale=1.0):
    return scale * (prediction - target).abs() ** 3


class Absolute:
    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, prediction, target):
        return self.scale * (prediction - target).abs()


class LastAction:
    '''Always the last action, with certainty.'''

    noise_kind = "uniform"

    def __init__(self, logits):
        self.logits = logits

    def sample(self, noise):
        return torch.full(self.logits.shape[:1], self.logits.shape[1] - 1)

    mode = lambda self: self.sample(None)

    def log_prob(self, action):
        return self.logits.log_softmax(-1)[:, -1]

    def entropy(self):
        return self.logits.sum(-1) * 0


class Shifted:
    def __init__(self, location, log_scale):
        self.location = location

    def sample(self, noise):
        return self.location + 1

    @staticmethod
    def to_env(action):
        return action - 1


def plain_descent(decay=0.0):
    def rule(p, grad, slots, lr):
        return p - lr * grad, {"step": slots["step"] + 1}

    return Optimizer((), rule, decay)


class SilentNet(MLPNet):
    def features(self, obs):
        return super().features(obs) * 0


class Half:
    record = ALGORITHMS["PPO"]

    def __init__(self, spec, setup):
        self.modules = {}


class Double(gym.RewardWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def nothing(env):
    return None


number = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("mine.py").write_text(MINE)
    yield
    sys.modules.pop("mine", None)


def built(
    algorithm: dict[str, Any] | None = None,
    net: dict[str, Any] | None = None,
    **env: Any,
) -> Spec:
    tree = {
        "agent": {
            "algorithm": {"name": "PPO", "time_horizon": 16, "minibatch_size": 16}
            | (algorithm or {}),
            "net": {"type": "MLPNet", "hid_layers": [4], **(net or {})},
        },
        "env": {"name": "CartPole-v1", "max_frame": 400, **env},
        "meta": {"compile": "off"},
    }
    return spec_from_dict(tree, "mine")


def refusal(**blocks: Any) -> str:
    with pytest.raises(SpecError) as error:
        built(**blocks)
    return str(error.value)


HALVING = {"name": "mine:Halving", "start": 0.4, "every": 10}


# Schedules


def test_a_schedule_is_a_function_of_the_frame_with_the_keys_of_its_block():
    algorithm: Any = built({"entropy_coef_spec": HALVING}).agent.algorithm
    values = [scheduled_value(algorithm.entropy_coef_spec, frame) for frame in (0, 9, 10, 25)]
    assert values == [0.4, 0.4, 0.2, 0.1]


def test_a_learning_rate_schedule_scales_the_rate_from_the_first_update_on():
    net = built(net={"lr_scheduler_spec": {**HALVING, "start": 1.0}}).agent.net
    rate = LearningRate(8.0, net.lr_scheduler_spec, 5)
    rate.advance(100)
    assert [rate.value(frame) for frame in (100, 110, 125)] == [8.0, 4.0, 2.0]


def test_the_keys_of_a_schedule_are_saved_and_compared_with_those_of_a_run():
    spec = built({"entropy_coef_spec": HALVING})
    dumped = spec.model_dump(mode="json")["agent"]["algorithm"]["entropy_coef_spec"]
    assert {"start": 0.4, "every": 10}.items() <= dumped.items()
    assert spec.with_values({"agent.algorithm.entropy_coef_spec.start": 0.3}) != spec


def test_wrong_keys_of_what_a_spec_names_are_reported_when_it_is_read():
    message = refusal(algorithm={"entropy_coef_spec": {"name": "mine:Halving", "evry": 10}})
    assert (
        "agent.algorithm.entropy_coef_spec.evry: unknown key for mine:Halving. "
        "Did you mean `every`?" in message
    )
    assert "entropy_coef_spec.start: missing, and mine:Halving needs it" in message
    message = refusal(net={"loss_spec": {"name": "mine:cubed", "prediction": 1}})
    assert "agent.net.loss_spec.prediction: unknown key for mine:cubed" in message
    message = refusal(net={"optim_spec": {"name": "mine:plain_descen", "lr": 1}})
    assert "agent.net.optim_spec.name: `mine` has no `plain_descen`. Did you mean" in message
    message = refusal(net={"lr_scheduler_spec": {"name": "mine:number"}})
    assert "found `mine:number`; expected a class or a function" in message


def test_one_of_ours_still_takes_only_its_own_keys():
    given = {"name": "linear_decay", "start_val": 1.0, "end_stp": 5, "end_step": 9}
    message = refusal(algorithm={"entropy_coef_spec": given})
    assert "entropy_coef_spec.end_stp: unknown key. Did you mean `end_step`?" in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**HALVING, "every": 0}, "ValueError: every must be 1 or more"),
        ({"name": "mine:NoValue"}, "AttributeError: 'NoValue' object has no attribute 'value'"),
        ({**HALVING, "start": [1]}, "cannot be made and asked for value(0): TypeError"),
    ],
)
def test_a_schedule_that_cannot_be_made_is_a_spec_error(given, said):
    message = refusal(
        algorithm={"entropy_coef_spec": given}, net={"actor_lr_scheduler_spec": given}
    )
    assert said in message
    assert "agent.algorithm.entropy_coef_spec: mine:" in message
    assert "lr_scheduler_spec: mine:" in message


# Losses and optimisers


@pytest.mark.parametrize(("name", "rows"), [("cubed", [2.0, 16.0]), ("Absolute", [2.0, 4.0])])
def test_a_loss_gives_rows_or_their_mean(name, rows):
    spec = built(net={"loss_spec": {"name": f"mine:{name}", "scale": 2.0}}).agent.net.loss_spec
    prediction, target = torch.tensor([1.0, 2.0]), torch.zeros(2)
    assert make_loss(spec, reduction="none")(prediction, target).tolist() == rows
    assert make_loss(spec)(prediction, target).item() == sum(rows) / 2


def test_an_optimiser_moves_the_parameters_by_its_own_rule():
    spec = built(net={"optim_spec": {"name": "mine:plain_descent", "lr": 0.5}}).agent.net.optim_spec
    optimizer = make_optimizer(spec)
    assert isinstance(optimizer, Optimizer)
    p = torch.ones(2)
    moved, slots = optimizer.update(p, torch.ones(2), optimizer.init(p), torch.tensor(0.5), None)
    assert (moved.tolist(), slots["step"].item()) == ([0.5, 0.5], 1)
    assert spec.lr == 0.5


# Distributions and nets: what acts is what was named


def actions(spec: Spec) -> Tensor:
    env = make_env(spec.env, seed=1)
    agent = make_agent(spec, env.spaces, seed=1)
    obs = env.reset()
    drawn = [agent.act(np.array(obs), explore=explore) for explore in (True, False)]
    env.close()
    return torch.from_numpy(np.stack([np.asarray(each) for each in drawn]))


def test_a_distribution_of_discrete_actions_decides_what_is_done_also_in_numpy():
    spec = built({"action_pdtype": "mine:LastAction"}, num_envs=16)
    assert (actions(spec) == 1).all()


def test_a_distribution_of_continuous_actions_bounds_them_itself():
    built({"action_pdtype": "mine:Shifted"})
    spaces = Spaces((3,), "float32", "continuous", (2,))
    distribution = make_action_distribution(spaces, "mine:Shifted")
    policy: Any = distribution([torch.zeros(1, 4)])
    action = policy.sample(torch.zeros(1, 2))
    assert action.tolist() == [[1.0, 1.0]]
    assert distribution.to_env(action).tolist() == [[0.0, 0.0]]


def test_an_algorithm_that_samples_no_distribution_refuses_one():
    message = refusal(algorithm={"name": "DQN", "action_pdtype": "mine:LastAction"})
    assert "agent.algorithm.action_pdtype: found `mine:LastAction`; DQN samples no" in message


def test_a_net_that_derives_from_one_of_ours_is_not_bypassed_by_it():
    net = built(net={"type": "mine:SilentNet"}).agent.net
    module: Any = sys.modules["mine"].SilentNet(net, (3,), (2,))
    assert isinstance(module, MLPNet)
    assert numpy_policy(module, rows=1) is None


def test_an_algorithm_that_lacks_a_part_is_told_which():
    with pytest.raises(SpecError) as error:
        actions(built({"name": "mine:Half"}))
    assert "agent.algorithm.name: mine:Half lacks learner, act, to_env, update" in str(error.value)


# Wrappers


def rewards(*wrappers: Any, **env_keys: Any) -> list[float]:
    spec = built(wrappers=list(wrappers), **env_keys)
    env = make_env(spec.env, seed=1)
    env.reset()
    found = [float(env.step(np.zeros(1, np.int64)).reward[0]) for _ in range(2)]
    env.close()
    return found


def test_wrappers_are_put_around_each_env_in_their_order():
    assert rewards() == [1.0, 1.0]
    assert rewards("mine:Double") == [2.0, 2.0]
    assert rewards("mine:Double", backend="subprocess") == [2.0, 2.0]
    assert rewards("mine:Double", {"name": "mine:Double", "factor": 5}) == [10.0, 10.0]


def test_wrappers_of_gymnasium_can_be_named_too():
    env = make_env(built(wrappers=["gymnasium.wrappers:TimeAwareObservation"]).env, seed=1)
    assert env.spaces.obs_shape == (5,)
    env.close()


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ({"name": "mine:Double", "factr": 1}, "env.wrappers.0: `mine:Double` cannot be put around"),
        ("mine:nothing", "env.wrappers.0: `mine:nothing` gives None; expected a Gymnasium env"),
        ("mine:Doubl", "`mine` has no `Doubl`. Did you mean `Double`?"),
    ],
)
def test_a_wrapper_that_is_none_is_an_error_of_its_key(wrapper, said):
    with pytest.raises((EnvError, SpecError)) as error:
        make_env(built(wrappers=[wrapper]).env, seed=1)
    assert said in str(error.value)


def test_a_wrapper_without_a_module_is_refused_when_the_spec_is_read():
    message = refusal(wrappers=["Double"])
    assert "env.wrappers.0: found 'Double'; expected module:Class" in message


@pytest.mark.parametrize(
    "env", [{"name": "ALE/Pong-v5"}, {"name": "Hopper-v5", "backend": "envpool"}]
)
def test_batches_refuse_wrappers_by_name(env):
    with pytest.raises(EnvError, match=r"env\.wrappers: `.*` is run by (ale|envpool)"):
        make_env(built({"name": "PPO"}, wrappers=["mine:Double"], **env).env, seed=1)


def test_nothing_of_a_run_folder_that_nobody_trusts_is_imported_when_it_is_made():
    """Even where nobody asks first."""
    spec = built(
        {"entropy_coef_spec": HALVING},
        {"loss_spec": {"name": "mine:cubed"}},
        wrappers=["mine:Double"],
    )
    folder = Path("data/mine_2026_01_31_235959")
    (folder / "info").mkdir(parents=True)
    path = folder / "mine_t0_spec.json"
    path.write_text(json.dumps(spec.to_dict() | {"name": "mine"}))
    sys.modules.pop("mine")
    read = load_spec(path)
    spaces = Spaces((4,), "float32", "discrete", (2,))
    with pytest.raises(SpecError, match="runs only if you trust it"):
        make_env(read.env, seed=1)
    with pytest.raises(SpecError, match="runs only if you trust it"):
        make_agent(read, spaces, seed=1)
    assert "mine" not in sys.modules

    # Nor where a callback, which does not matter here, names the same module before all others.
    tree = {"meta": {"callbacks": ["mine:Watch"], "compile": "off"}, **spec.to_dict()}
    tree["meta"] = {"callbacks": ["mine:Watch"], "compile": "off"}
    path.write_text(json.dumps(tree | {"name": "mine"}))
    with pytest.raises(SpecError, match="runs only if you trust it"):
        make_agent(load_spec(path), spaces, seed=1)
    assert "mine" not in sys.modules

    trusted = load_spec(path, trust=("mine",))
    assert isinstance(sys.modules["mine"], types.ModuleType)
    assert make_agent(trusted, spaces, seed=1)
