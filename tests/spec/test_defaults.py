"""What a spec may leave out, and what it gets for it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from slm_lab.spec import (
    Spec,
    SpecError,
    SpecWarning,
    example_sets,
    load_spec,
    packaged_specs,
    spec_from_dict,
)
from slm_lab.spec.agent import with_defaults
from slm_lab.spec.algorithm import ALGORITHMS

# What has no default that suits every env.
CHOSEN: dict[str, dict[str, float]] = {"C51": {"v_min": 0.0, "v_max": 100.0}}
CHOSEN["Rainbow"] = CHOSEN["C51"]


def minimal(algorithm: str, env: str = "CartPole-v1", **agent: Any) -> Spec:
    tree = {
        "agent": {"algorithm": {"name": algorithm, **CHOSEN.get(algorithm, {})}, **agent},
        "env": {"name": env, "max_frame": 10_000},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpecWarning)
        return spec_from_dict(tree)


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_name_an_env_and_a_budget_are_a_spec(algorithm: str, env: str) -> None:
    spec = minimal(algorithm, env)
    assert spec.agent.algorithm.name == algorithm
    # What was left out is written into what is saved and printed, and both mean the same.
    assert spec_from_dict(spec.to_dict()) == spec
    assert spec_from_dict(spec.resolved()) == spec


@pytest.mark.parametrize("path", sorted({str(file) for file, _ in packaged_specs()}))
def test_a_shipped_spec_leaves_nothing_to_defaults(path: str) -> None:
    for file, name in packaged_specs():
        if str(file) == path:
            spec = load_spec(file, name, sets=example_sets(file, name))
            assert with_defaults(spec.to_dict()) == spec.to_dict()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SpecWarning)
                assert spec_from_dict(spec.resolved(), spec.name) == spec


TARGETS = {
    "sac": ("SoftActorCritic", {}, ("polyak", None, 0.005)),
    "dqn": ("DQN", {}, ("replace", 1000, None)),
    "a share alone means polyak": ("DQN", {"polyak_coef": 0.01}, ("polyak", None, 0.01)),
    "a frequency alone means copies": (
        "SoftActorCritic",
        {"update_frequency": 50},
        ("replace", 50, None),
    ),
    "polyak without a share": ("DQN", {"update_type": "polyak"}, ("polyak", None, 0.005)),
    "copies without a frequency": ("DQN", {"update_type": "replace"}, ("replace", 1000, None)),
    "frozen on purpose": (
        "DQN",
        {"update_type": "replace", "update_frequency": 1e9},
        ("replace", 1e9, None),
    ),
}


@pytest.mark.parametrize(("algorithm", "keys", "expected"), TARGETS.values(), ids=TARGETS)
def test_a_target_net_is_never_the_online_net_by_default(
    algorithm: str, keys: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    given = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "relu", **keys}
    net = minimal(algorithm, net=given).agent.net
    assert (net.update_type, net.update_frequency, net.polyak_coef) == expected


def test_a_block_without_a_type_changes_single_keys_of_the_default() -> None:
    net = minimal("PPO", net={"hid_layers": [128], "optim_spec": {"lr": 0.01}}).agent.net
    default = minimal("PPO").agent.net
    changed = {"hid_layers": (128,), "optim_spec": net.optim_spec}
    assert net == default.model_copy(update=changed)
    assert net.optim_spec.name == default.optim_spec.name
    assert net.optim_spec.lr == 0.01


def test_another_optimiser_keeps_none_of_the_defaults_arguments() -> None:
    net = minimal("CrossQ", net={"optim_spec": {"name": "AdamW"}}).agent.net
    assert net.optim_spec.kwargs["betas"] == (0.9, 0.999)
    assert net.optim_spec.lr == 1e-3


def test_a_block_with_a_type_stands_on_its_own() -> None:
    """As every spec of before does: nothing but what it cannot do without is added."""
    net = minimal("PPO", net={"type": "MLPNet"}).agent.net
    assert net.clip_grad_val is None
    assert net.init_fn is None
    assert net.hid_layers_activation == "tanh"


def test_a_prioritised_memory_needs_no_more_than_its_name() -> None:
    memory: Any = minimal("DoubleDQN", memory={"name": "PrioritizedReplay"}).agent.memory
    assert (memory.batch_size, memory.alpha, memory.beta) == (64, 0.6, 0.4)
    memory = minimal("SoftActorCritic", memory={"name": "PrioritizedReplay"}).agent.memory
    assert memory.batch_size == 256


def test_exploring_ends_after_a_fifth_of_whatever_the_budget_is() -> None:
    spec = minimal("DQN")
    longer = spec.with_values({"env.max_frame": 50_000})
    assert longer.agent.algorithm.explore_var_spec.end_step == 10_000  # type: ignore[attr-defined]
    assert spec.agent.algorithm.explore_var_spec.end_step == 2000  # type: ignore[attr-defined]


@pytest.mark.parametrize(("envs", "horizon"), [(1, 2048), (8, 256), (12, 128), (64, 128)])
def test_a_rollout_of_ppo_is_as_long_as_its_envs_are_few(envs: int, horizon: int) -> None:
    algorithm: Any = minimal("PPO").with_values({"env.num_envs": envs}).agent.algorithm
    assert algorithm.time_horizon == horizon


def test_batch_norm_is_off_unless_asked_for() -> None:
    assert not minimal("DQN", net={"type": "ConvNet"}).agent.net.normalizes_batches


ACTOR = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "relu", "polyak_coef": 0.1}
FALLING = {"name": "LinearToZero", "frame": 100}


def test_a_critic_net_of_sac_without_a_type_changes_single_keys_of_the_actors() -> None:
    net = ACTOR | {"lr_scheduler_spec": FALLING, "optim_spec": {"name": "SGD", "lr": 0.1}}
    own = {"hid_layers": [32], "optim_spec": {"lr": 0.2}, "lr_scheduler_spec": None}
    spec = minimal("SoftActorCritic", net=net, critic_net=own)
    actor, critic = spec.agent.net, spec.agent.critic
    changed = {"hid_layers": (32,), "optim_spec": critic.optim_spec, "lr_scheduler_spec": None}
    assert critic == actor.model_copy(update=changed)
    assert (critic.optim_spec.name, critic.optim_spec.lr) == ("SGD", 0.2)
    assert spec_from_dict(spec.to_dict()) == spec_from_dict(spec.resolved()) == spec


def test_sac_without_a_critic_net_has_the_actors_and_writes_none() -> None:
    spec = minimal("SoftActorCritic", net=ACTOR)
    assert spec.agent.critic == spec.agent.net
    assert "critic_net" not in spec.to_dict()["agent"]


@pytest.mark.parametrize("kind", [{}, {"type": "MLPNet"}], ids=["the actor's", "of its own"])
@pytest.mark.parametrize(
    ("of_actor", "of_critic", "expected"),
    [
        ({}, {}, ("polyak", None, 0.005)),
        ({"polyak_coef": 0.1}, {}, ("polyak", None, 0.1)),
        ({}, {"update_frequency": 50}, ("replace", 50, None)),
    ],
    ids=["by default", "as the actor's block says", "as its own says"],
)
def test_the_target_nets_of_sac_follow_by_the_critics_block(
    kind: dict[str, Any],
    of_actor: dict[str, Any],
    of_critic: dict[str, Any],
    expected: tuple[Any, ...],
) -> None:
    spec = minimal("SoftActorCritic", net=of_actor, critic_net=kind | of_critic)
    critic = spec.agent.critic
    assert (critic.update_type, critic.update_frequency, critic.polyak_coef) == expected
    assert spec_from_dict(spec.to_dict()) == spec


def test_target_keys_of_both_blocks_are_reported() -> None:
    tree = minimal("SoftActorCritic", net=ACTOR).to_dict()
    tree["agent"] |= {"net": dict(ACTOR), "critic_net": {"update_frequency": 50}}
    with pytest.warns(SpecWarning, match=r"agent\.net\.polyak_coef \(agent\.critic_net has"):
        spec = spec_from_dict(tree)
    assert spec.agent.critic.update_frequency == 50


def test_target_nets_that_a_critics_block_freezes_are_warned_about() -> None:
    with pytest.raises(SpecWarning, match=r"agent\.critic_net\.polyak_coef: 0 freezes"):
        minimal("SoftActorCritic", critic_net={"polyak_coef": 0})


def test_a_recurrent_critic_of_sac_is_refused_by_its_key() -> None:
    own = {"type": "RecurrentNet", "hid_layers": [], "hid_layers_activation": "relu"}
    with pytest.raises(SpecError, match=r"agent\.critic_net\.type: RecurrentNet needs"):
        minimal("SoftActorCritic", critic_net=own | {"cell_type": "GRU", "rnn_hidden_size": 4})
