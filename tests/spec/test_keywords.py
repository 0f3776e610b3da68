"""A spec from keywords: each finds its block by itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from slm_lab.spec import SpecError, load_spec, spec_from_dict
from slm_lab.spec.keywords import _HOMES, spec_from_keywords
from slm_lab.spec.trust import find_module

ENV = {"env": "CartPole-v1", "frames": 10_000}


def made(algorithm: object = "PPO", /, name: str = "", **keys: Any) -> Any:  # blocks of any class
    return spec_from_keywords(algorithm, {**ENV, **keys}, name)


def test_two_keywords_are_a_spec_of_defaults():
    env = {"name": "CartPole-v1", "max_frame": 10_000}
    tree = {"agent": {"algorithm": {"name": "PPO"}}, "env": env}
    spec = made()
    assert spec == spec_from_dict(tree, "ppo_cartpole")
    assert load_spec(tree, "ppo_cartpole") == spec, "load_spec takes the mapping too"


def test_every_key_finds_its_block():
    spec = made(gamma=0.9, hid_layers=[8], num_envs=4, sessions=3, seed=7, lr=0.01, clip_eps=0.1)
    assert spec.agent.algorithm.gamma == 0.9
    assert spec.agent.algorithm.clip_eps_spec.start_val == 0.1
    assert spec.agent.net.hid_layers == (8,)
    assert spec.agent.net.optim_spec.lr == 0.01
    assert (spec.env.num_envs, spec.meta.max_session, spec.meta.random_seed) == (4, 3, 7)


def test_no_two_blocks_share_a_key_so_that_none_has_to_be_named():
    for (one, keys), (other, others) in itertools.combinations(_HOMES.items(), 2):
        assert keys & others <= {"name"}, (one, other)


def test_a_short_schedule_stands_before_a_default():
    assert made("DQN", explore_var=0.1).agent.algorithm.explore_var_spec.start_val == 0.1


def test_a_block_is_a_mapping_or_a_name():
    memory = made("DDQN", memory="PrioritizedReplay", net={"hid_layers": [8]}, batch_size=16)
    assert memory.name == "ddqn+per_cartpole"
    assert memory.agent.memory.name == "PrioritizedReplay"
    assert memory.agent.memory.batch_size == 16
    assert memory.agent.net.hid_layers == (8,)
    assert made(env={"name": "CartPole-v1", "num_envs": 2, "sutton_barto_reward": True}).env.kwargs


def test_keys_of_the_actor_or_the_critic_alone_go_where_the_algorithm_has_them():
    assert made(critic_hid_layers=[9]).agent.critic.hid_layers == (9,)
    sac = made("SAC", env="Pendulum-v1", critic_hid_layers=[9])
    assert sac.agent.critic.hid_layers == (9,)
    crossq = made("CrossQ", env="Pendulum-v1", lr=0.02)
    assert crossq.agent.net.optim_spec.lr == crossq.agent.critic.optim_spec.lr == 0.02


def test_a_spec_is_changed_without_its_defaults_becoming_fixed():
    one = made()
    assert one.agent.algorithm.time_horizon == 2048
    eight = made(one, num_envs=8)
    assert eight.agent.algorithm.time_horizon == 256, "still 2,048 steps over all envs"
    assert eight.name == one.name
    assert made(one, name="other").name == "other"


def test_dotted_paths_and_arrays_are_taken():
    dotted: dict[str, Any] = {"agent.net.optim_spec.eps": 1e-5}
    spec = made(**dotted, hid_layers=np.array([4, 4]))
    assert spec.agent.net.optim_spec.kwargs["eps"] == 1e-5
    assert spec.agent.net.hid_layers == (4, 4)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gama": 0.9}, r"gama: unknown key. Did you mean `gamma`"),
        ({"frames": None}, r"env.max_frame: missing"),
        ({"clip_eps": "high"}, r"agent.algorithm.clip_eps: found 'high'"),
        ({"net": {"hid_layer": [3]}}, r"agent.net.hid_layer: unknown key"),
        ({"net": lambda: 3}, r"cannot be found by its name. Define it at the top"),
    ],
)
def test_what_is_wrong_is_named(keys, says):
    with pytest.raises(SpecError, match=says):
        made(**keys)


@pytest.mark.parametrize(
    ("algorithm", "says"), [("PPPO", "Did you mean `PPO`"), ("a.json", "load_spec"), (3, "name of")]
)
def test_what_is_no_algorithm_is_refused(algorithm, says):
    with pytest.raises(SpecError, match=says):
        made(algorithm)


@pytest.mark.parametrize(
    ("tree", "says"),
    [({}, "holds no spec"), ({"a": {}, "b": {}}, "the file has a, b"), ({"a": int}, "JSON")],
)
def test_a_mapping_that_is_no_spec_is_refused(tree, says):
    with pytest.raises(SpecError, match=says):
        load_spec(tree)


def test_the_main_module_is_never_found_on_disk(tmp_path, monkeypatch):
    (tmp_path / "__main__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_module("__main__") is None, "else a folder's spec could be trusted with it"
