"""The schema that editors use agrees with the loader, and the reference page with the classes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from slm_lab.spec import packaged_spec_dir, packaged_specs
from slm_lab.spec.reference import file_schema, reference_page
from slm_lab.spec.text import parse

FILES = sorted({file for file, _ in packaged_specs()})
VALIDATOR = Draft202012Validator(file_schema())


def complaints(tree: dict[str, Any]) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(tree)]


def test_the_schema_is_one():
    Draft202012Validator.check_schema(file_schema())


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_shipped_file_satisfies_it(file: Path):
    text = (packaged_spec_dir() / file).read_text()
    assert complaints(parse(text, is_json=file.suffix == ".json")) == []


def test_notes_defaults_and_the_schema_key_are_allowed(ppo):
    tree = {"$schema": "spec.schema.json", "_about": "x", "_defaults": {"env": "X"}, "_any": 1}
    assert complaints({**tree, "a": ppo}) == []


def test_placeholders_and_text_that_spells_a_number_may_stand_for_one(ppo):
    ppo["env"]["max_frame"] = "${max_frame}"
    ppo["agent"]["algorithm"]["gamma"] = "9.9e-1"
    assert complaints({"a": ppo}) == []


def test_null_means_the_default_as_in_the_loader(ppo):
    ppo["agent"]["algorithm"].update(entropy_coef_spec=None, val_loss_coef=None)
    ppo["env"]["max_t"] = None
    assert complaints({"a": ppo}) == []


def test_arguments_stand_beside_the_name_and_an_actor_may_have_its_own(ppo):
    ppo["agent"]["net"]["actor_optim_spec"] = {"name": "RMSprop", "lr": 1e-3, "alpha": 0.9}
    ppo["agent"]["net"]["lr_scheduler_spec"] = {"name": "StepLR", "step_size": 5}
    ppo["env"]["continuous"] = True
    ppo["agent"]["net"]["actor_out_init_std"] = 0.01
    assert complaints({"a": ppo}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("agent.algorithm.gama", 0.9),
        ("agent.algorithm.gamma", 1.5),
        ("agent.algorithm.gamma", "high"),
        ("agent.algorithm.name", "PPPO"),
        ("agent.algorithm.training_iter", 3),  # of DQN
        ("agent.memory.name", "Reply"),
        ("agent.net.hid_layers", 64),
        ("agent.net.hid_layer", [64]),
        ("agent.net.optim_spec", {"name": "Adam", "learning_rate": 1e-3}),
        ("agent.net.optim_spec", {"name": "Adm"}),
        ("agent.net.update_type", "slow"),
        ("agent.critic", {}),
        ("env.num_envs", 0),
        ("env.clip_reward", [1]),
        ("meta.max_sesion", 4),
        ("meta.distributed", "sync"),
        ("search", {"agent.algorithm.gamma__unifrom": [0, 1]}),
        ("serch", {}),
    ],
)
def test_a_mistake_is_found(ppo, path: str, value: Any):
    tree = copy.deepcopy(ppo)
    *parents, last = path.split(".")
    block = tree
    for part in parents:
        block = block[part]
    block[last] = value
    assert complaints({"a": tree}) != []


@pytest.mark.parametrize("block", ["agent", "env"])
def test_a_missing_block_is_found(ppo, block: str):
    del ppo[block]
    assert complaints({"a": ppo}) != []


def test_every_key_that_can_be_completed_explains_itself():
    blocks = file_schema()["$defs"]
    silent = [
        f"{name}.{key}"
        for name, block in blocks.items()
        for key, schema in block.get("else", block)["properties"].items()
        if not schema.get("description")
    ]
    assert silent == []


def test_the_reference_page_is_what_the_classes_say():
    page = Path(__file__).parents[2] / "docs" / "SPEC.md"
    fix = "run: slm-lab spec --docs > docs/SPEC.md"
    assert page.read_text() == reference_page(), fix


@pytest.mark.parametrize(
    ("algorithm", "block"),
    [
        ("DQN", "{name: `Replay`, batch_size: 64, max_size: 100000}"),
        ("DQN", "update_type: `replace`, update_frequency: 1000}"),
        ("SoftActorCritic", "update_type: `polyak`, polyak_coef: 0.005}"),
        ("PPO", "hid_layers: [64, 64], hid_layers_activation: `tanh`"),
        ("CrossQ", "LazyBatchRenorm1d: {momentum: 0.01"),
    ],
)
def test_the_reference_page_shows_the_blocks_that_may_be_left_out(algorithm: str, block: str):
    page = reference_page()
    assert "| `memory` | mapping | the algorithm's |" in page
    assert any(block in line for line in page.splitlines() if algorithm in line)


def test_a_class_of_the_users_own_may_stand_wherever_one_of_ours_does():
    def errors(algorithm: dict[str, Any], net: dict[str, Any], **env: Any) -> list[str]:
        env = {"name": "Pendulum-v1", "max_frame": 100, **env}
        tree = {"mine": {"agent": {"algorithm": algorithm, "net": net}, "env": env}}
        return complaints(tree)

    own = {"name": "mine:Own", "any": [1, "key"]}
    assert errors(own, {"type": "mine:Net", "any": 1}, wrappers=["mine:Wrap", own]) == []
    parts = {"explore_var_spec": own, "action_pdtype": "mine:Logistic"}
    net = {"type": "MLPNet", "loss_spec": own, "optim_spec": own, "lr_scheduler_spec": own}
    assert errors({"name": "DQN", **parts}, net) == []
    assert errors({"name": "DQN", "explore_var_spec": {"name": "no_decay", "start": 1}}, net)
    assert errors({"name": "mine"}, net)
    assert errors(own, net, wrappers=["Wrap"])
