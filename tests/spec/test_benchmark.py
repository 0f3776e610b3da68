"""Every shipped spec loads as it is, without a warning, and every field explains itself."""

from __future__ import annotations

import warnings

import pytest

from slm_lab.spec import check_file, load_spec, packaged_spec_dir, packaged_specs, spec_from_dict
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.block import Block
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.meta import MetaSpec
from slm_lab.spec.net import NETS, LossSpec, OptimSpec, SchedulerSpec
from slm_lab.spec.schema import AgentSpec, Spec
from slm_lab.spec.search import split_search_key

SHIPPED = list(packaged_specs())


def test_the_demo_spec_is_shipped():
    assert ("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole") in [
        (file.as_posix(), name) for file, name in SHIPPED
    ]


@pytest.mark.parametrize("file", sorted({file for file, _ in SHIPPED}), ids=str)
def test_shipped_files_have_neither_problems_nor_warnings(file):
    for check in check_file(packaged_spec_dir() / file):
        assert check.problems == [], check.name
        assert check.warnings == [], check.name


@pytest.mark.parametrize(("file", "name"), SHIPPED, ids=lambda part: str(part))
def test_shipped_specs_survive_being_saved(file, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = load_spec(file, name, _fill(file))
        assert spec_from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(("file", "name"), SHIPPED, ids=lambda part: str(part))
def test_both_ends_of_every_shipped_search_are_valid(file, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = load_spec(file, name, _fill(file))
        for key, arguments in spec.search.items():
            path, distribution = split_search_key(key)
            options = arguments if distribution == "choice" else arguments[:2]
            for option in options:
                spec.with_values({path: option})


@pytest.mark.parametrize(
    "model",
    [
        *sorted(
            {*ALGORITHMS.values(), *MEMORIES.values(), *NETS.values()}, key=lambda m: m.__name__
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


def _fill(file: object) -> list[str]:
    text = (packaged_spec_dir() / str(file)).read_text()
    values = {"env": "CartPole-v1", "max_frame": "1e5"}
    return [f"{key}={value}" for key, value in values.items() if f"${{{key}}}" in text]
