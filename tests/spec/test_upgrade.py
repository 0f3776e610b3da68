"""A spec of SLM Lab v4 is told what it is, and written in today's shape."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any

import pytest

from slm_lab.spec import SpecError, load_spec, spec_from_dict, spec_names, upgrade_file
from slm_lab.spec.upgrade import is_v4, upgrade_spec

V4_DQN: dict[str, Any] = {
    "agent": [
        {
            "name": "DQN",
            "algorithm": {
                "name": "DQN",
                "action_pdtype": "Argmax",
                "action_policy": "epsilon_greedy",
                "explore_var_spec": {
                    "name": "linear_decay",
                    "start_val": 1.0,
                    "end_val": 0.1,
                    "start_step": 0,
                    "end_step": 1000,
                },
                "gamma": 0.99,
                "training_batch_epoch": 8,
                "training_epoch": 4,
                "training_frequency": 4,
                "training_start_step": 32,
            },
            "memory": {"name": "ConcatReplay", "concat_len": 4, "batch_size": 32, "max_size": 1000},
            "net": {
                "type": "MLPNet",
                "hid_layers": [64],
                "hid_layers_activation": "selu",
                "optim_spec": {"name": "Adam", "lr": 0.02},
                "update_type": "polyak",
                "polyak_coef": 0.01,
            },
        }
    ],
    "env": [{"name": "CartPole-v0", "max_t": None, "max_tick": 10000, "normalize_state": False}],
    "body": {"product": "outer", "num": 1},
    "meta": {
        "distributed": False,
        "max_session": 2,
        "max_trial": 4,
        "search": "RandomSearch",
        "resources": {"num_cpus": 4},
    },
    "search": {
        "agent": [{"algorithm": {"gamma__uniform": [0.9, 0.99]}}],
        "env": [{"num_envs__grid_search": [4, 8]}],
    },
}


@pytest.fixture
def v4() -> dict[str, Any]:
    return copy.deepcopy(V4_DQN)


def test_the_old_shape_gets_one_message_that_names_the_way_out(v4):
    with pytest.raises(SpecError) as caught:
        spec_from_dict(v4)
    (problem,) = caught.value.problems
    assert "`slm-lab spec --upgrade FILE`" in problem.message


def test_so_does_an_old_file_with_the_commas_that_v4_allowed(v4, write):
    text = json.dumps({"dqn": v4}).replace('"num": 1}', '"num": 1,}')
    with pytest.raises(SpecError, match="shape of SLM Lab v4"):
        load_spec(write("old.json", text), "dqn")


def test_an_upgraded_spec_builds(v4):
    tree, _ = upgrade_spec(v4)
    assert not is_v4(tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = spec_from_dict(tree, "dqn")
    algorithm = spec.to_dict()["agent"]["algorithm"]
    assert (algorithm["training_iter"], algorithm["training_batch_iter"]) == (4, 8)
    assert spec.agent.memory.name == "Replay"
    assert (spec.env.name, spec.env.max_frame) == ("CartPole-v1", 10000)
    assert spec.meta.search_resources == {"cpu": 4, "gpu": 0}
    assert spec.search == {
        "agent.algorithm.gamma__uniform": [0.9, 0.99],
        "env.num_envs__choice": [4, 8],
    }


def test_every_change_that_alters_what_is_trained_is_told(v4):
    _, notes = upgrade_spec(v4)
    told = "\n".join(notes)
    for word in ("CartPole-v0", "ConcatReplay", "training_epoch", "max_tick", "grid"):
        assert word in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LunarLander-v2", "LunarLander-v3"),
        ("PongNoFrameskip-v4", "ALE/Pong-v5"),
        ("BreakoutDeterministic-v4", "ALE/Breakout-v5"),
        ("RoboschoolHalfCheetah-v1", "HalfCheetah-v5"),
        ("HumanoidStandup-v2", "HumanoidStandup-v5"),
        ("Acrobot-v1", "Acrobot-v1"),
        ("${env}", "${env}"),
        ("my_module:MyEnv-v0", "my_module:MyEnv-v0"),
    ],
)
def test_ids_that_no_longer_exist_become_what_took_their_place(v4, old, new):
    v4["env"][0]["name"] = old
    tree, notes = upgrade_spec(v4)
    assert tree["env"]["name"] == new
    assert any(old in note for note in notes) == (old != new)


def test_atari_loses_what_its_preprocessing_always_does(v4):
    v4["env"] = [
        {"name": "PongNoFrameskip-v4", "frame_op": "concat", "frame_op_len": 4}
        | {"reward_scale": "sign", "max_frame": 1e7}
    ]
    tree, _ = upgrade_spec(v4)
    assert tree["env"] == {"name": "ALE/Pong-v5", "max_frame": 1e7}


def test_a_sign_elsewhere_is_a_clip_of_one(v4):
    v4["env"][0] |= {"reward_scale": "sign"}
    tree, _ = upgrade_spec(v4)
    assert tree["env"]["clip_reward"] == 1
    assert "reward_scale" not in tree["env"]


def test_ppo_keeps_its_epochs(v4):
    v4["agent"][0]["algorithm"] = {"name": "PPO", "training_epoch": 4}
    assert upgrade_spec(v4)[0]["agent"]["algorithm"]["training_epoch"] == 4


def test_what_is_no_list_of_one_agent_is_left_for_the_builder_to_refuse(v4):
    v4["agent"] = []
    tree, _ = upgrade_spec(v4)
    with pytest.raises(SpecError, match=r"agent: found null; expected a mapping"):
        spec_from_dict(tree)


def test_a_whole_file_keeps_its_other_specs_and_its_format(v4, ppo, write):
    old = write("old.json", {"old": v4, "new": ppo})
    text, notes = upgrade_file(old)
    assert list(notes) == ["old"]
    again = write("again.json", text)
    assert spec_names(again) == ["old", "new"]
    assert load_spec(again, "new").to_dict()["agent"] == ppo["agent"]
    assert json.loads(old.read_text())["old"] == v4  # the original is only read


def test_a_file_without_old_specs_has_nothing_to_upgrade(ppo, write):
    with pytest.raises(SpecError, match="no spec in the file has the v4 shape"):
        upgrade_file(write("new.json", {"new": ppo}))
