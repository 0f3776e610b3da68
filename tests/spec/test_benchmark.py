"""Every shipped spec loads as it is, without a warning, and every field explains itself."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import pytest

from slm_lab.spec import (
    check_file,
    example_sets,
    find_spec_file,
    load_spec,
    packaged_spec_dir,
    packaged_specs,
    spec_from_dict,
)
from slm_lab.spec.agent import AgentSpec
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.block import Block
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import NETS
from slm_lab.spec.optim import LossSpec, OptimSpec, SchedulerSpec
from slm_lab.spec.schema import MetaSpec, Spec
from slm_lab.spec.search import split_search_key
from slm_lab.spec.text import parse

SHIPPED = list(packaged_specs())


@functools.cache
def shipped(file: str | Path, name: str) -> Spec:
    """Loaded once, and with an error for any warning: tests run with warnings as errors."""
    return load_spec(file, name, example_sets(file, name))


def test_the_demo_spec_is_shipped():
    assert ("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole") in [
        (file.as_posix(), name) for file, name in SHIPPED
    ]


def _pairs(folder: str, names: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"{folder}/{file}", name) for file, many in names.items() for name in many.split()]


# Every SPEC_FILE and SPEC_NAME that the published documents print, Atari apart.
PRINTED = [
    *_pairs(
        "benchmark/a2c",
        {
            "a2c_gae_acrobot.json": "a2c_gae_acrobot",
            "a2c_gae_cartpole.json": "a2c_gae_cartpole",
            "a2c_gae_lunar.json": "a2c_gae_lunar a2c_gae_lunar_continuous",
            "a2c_gae_mujoco.json": "a2c_gae_mujoco",
            "a2c_gae_pendulum.json": "a2c_gae_pendulum",
        },
    ),
    *_pairs(
        "benchmark/dqn",
        {
            "ddqn_per_acrobot.json": "ddqn_per_acrobot",
            "ddqn_per_lunar.json": "ddqn_per_concat_lunar",
            "dqn_acrobot.json": "dqn_boltzmann_acrobot dqn_epsilon_greedy_acrobot",
            "dqn_cartpole.json": "dqn_boltzmann_cartpole ddqn_per_boltzmann_cartpole",
            "dqn_lunar.json": "dqn_concat_lunar",
        },
    ),
    *_pairs(
        "benchmark/ppo",
        {
            "ppo_acrobot.json": "ppo_acrobot",
            "ppo_ant.json": "ppo_ant",
            "ppo_cartpole.json": "ppo_cartpole",
            "ppo_halfcheetah.json": "ppo_halfcheetah",
            "ppo_hopper.json": "ppo_hopper",
            "ppo_humanoid.json": "ppo_humanoid",
            "ppo_humanoid_standup.json": "ppo_humanoid_standup",
            "ppo_inverted_double_pendulum.json": "ppo_inverted_double_pendulum",
            "ppo_inverted_pendulum.json": "ppo_inverted_pendulum",
            "ppo_lunar.json": "ppo_lunar ppo_lunar_continuous",
            "ppo_mujoco.json": "ppo_mujoco ppo_mujoco_longhorizon",
            "ppo_pendulum.json": "ppo_pendulum",
            "ppo_pusher.json": "ppo_pusher",
            "ppo_reacher.json": "ppo_reacher",
            "ppo_swimmer.json": "ppo_swimmer",
            "ppo_walker2d.json": "ppo_walker2d",
        },
    ),
    *_pairs(
        "benchmark/sac",
        {
            "sac_acrobot.json": "sac_acrobot",
            "sac_ant.json": "sac_ant",
            "sac_cartpole.json": "sac_cartpole",
            "sac_halfcheetah.json": "sac_halfcheetah",
            "sac_hopper.json": "sac_hopper",
            "sac_humanoid.json": "sac_humanoid",
            "sac_humanoid_standup.json": "sac_humanoid_standup",
            "sac_inverted_double_pendulum.json": "sac_inverted_double_pendulum",
            "sac_inverted_pendulum.json": "sac_inverted_pendulum",
            "sac_lunar.json": "sac_lunar sac_lunar_continuous",
            "sac_mujoco.json": "sac_mujoco",
            "sac_pendulum.json": "sac_pendulum",
            "sac_pusher.json": "sac_pusher",
            "sac_reacher.json": "sac_reacher",
            "sac_swimmer.json": "sac_swimmer",
            "sac_walker2d.json": "sac_walker2d",
        },
    ),
    ("benchmark/reinforce/reinforce_cartpole.json", "reinforce_cartpole"),
    ("benchmark/sarsa/sarsa_cartpole.json", "sarsa_boltzmann_cartpole"),
    ("benchmark/sarsa/sarsa_cartpole.json", "sarsa_epsilon_greedy_cartpole"),
    ("benchmark/sil/ppo_sil_acrobot.json", "ppo_sil_acrobot"),
    ("benchmark/sil/ppo_sil_cartpole.json", "ppo_sil_cartpole"),
    ("benchmark_arc/ppo/ppo_hopper_arc.yaml", "ppo_hopper_arc"),
    *_pairs(
        "benchmark_arc/ppo",
        {
            "ppo_playground.yaml": "ppo_playground ppo_playground_constlr ppo_playground_vnorm "
            "ppo_playground_vnorm_constlr ppo_playground_vnorm_constlr_clip03 ppo_playground_short "
            "ppo_playground_fingerspin ppo_playground_pendulum ppo_playground_humanoid "
            "ppo_playground_loco ppo_playground_loco_precise ppo_playground_loco_go1 "
            "ppo_playground_manip_aloha_peg"
        },
    ),
]


@pytest.mark.parametrize(("file", "name"), PRINTED, ids=lambda part: str(part))
def test_what_the_documents_print_is_shipped_under_that_path_and_name(file, name):
    assert find_spec_file(f"slm_lab/spec/{file}").resolve() == packaged_spec_dir() / file
    assert (Path(file), name) in SHIPPED


@pytest.mark.parametrize(("file", "name"), PRINTED, ids=lambda part: str(part))
def test_printed_commands_need_no_more_flags_than_the_env(file, name):
    """The documents print -s env=... for templates, and -s max_frame=... only now and then."""
    assert [flag for flag in example_sets(file, name) if not flag.startswith("env=")] == []
    meta = shipped(file, name).meta
    assert (meta.max_session, meta.distributed) == (4, False)


def takes_any_env(file: Path, name: str) -> bool:
    """Whether a spec has a placeholder for its env, with a default (Atari) or without."""
    text = (packaged_spec_dir() / file).read_text()
    return bool(parse(text, is_json=file.suffix == ".json")[name]["env"]["name"] == "${env}")


TEMPLATES = [(file, name) for file, name in SHIPPED if takes_any_env(file, name)]


@pytest.mark.parametrize(("file", "name"), TEMPLATES, ids=lambda part: str(part))
def test_a_file_for_many_envs_takes_the_env_and_the_budget_as_flags(file, name):
    spec = load_spec(file, name, ["env=CartPole-v1", "max_frame=3e6"])
    assert (spec.env.name, spec.env.max_frame) == ("CartPole-v1", 3_000_000)


def test_the_files_for_many_envs_are_counted():
    assert len({file for file, _ in TEMPLATES}) >= 11


def test_an_atari_spec_trains_on_pong_unless_told_otherwise():
    """The documents print `run-remote ... ppo_atari.json ppo_atari search` without an env."""
    atari = [(file, name) for file, name in SHIPPED if file.stem.endswith("_atari")]
    assert len(atari) >= 9
    for file, name in atari:
        spec = load_spec(file, name)
        assert (spec.env.name, spec.name) == ("ALE/Pong-v5", name)


@pytest.mark.parametrize("file", sorted({file for file, _ in SHIPPED}), ids=str)
def test_a_shipped_file_begins_with_what_it_is_for_and_how_to_run_it(file):
    text = (packaged_spec_dir() / file).read_text()
    top = text.partition("\n\n")[0] if file.suffix == ".yaml" else text[:1000]
    assert text.startswith(("# ", '{\n  "_about": ['))
    assert f"slm-lab run slm_lab/spec/{file.as_posix()}" in top


@pytest.mark.parametrize(("file", "name"), SHIPPED, ids=lambda part: str(part))
def test_every_shipped_spec_can_be_searched(file, name):
    spec = shipped(file, name)
    assert spec.search
    assert spec.meta.max_trial is not None


@pytest.mark.parametrize("file", sorted({file for file, _ in SHIPPED}), ids=str)
def test_shipped_files_have_neither_problems_nor_warnings(file):
    for check in check_file(packaged_spec_dir() / file):
        assert check.problems == [], check.name
        assert check.warnings == [], check.name


@pytest.mark.parametrize(("file", "name"), SHIPPED, ids=lambda part: str(part))
def test_shipped_specs_survive_being_saved(file, name):
    spec = shipped(file, name)
    assert spec_from_dict(spec.to_dict(), spec.name) == spec


@pytest.mark.parametrize(("file", "name"), SHIPPED, ids=lambda part: str(part))
def test_both_ends_of_every_shipped_search_are_valid(file, name):
    spec = shipped(file, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, arguments in spec.search.items():
            path, distribution = split_search_key(key)
            options = arguments if distribution == "choice" else arguments[:2]
            for option in options:
                spec.with_values({path: option})


@pytest.mark.parametrize(
    "model",
    [
        *sorted(
            {model for kind in (ALGORITHMS, MEMORIES, NETS) for model in kind.spec_classes()},
            key=lambda model: model.__name__,
        ),
        AgentSpec,
        EnvSpec,
        LossSpec,
        MetaSpec,
        OptimSpec,
        SchedulerSpec,
        Spec,
    ],
    ids=lambda model: model.__name__,
)
def test_every_field_has_a_description(model: type[Block]):
    assert [key for key, info in model.model_fields.items() if not info.description] == []


def test_the_schema_of_a_spec_can_be_written_out():
    schema = Spec.model_json_schema()
    assert schema["properties"].keys() == {"name", "agent", "env", "meta", "search"}
