"""A plain tree becomes a frozen Spec, or one SpecError with every problem."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
from pydantic import ValidationError

from slm_lab.spec import (
    MLPNetSpec,
    Spec,
    SpecError,
    SpecWarning,
    spec_from_dict,
    training_start_step,
)
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.algorithm.a2c import ActorCriticSpec
from slm_lab.spec.algorithm.dqn import DQNSpec
from slm_lab.spec.algorithm.ppo import PPOSpec, ppo_minibatch_size
from slm_lab.spec.algorithm.random import RandomSpec
from slm_lab.spec.algorithm.sil import PPOSILSpec


def problems(tree: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        spec_from_dict(tree, "test")
    return {problem.path: problem.message for problem in caught.value.problems}


def warned(tree: dict[str, Any]) -> tuple[Spec, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec = spec_from_dict(tree, "test")
    assert all(issubclass(item.category, SpecWarning) for item in caught)
    return spec, [str(item.message) for item in caught]


def algorithm(tree: dict[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = tree["agent"]["algorithm"]
    return block


def test_blocks_become_the_classes_their_names_choose(ppo, dqn):
    assert isinstance(spec_from_dict(ppo).agent.algorithm, PPOSpec)
    assert isinstance(spec_from_dict(dqn).agent.algorithm, DQNSpec)
    assert isinstance(spec_from_dict(ppo).agent.net, MLPNetSpec)


def test_a_number_is_a_schedule_that_stays_there_and_the_key_may_be_short(ppo):
    whole = spec_from_dict(ppo)
    assert algorithm(ppo).pop("clip_eps_spec") == {"name": "no_decay", "start_val": 0.2}
    for key in ("clip_eps", "clip_eps_spec"):
        assert spec_from_dict({**ppo, "agent": with_key(ppo, key, 0.2)}) == whole
    linear = {"name": "linear_decay", "start_val": 0.3, "end_val": 0.1, "end_step": 100}
    spec = spec_from_dict({**ppo, "agent": with_key(ppo, "clip_eps", linear)})
    assert isinstance(spec.agent.algorithm, PPOSpec)
    assert spec.agent.algorithm.clip_eps_spec.end_val == 0.1
    assert spec_from_dict(spec.resolved()) == spec, "a spec with all defaults names it once"


def with_key(tree: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """The block `agent` with another key of the algorithm."""
    return {**tree["agent"], "algorithm": {**algorithm(tree), key: value}}


def test_a_schedule_is_named_as_its_author_wrote_it(ppo):
    algorithm(ppo)["clip_eps"] = 0.2
    assert problems(ppo) == {
        "agent.algorithm.clip_eps": "is short for `clip_eps_spec`; remove one of them"
    }
    del algorithm(ppo)["clip_eps_spec"]
    algorithm(ppo)["clip_eps"] = {"name": "linear", "start_val": 0.2}
    assert [*problems(ppo)] == ["agent.algorithm.clip_eps.name"]


def test_a_spec_cannot_be_changed(ppo):
    spec = spec_from_dict(ppo)
    with pytest.raises(ValidationError):
        spec.env.num_envs = 8


def test_a_spec_crosses_processes(ppo):
    spec = spec_from_dict(ppo)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_the_error_has_the_house_form(ppo):
    algorithm(ppo)["clip_vlos"] = True
    ppo["env"]["num_envs"] = 0
    with pytest.raises(SpecError) as caught:
        spec_from_dict(ppo, "ppo_test")
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 problems in ppo_test"
    assert (
        lines[1] == "  agent.algorithm.clip_vlos: unknown key for PPO. Did you mean `clip_vloss`?"
    )
    assert lines[2].startswith("  env.num_envs: found 0; expected greater than or equal to 1")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_all_problems_of_all_blocks_are_found_at_once(ppo):
    algorithm(ppo)["gamma"] = 1.5
    algorithm(ppo)["clip_eps_spec"]["nam"] = "x"
    ppo["agent"]["net"]["optim_spec"] = {"name": "Adm"}
    ppo["agent"]["memory"]["name"] = "Replay"
    ppo["env"]["max_frames"] = 5
    ppo["meta"]["max_sesion"] = 2
    ppo["search"] = {"agent.algorithm.gamma_uniform": [0, 1]}
    found = problems(ppo)
    assert set(found) == {
        "agent.algorithm.gamma",
        "agent.algorithm.clip_eps_spec.nam",
        "agent.net.optim_spec.name",
        "agent.memory.name",
        "env.max_frames",
        "meta.max_sesion",
        "search.agent.algorithm.gamma_uniform",
    }
    assert "`Adam`" in found["agent.net.optim_spec.name"]
    assert "`name`" in found["agent.algorithm.clip_eps_spec.nam"]
    assert "OnPolicyBatchReplay" in found["agent.memory.name"]
    assert "`max_frame`" in found["env.max_frames"]
    assert "`max_session`" in found["meta.max_sesion"]
    assert "`agent.algorithm.gamma__uniform`" in found["search.agent.algorithm.gamma_uniform"]


@pytest.mark.parametrize("block", ["agent", "env"])
def test_a_missing_block_is_named(ppo, block):
    del ppo[block]
    assert "missing" in problems(ppo)[block]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("A2C", "ActorCritic"),
        ("SAC", "SoftActorCritic"),
        ("DDQN", "DoubleDQN"),
        ("REINFORCE", "Reinforce"),
        ("PPO-SIL", "PPOSIL"),
        ("ppo", "PPO"),
    ],
)
def test_common_names_of_algorithms_are_understood(ppo, dqn, alias, name):
    tree = dqn if alias in ("SAC", "DDQN") else ppo
    algorithm(tree).update(name=alias, training_frequency=8)
    spec, _ = warned(tree)
    assert spec.agent.algorithm.name == name
    assert spec.to_dict()["agent"]["algorithm"]["name"] == alias


def test_unknown_algorithms_get_the_nearest_name(ppo):
    algorithm(ppo)["name"] = "POP"
    assert "Did you mean `PPO`?" in problems(ppo)["agent.algorithm.name"]


@pytest.mark.parametrize(("block", "key"), [("algorithm", "name"), ("net", "type")])
def test_hydra_is_refused_with_a_way_out(ppo, block, key):
    ppo["agent"][block][key] = {"algorithm": "HydraDQN", "net": "HydraMLPNet"}[block]
    assert "Use " in problems(ppo)[f"agent.{block}.{key}"]


def test_the_v4_shape_gets_one_message(ppo):
    old = {"agent": [ppo["agent"]], "env": [ppo["env"]], "body": {}, "meta": {}}
    found = problems(old)
    assert list(found) == ["agent"]
    assert "v4" in found["agent"]


def test_keys_of_siblings_are_accepted_with_one_warning(ppo):
    algorithm(ppo).update(
        training_frequency=1, policy_loss_coef=1.0, clip_val_loss=False, sil_policy_loss_coef=0.1
    )
    algorithm(ppo).update(explore_var_spec=None, action_policy="default")
    ppo["agent"]["net"].update(update_type="polyak", polyak_coef=0.1, lr_scheduler_spec=None)
    ppo["agent"]["memory"]["batch_size"] = 32
    ppo["meta"]["num_gpus"] = 1
    _, notes = warned(ppo)
    assert len(notes) == 1
    for key in (
        "agent.algorithm.training_frequency",
        "agent.algorithm.policy_loss_coef",
        "agent.algorithm.clip_val_loss",
        "agent.algorithm.sil_policy_loss_coef",
        "agent.net.update_type",
        "agent.net.polyak_coef",
        "agent.memory.batch_size",
        "meta.num_gpus",
    ):
        assert key in notes[0]
    assert "explore_var_spec" not in notes[0]
    assert "action_policy" not in notes[0]


def test_asking_for_value_clipping_by_its_wrong_name_is_an_error(ppo):
    algorithm(ppo)["clip_val_loss"] = True
    assert "`clip_vloss`" in problems(ppo)["agent.algorithm.clip_val_loss"]


def test_normalize_on_a_vector_net_is_silent(ppo):
    ppo["agent"]["net"]["normalize"] = True
    assert warned(ppo)[1] == []


def test_null_on_an_optional_key_means_its_default(ppo):
    algorithm(ppo).update(minibatch_size=None, entropy_coef_spec=None, action_pdtype=None)
    spec, _ = warned(ppo)
    chosen = spec.agent.algorithm
    assert isinstance(chosen, PPOSpec)
    assert chosen.minibatch_size == 64
    assert chosen.entropy_coef_spec is None
    assert chosen.action_pdtype == "default"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gamma", 1.01),
        ("gamma", True),
        ("gamma", "high"),
        ("lam", -0.1),
        ("time_horizon", 0),
        ("time_horizon", 2.5),
        ("minibatch_size", -4),
        ("training_epoch", 10**15),
        ("val_loss_coef", -1),
        ("action_pdtype", "Norml"),
        ("clip_vloss", "maybe"),
        ("normalize_advantages", "zscore"),
        ("clip_eps_spec", "high"),
    ],
)
def test_values_out_of_range_or_kind_are_refused(ppo, key, value):
    algorithm(ppo)[key] = value
    assert "found" in problems(ppo)[f"agent.algorithm.{key}"]


def test_a_constant_has_one_value(ppo):
    algorithm(ppo)["entropy_coef_spec"] = {"name": "no_decay", "start_val": 0.01, "end_val": 0.001}
    message = problems(ppo)["agent.algorithm.entropy_coef_spec.end_val"]
    assert "found 0.001" in message
    assert "start_val = 0.01" in message
    assert "linear_decay" in message


def test_a_constant_may_be_written_twice_as_original_specs_do(ppo):
    algorithm(ppo)["entropy_coef_spec"] = {"name": "no_decay", "start_val": 0.01, "end_val": 0.01}
    assert (
        spec_from_dict(ppo).to_dict()["agent"]["algorithm"]["entropy_coef_spec"]["end_val"] == 0.01
    )


def test_a_decay_needs_time(dqn):
    algorithm(dqn)["explore_var_spec"].update(start_step=1000)
    assert "after start_step = 1000" in problems(dqn)["agent.algorithm.explore_var_spec.end_step"]


def test_whole_floats_are_counts(ppo):
    ppo["env"]["max_frame"] = 2e4
    max_frame = spec_from_dict(ppo).env.max_frame
    assert max_frame == 20000
    assert isinstance(max_frame, int)


@pytest.mark.parametrize(("given", "meaning"), [(True, "standardize"), (False, "none")])
def test_advantage_scaling_may_be_a_switch(ppo, given, meaning):
    algorithm(ppo)["normalize_advantages"] = given
    chosen = spec_from_dict(ppo).agent.algorithm
    assert isinstance(chosen, PPOSpec)
    assert chosen.normalize_advantages == meaning


# ActorCritic


def a2c(tree: dict[str, Any], **keys: Any) -> dict[str, Any]:
    tree["agent"]["algorithm"] = {"name": "ActorCritic", "gamma": 0.9, **keys}
    return tree


def test_n_step_returns_replace_the_training_frequency(ppo):
    spec = spec_from_dict(a2c(ppo, lam=None, num_step_returns=5, training_frequency=32))
    assert isinstance(spec.agent.algorithm, ActorCriticSpec)
    assert spec.agent.algorithm.training_frequency == 5


def test_lambda_wins_over_n_step_returns(ppo):
    spec = spec_from_dict(a2c(ppo, lam=0.9, num_step_returns=5, training_frequency=32))
    assert isinstance(spec.agent.algorithm, ActorCriticSpec)
    assert spec.agent.algorithm.training_frequency == 32


def test_actor_critic_estimates_advantages_by_gae_unless_told_otherwise(ppo):
    def lam(**keys: Any) -> float | None:
        chosen = spec_from_dict(a2c(ppo, **keys)).agent.algorithm
        assert isinstance(chosen, ActorCriticSpec)
        return chosen.lam

    assert lam(training_frequency=8) == 0.95
    assert lam(training_frequency=8, lam=None) is None
    assert lam(num_step_returns=5) is None


# The actor_/critic_ split


def test_prefixed_net_keys_go_to_their_net_and_others_to_both(ppo):
    ppo["agent"]["net"].update(
        clip_grad_val=0.5,
        actor_optim_spec={"name": "Adam", "lr": 1e-3},
        critic_optim_spec={"name": "Adam", "lr": 2e-3},
        actor_init_std=0.01,
        critic_init_std=1.0,
    )
    agent = spec_from_dict(ppo).agent
    assert agent.critic_net is not None
    assert (agent.net.optim_spec.lr, agent.critic_net.optim_spec.lr) == (1e-3, 2e-3)
    for net in (agent.net, agent.critic_net):
        assert (net.clip_grad_val, net.actor_init_std, net.critic_init_std) == (0.5, 0.01, 1.0)


def test_use_same_optim_gives_the_critic_the_whole_actor_spec(ppo):
    ppo["agent"]["net"].update(
        use_same_optim=True,
        optim_spec={"name": "Adam", "lr": 1e-3},
        critic_optim_spec={"name": "Adam", "lr": 2e-3},
    )
    spec, notes = warned(ppo)
    assert spec.agent.critic_net == spec.agent.net
    assert "agent.net.critic_optim_spec" in notes[0]


def test_a_problem_in_a_prefixed_key_is_reported_as_it_was_written(ppo):
    ppo["agent"]["net"].update(critic_optim_spec={"name": "Adam", "lrr": 1}, actor_hid_lyers=[1])
    found = problems(ppo)
    assert set(found) == {"agent.net.critic_optim_spec.lrr", "agent.net.actor_hid_lyers"}


def test_a_problem_that_both_nets_share_is_reported_once(ppo):
    ppo["agent"]["net"]["hid_layers"] = [64, 0]
    with pytest.raises(SpecError) as caught:
        spec_from_dict(ppo)
    assert [problem.path for problem in caught.value.problems] == ["agent.net.hid_layers.1"]


def test_algorithms_without_a_critic_have_no_critic_net(dqn):
    assert spec_from_dict(dqn).agent.critic_net is None


def test_crossq_takes_its_own_critic_net_or_else_the_net(dqn):
    dqn["agent"]["algorithm"] = {"name": "CrossQ", "gamma": 0.99, "training_frequency": 1}
    dqn["agent"]["net"]["batch_norm"] = True
    agent = spec_from_dict(dqn).agent
    assert agent.critic_net == agent.net
    dqn["agent"]["critic_net"] = {**dqn["agent"]["net"], "hid_layers": [512]}
    critic_net = spec_from_dict(dqn).agent.critic_net
    assert isinstance(critic_net, MLPNetSpec)
    assert critic_net.hid_layers == (512,)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((n, "batch_norm") for n, i in ALGORITHMS.items() if "replay" not in i.memories),
        *((n, "critic_batch_norm") for n, i in ALGORITHMS.items() if i.critic == "keys"),
    ],
)
def test_batch_norm_is_refused_where_the_policy_that_acted_is_compared(ppo, name, key):
    ppo["agent"]["algorithm"] = {"name": name}
    ppo["agent"]["net"][key] = True
    told = f"does not go with agent.algorithm.name: {name}"
    assert problems(ppo)["agent.net.batch_norm"].startswith(told)


def test_batch_norm_among_the_layers_of_an_arc_is_refused_too(ppo):
    layers = [{"LazyLinear": {"out_features": 8}}, {"LazyBatchRenorm1d": None}]
    graph = {"input": "x", "modules": {"body": ["x"]}, "output": "body"}
    arc = {"modules": {"body": {"Sequential": layers}}, "graph": graph}
    ppo["agent"]["net"] = {"type": "TorchArcNet", "arc": arc}
    assert "agent.net.batch_norm" in problems(ppo)


def test_crossq_without_any_batch_norm_in_its_critics_is_warned_about(dqn):
    dqn["agent"]["algorithm"] = {"name": "CrossQ"}
    assert "relies on batch normalisation" in warned(dqn)[1][-1]


# How blocks must agree


def test_off_policy_algorithms_need_a_replay(dqn):
    dqn["agent"]["memory"] = {"name": "OnPolicyBatchReplay"}
    assert "PrioritizedReplay or Replay" in problems(dqn)["agent.memory.name"]


@pytest.mark.parametrize("name", ["VanillaDQN", "DQNBase"])
def test_algorithms_without_a_target_net_refuse_its_keys(dqn, name):
    algorithm(dqn)["name"] = name
    dqn["agent"]["net"]["update_frequency"] = 100
    assert "no target net" in problems(dqn)["agent.net.update_frequency"]


@pytest.mark.parametrize(
    ("minibatch_size", "used"),
    [(64, 64), (128, 128), (500, 128), (96, 128), (50, 64)],  # rollout 4 * 32 = 128
)
def test_minibatches_share_the_rollout_evenly(ppo, minibatch_size, used):
    algorithm(ppo)["minibatch_size"] = minibatch_size
    spec, notes = warned(ppo)
    assert ppo_minibatch_size(spec) == used
    if used == minibatch_size:
        assert notes == []
    else:
        assert f"{minibatch_size} " in notes[0]
        assert f"4 * 32 = 128; {used} is used" in notes[0]


def test_a_log_frequency_beyond_the_run_is_warned_about(ppo):
    ppo["meta"]["log_frequency"] = 30000
    assert "30000 is more than env.max_frame = 20000" in warned(ppo)[1][0]


def test_a_run_too_short_to_learn_in_is_warned_about(dqn):
    algorithm(dqn)["training_start_step"] = 30000
    assert "nothing is learned" in warned(dqn)[1][0]


def test_a_frozen_target_net_is_warned_about(dqn):
    dqn["agent"]["net"].update(update_type="polyak", polyak_coef=0)
    assert "freezes the target net" in warned(dqn)[1][0]


def test_learning_starts_after_one_batch_or_after_1000_for_sac(dqn):
    assert training_start_step(spec_from_dict(dqn)) == 32
    dqn["agent"]["algorithm"] = {"name": "SAC", "gamma": 0.99, "training_frequency": 1}
    assert training_start_step(spec_from_dict(dqn)) == 1000


def test_random_needs_neither_net_nor_memory(ppo):
    ppo["agent"] = {"name": "Random", "algorithm": {"name": "Random"}, "net": {}}
    assert isinstance(spec_from_dict(ppo).agent.algorithm, RandomSpec)


def test_self_imitation_fills_what_old_specs_lack(ppo):
    algorithm(ppo)["name"] = "PPOSIL"
    chosen = spec_from_dict(ppo).agent.algorithm
    assert isinstance(chosen, PPOSILSpec)
    assert (chosen.training_iter, chosen.training_batch_iter) == (1, 1)
    assert (chosen.sil_policy_loss_coef, chosen.sil_val_loss_coef) == (1.0, 0.1)


# env and meta


def test_unknown_env_keys_go_to_the_constructor(ppo):
    ppo["env"].update(continuous=True, repeat_action_probability=0.0)
    kwargs = spec_from_dict(ppo).env.kwargs
    assert kwargs == {"continuous": True, "repeat_action_probability": 0.0}


@pytest.mark.parametrize("key", ["num_env", "max_frames", "normalise_obs", "reward_scal"])
def test_misspelt_env_keys_do_not_reach_the_constructor(ppo, key):
    ppo["env"][key] = 1
    assert "Did you mean" in problems(ppo)[f"env.{key}"]


def test_normalisation_brings_a_clip_unless_one_is_given(ppo):
    ppo["env"].update(normalize_obs=True, normalize_reward=True)
    env = spec_from_dict(ppo).env
    assert (env.clip_obs, env.clip_reward) == (10.0, (-10.0, 10.0))
    ppo["env"].update(clip_obs=None, clip_reward=[-1, 2])
    env = spec_from_dict(ppo).env
    assert (env.clip_obs, env.clip_reward) == (None, (-1.0, 2.0))


def test_frame_op_len_is_an_old_name_of_frame_stack(ppo):
    ppo["env"].update(frame_op="concat", frame_op_len=4)
    env = spec_from_dict(ppo).env
    assert (env.frame_op, env.frame_stack, env.kwargs) == ("concat", 4, {})


def test_run_fields_of_saved_specs_are_accepted_in_silence(ppo):
    ppo["meta"].update(experiment=-1, trial=0, session=2, git_sha="1234e5", prepath="data/x")
    spec, notes = warned(ppo)
    assert notes == []
    assert spec.to_dict()["meta"]["git_sha"] == "1234e5"


@pytest.mark.parametrize(("given", "meaning"), [("auto", "auto"), (True, "on"), (False, "off")])
def test_yaml_booleans_switch_compilation(ppo, given, meaning):
    ppo["meta"]["compile"] = given
    assert spec_from_dict(ppo).meta.compile == meaning


# Copies


def test_to_dict_keeps_the_spelling_and_gives_an_equal_spec(ppo):
    ppo["agent"]["net"].update(actor_hid_layers=[8], critic_hid_layers=[16])
    spec = spec_from_dict(ppo, "mine")
    assert spec.to_dict() == {**ppo, "name": "mine"}
    assert spec_from_dict(spec.to_dict()) == spec


def test_changing_the_dict_does_not_change_the_spec(ppo):
    spec = spec_from_dict(ppo)
    spec.to_dict()["env"]["num_envs"] = 99
    assert spec.to_dict()["env"]["num_envs"] == 4


def test_with_values_is_a_changed_and_validated_copy(ppo):
    spec = spec_from_dict(ppo)
    changed = spec.with_values(
        {"agent.algorithm.gamma": 0.9, "meta.random_seed": 3, "agent.net.hid_layers.1": 32}
    )
    assert isinstance(changed.agent.algorithm, PPOSpec)
    assert isinstance(changed.agent.net, MLPNetSpec)
    assert changed.agent.algorithm.gamma == 0.9
    assert changed.agent.net.hid_layers == (64, 32)
    assert changed.meta.random_seed == 3
    assert spec.meta.random_seed is None
    assert spec_from_dict(changed.to_dict()) == changed


def test_with_values_creates_blocks_on_the_way(ppo):
    changed = spec_from_dict(ppo).with_values({"agent.net.optim_spec.lr": 0.5})
    assert changed.agent.net.optim_spec.lr == 0.5


@pytest.mark.parametrize(
    "path",
    ["agent.algorithm.gama", "agent.net.hid_layers.7", "env.name.x", "agent.algorithm.gamma.x"],
)
def test_with_values_refuses_a_path_that_leads_nowhere(ppo, path):
    with pytest.raises(SpecError):
        spec_from_dict(ppo).with_values({path: 1})


# search


def test_search_is_flattened_to_dotted_keys(ppo):
    ppo["search"] = {
        "agent": {"algorithm": {"gamma__uniform": [0.9, 0.99]}},
        "agent.net.hid_layers__choice": [[64], [64, 64]],
    }
    assert dict(spec_from_dict(ppo).search) == {
        "agent.algorithm.gamma__uniform": [0.9, 0.99],
        "agent.net.hid_layers__choice": [[64], [64, 64]],
    }


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("agent.algorithm.gamma__unifrom", [0, 1]),
        ("agent.algorithm.gamma__grid_search", [0, 1]),
        ("agent.algorithm.gamma__uniform", [1, 0]),
        ("agent.algorithm.gamma__uniform", 0.5),
        ("agent.algorithm.gamma__uniform", [0, 1, 2]),
        ("agent.algorithm.gamma__loguniform", [0, 1]),
        ("agent.algorithm.gamma__choice", []),
        ("agent.algorithm.gamma", [0, 1]),
    ],
)
def test_a_search_key_that_cannot_be_sampled_is_refused(ppo, key, arguments):
    ppo["search"] = {key: arguments}
    assert f"search.{key}" in problems(ppo)


def test_searching_a_key_the_spec_lacks_is_warned_about(ppo):
    ppo["search"] = {"agent.net.lr_decay_frequency__choice": [1, 2]}
    assert "agent.net.lr_decay_frequency" in warned(ppo)[1][0]


def test_an_old_atari_id_is_read_as_the_current_one_and_told(ppo):
    ppo["env"]["name"] = "VideoPinball-v0"
    spec, told = warned(ppo)
    assert spec.env.name == "ALE/VideoPinball-v5"
    assert "VideoPinball-v0" in told[0]
    assert spec_from_dict({**ppo, "env": {**ppo["env"], "name": "MountainCar-v0"}}).env.name == (
        "MountainCar-v0"
    )


def test_ppo_with_the_episodes_of_old_specs_gets_a_rollout_and_says_so(ppo):
    ppo["agent"]["memory"]["name"] = "OnPolicyReplay"
    del ppo["agent"]["algorithm"]["time_horizon"]
    spec, told = warned(ppo)
    assert spec.agent.memory.name == "OnPolicyBatchReplay"
    assert isinstance(spec.agent.algorithm, PPOSpec)
    assert spec.agent.algorithm.time_horizon == 128
    assert "agent.memory.name: PPO learns from rollouts" in told[0]


def test_sarsa_without_next_actions_is_warned_about(dqn):
    exploration = algorithm(dqn)["explore_var_spec"]
    dqn["agent"]["algorithm"] = {
        "name": "SARSA",
        "gamma": 0.99,
        "explore_var_spec": exploration,
        "training_frequency": 1,
    }
    dqn["agent"]["memory"] = {"name": "OnPolicyBatchReplay"}
    dqn["agent"]["net"] = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "relu"}
    assert "1 leaves SARSA without next actions" in warned(dqn)[1][0]
    dqn["agent"]["memory"] = {"name": "OnPolicyReplay"}  # one whole episode
    assert not any("SARSA" in warning for warning in warned(dqn)[1])


def test_a_privileged_critic_needs_a_critic_of_its_own(ppo, dqn):
    ppo["env"]["privileged"] = True
    assert spec_from_dict(ppo).env.privileged
    ppo["agent"]["net"]["shared"] = True
    assert "agent.net.shared" in problems(ppo)["env.privileged"]
    dqn["env"]["privileged"] = True
    assert "DQN: it is for ActorCritic and PPO" in problems(dqn)["env.privileged"]


# A searched key that the spec does not have


@pytest.mark.parametrize(
    ("key", "arguments", "says"),
    [
        (
            "agent.algorithm.gama__uniform",
            [0.9, 0.99],
            "unknown key for PPO. Did you mean `gamma`?",
        ),
        (
            "agent.net.hid_layer__choice",
            [[64]],
            "unknown key for MLPNet. Did you mean `hid_layers`?",
        ),
        ("env.num_env__choice", [2, 4], "unknown key for env. Did you mean `num_envs`?"),
        ("meta.max_sesion__choice", [1], "unknown key for meta. Did you mean `max_session`?"),
        (
            "agnet.algorithm.lam__uniform",
            [0.9, 1.0],
            "unknown key for a spec. Did you mean `agent`?",
        ),
        ("env.name.x__choice", [1], "`x` leads nowhere: 'CartPole-v1' has no parts"),
    ],
)
def test_a_search_over_a_key_that_there_is_not_is_refused(key, arguments, says):
    found = problems(minimal() | {"search": {key: arguments}})
    assert set(found) == {f"search.{key}"}
    assert found[f"search.{key}"].startswith(says)


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("agent.algorithm.lam__uniform", [0.9, 0.99]),
        ("agent.algorithm.entropy_coef_spec.start_val__uniform", [0.0, 0.1]),
        ("agent.net.optim_spec.lr__loguniform", [1e-4, 1e-2]),
        ("agent.net.hid_layers__choice", [[64], [64, 64]]),
        ("env.num_envs__choice", [2, 4]),
    ],
)
def test_a_search_over_a_key_that_the_spec_leaves_to_its_default_is_fine(key, arguments):
    spec, notes = warned(minimal() | {"search": {key: arguments}})
    assert list(spec.search) == [key]
    assert notes == []


def test_a_search_over_algorithms_may_name_keys_of_some_of_them():
    search = {"agent.algorithm.name__choice": ["PPO", "SAC"], "agent.algorithm.alpha__choice": [1]}
    _, notes = warned(minimal() | {"search": search})
    assert any("agent.algorithm.alpha__choice: not in the spec, nor checked" in n for n in notes)


def minimal() -> dict[str, Any]:
    return {
        "agent": {"algorithm": {"name": "PPO"}},
        "env": {"name": "CartPole-v1", "max_frame": 20_000},
        "meta": {"max_trial": 4},
    }
