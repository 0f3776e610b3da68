"""A file, a name and `-s` flags become a Spec."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from slm_lab.spec import (
    SpecError,
    SpecWarning,
    check_file,
    load_spec,
    packaged_spec_dir,
    packaged_specs,
    spec_from_dict,
    spec_names,
)
from slm_lab.spec.algorithm.ppo import PPOSpec
from slm_lab.spec.schema import name_complaint


def refusal(file: Any, name: str | None = None, sets: tuple[str, ...] = ()) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(file, name, sets)
    return str(caught.value)


@pytest.fixture
def templated(ppo, write) -> Path:
    spec = copy.deepcopy(ppo)
    spec["env"].update(name="${env}", max_frame="${max_frame}")
    file: Path = write("ppo_many.json", {"ppo_many": spec})
    return file


# Finding the file and the spec


def test_json_and_yaml_give_the_same_spec(ppo, write):
    import yaml

    json_file = write("a.json", {"a": ppo})
    yaml_file = write("b.yaml", yaml.safe_dump({"a": ppo}))
    assert load_spec(json_file, "a") == load_spec(yaml_file, "a")


@pytest.mark.parametrize(
    "file", ["slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "benchmark/ppo/ppo_cartpole.json"]
)
def test_shipped_files_are_found_from_any_folder(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_spec(file, "ppo_cartpole").name == "ppo_cartpole"


def test_the_name_of_a_shipped_spec_stands_for_its_file(ppo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_spec("ppo_cartpole", sets=["env.max_frame=9000"]).env.max_frame == 9000
    (tmp_path / "ppo_cartpole.json").write_text(json.dumps({"mine": ppo}))
    assert load_spec("ppo_cartpole").name == "mine", "a file in the folder comes first"


def test_the_working_folder_comes_before_the_package(ppo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = tmp_path / "benchmark/ppo/ppo_cartpole.json"
    local.parent.mkdir(parents=True)
    ppo["env"]["num_envs"] = 8
    local.write_text(json.dumps({"ppo_cartpole": ppo}))
    assert load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole").env.num_envs == 8


def test_a_file_that_moved_to_another_format_is_found(ppo, write):
    file = write("a.json", {"a": ppo})
    assert load_spec(file.with_suffix(".yaml"), "a").name == "a"


def test_a_missing_file_gets_near_names(ppo, write):
    assert "benchmark/ppo/ppo_cartpole.json" in refusal("ppo_cartpol.json", "ppo_cartpole")
    mine = write("my_spec.json", {"a": ppo})
    assert "my_spec.json" in refusal(mine.with_name("my_spce.json"), "a")


def test_a_missing_name_lists_the_names_nearest_first(ppo, write):
    file = write("a.json", {"dqn": ppo, "ppo_cart": ppo, "_private": 3})
    assert "the file has ppo_cart, dqn" in refusal(file, "ppo_crat")
    assert "_private" not in refusal(file, "_private").splitlines()[1].partition(";")[2]


def test_private_blocks_are_not_listed(ppo, write):
    file = write("a.yaml", "_base: &base {x: 1}\nreal: {agent: {}, env: {}, meta: {}}\n")
    assert spec_names(file) == ["real"]


def test_a_saved_spec_is_its_own_file(ppo, write):
    spec = load_spec(write("a.json", {"a": ppo}), "a")
    assert load_spec(write("a_t0_spec.json", spec.to_dict())) == spec


def test_yaml_merge_keys_are_shallow(ppo, write):
    file = write(
        "m.yaml",
        "_base: &base\n"
        "  env: {name: CartPole-v1, max_frame: 100, num_envs: 2}\n"
        "  meta: {max_session: 1, log_frequency: 10}\n"
        f"  agent: {json.dumps(ppo['agent'])}\n"
        "changed:\n"
        "  <<: *base\n"
        "  env: {name: CartPole-v1, max_frame: 3e2}\n",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)
        env = load_spec(file, "changed").env
    assert (env.num_envs, env.max_frame) == (1, 300)


# Numbers


def test_text_that_spells_a_number_is_one_except_in_names(ppo, write):
    ppo["agent"]["net"]["optim_spec"] = {"name": "Adam", "lr": "3e-4", "eps": "1e-5"}
    ppo["env"].update(name="123", max_frame="1e7", continuous="0.5")
    spec = load_spec(write("a.json", {"a": ppo}), "a")
    assert spec.agent.net.optim_spec.lr == 3e-4
    assert (spec.env.name, spec.env.max_frame) == ("123", 10_000_000)
    assert spec.env.kwargs == {"continuous": 0.5}


# -s on placeholders


def test_placeholders_are_filled_and_numbers_lose_their_quotes(templated):
    spec = load_spec(templated, "ppo_many", ["env=ALE/Pong-v5", "max_frame=10e6"])
    assert (spec.env.name, spec.env.max_frame) == ("ALE/Pong-v5", 10_000_000)
    assert spec.to_dict()["env"]["max_frame"] == 10_000_000


@pytest.mark.parametrize(
    ("env", "short"),
    [("ALE/Pong-v5", "pong"), ("playground/CartpoleBalance", "cartpolebalance")],
)
def test_filling_the_env_extends_the_run_name(templated, env, short):
    spec = load_spec(templated, "ppo_many", [f"env={env}", "max_frame=1e6"])
    assert spec.name == f"ppo_many_{short}"


def test_bare_placeholders_may_stand_where_json_wants_a_number(templated):
    templated.write_text(templated.read_text().replace('"${max_frame}"', "${max_frame}"))
    spec = load_spec(templated, "ppo_many", ["env=CartPole-v1", "max_frame=1e6"])
    assert spec.env.max_frame == 1_000_000
    assert "env.max_frame: ${max_frame} is not filled" in refusal(
        templated, "ppo_many", ("env=CartPole-v1",)
    )


def test_every_unfilled_placeholder_is_named_with_its_path(templated):
    message = refusal(templated, "ppo_many")
    assert "env.name: ${env} is not filled. Add -s env=VALUE" in message
    assert "env.max_frame: ${max_frame} is not filled" in message


def test_other_specs_of_the_file_may_keep_theirs(templated, ppo):
    plain = copy.deepcopy(ppo)
    plain["env"].update(name="CartPole-v1", max_frame=1000)
    specs = json.loads(templated.read_text())
    templated.write_text(json.dumps({**specs, "plain": plain}))
    assert load_spec(templated, "plain").env.max_frame == 1000


def test_a_flag_that_only_another_spec_of_the_file_would_use_is_refused(templated, ppo):
    specs = json.loads(templated.read_text())
    templated.write_text(json.dumps({**specs, "plain": ppo}))
    message = refusal(templated, "plain", ("max_frame=1000",))
    assert "-s max_frame=1000 changes nothing: the spec has no placeholders" in message


def test_a_placeholder_that_no_flag_fills_takes_the_default_of_the_file(templated):
    specs = json.loads(templated.read_text())
    templated.write_text(json.dumps({"_defaults": {"max_frame": "4e6"}, **specs}))
    assert load_spec(templated, "ppo_many", ["env=CartPole-v1"]).env.max_frame == 4_000_000
    both = ["env=CartPole-v1", "max_frame=1e6"]
    assert load_spec(templated, "ppo_many", both).env.max_frame == 1_000_000
    assert "env.name: ${env} is not filled" in refusal(templated, "ppo_many")


def test_a_default_env_leaves_the_run_name_alone(templated):
    specs = json.loads(templated.read_text())
    defaults = {"env": "CartPole-v1", "max_frame": 20000}
    templated.write_text(json.dumps({"_defaults": defaults, **specs}))
    assert load_spec(templated, "ppo_many").name == "ppo_many"


@pytest.mark.parametrize("defaults", [[1], "max_frame", {"max_frame": [1]}, {"max_frame": None}])
def test_defaults_that_are_no_values_are_refused(templated, defaults):
    specs = json.loads(templated.read_text())
    templated.write_text(json.dumps({"_defaults": defaults, **specs}))
    assert "_defaults: expected a mapping of placeholders" in refusal(templated, "ppo_many")


def test_notes_and_the_schema_of_a_file_are_no_specs(ppo, write):
    file = write("a.json", {"$schema": "spec.schema.json", "_about": ["PPO"], "a": ppo})
    assert spec_names(file) == ["a"]


# -s on dotted paths


def test_a_dotted_path_writes_any_key(ppo, write):
    spec = load_spec(
        write("a.json", {"a": ppo}),
        "a",
        [
            "agent.algorithm.gamma=0.5",
            "env.num_envs=8",
            "agent.net.hid_layers=[32, 32]",
            "agent.net.optim_spec.lr=1e-2",
            "env.name=Acrobot-v1",
            "env.max_frame=5e3",
            "meta.random_seed=7",
        ],
    )
    assert isinstance(spec.agent.algorithm, PPOSpec)
    assert spec.agent.algorithm.gamma == 0.5
    assert (spec.env.name, spec.env.num_envs, spec.env.max_frame) == ("Acrobot-v1", 8, 5000)
    assert spec.to_dict()["agent"]["net"]["hid_layers"] == [32, 32]
    assert spec.agent.net.optim_spec.lr == 0.01
    assert spec.meta.random_seed == 7
    assert spec.name == "a"


def test_a_list_is_indexed_by_number(ppo, write):
    spec = load_spec(write("a.json", {"a": ppo}), "a", ["agent.net.hid_layers.0=32"])
    assert spec.to_dict()["agent"]["net"]["hid_layers"] == [32, 64]


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("agent.algorithm.gama=0.9", "Did you mean `gamma`?"),
        ("agent.algoritm.gamma=0.9", "Did you mean `algorithm`?"),
        ("agent.algorithm.gamma=high", "expected a number"),
        ("env.num_env=4", "Did you mean `num_envs`?"),
    ],
)
def test_a_wrong_assignment_is_blamed_on_its_flag(ppo, write, flag, hint):
    message = refusal(write("a.json", {"a": ppo}), "a", (flag,))
    assert hint in message
    assert f"(set by -s {flag})" in message


def test_a_plain_word_without_a_placeholder_gets_the_dotted_path(ppo, write, templated):
    hard_coded = write("a.json", {"a": ppo})
    message = refusal(hard_coded, "a", ("max_frame=1000",))
    assert "-s max_frame=1000 changes nothing: the spec has no placeholders" in message
    assert "Did you mean -s env.max_frame=1000?" in message
    assert "-s env.name=Pong" in refusal(hard_coded, "a", ("env=Pong",))
    assert "the placeholders env, max_frame" in refusal(templated, "ppo_many", ("foo=1",))


@pytest.mark.parametrize("flag", ["gamma", "=3", "a b=3", "", "agent..x=1", "max_frame=inf"])
def test_a_malformed_flag_is_refused(templated, flag):
    assert f"-s {flag}" in refusal(templated, "ppo_many", (flag,))


# Warnings


def test_warnings_name_the_file_and_come_once(ppo, write):
    ppo["agent"]["algorithm"].update(training_frequency=1, policy_loss_coef=1)
    with pytest.warns(SpecWarning, match=r"a\.json: keys without effect here") as caught:
        load_spec(write("a.json", {"a": ppo}), "a")
    assert len(caught) == 1


# Whole files


def test_check_file_reports_every_spec(ppo, write):
    bad = copy.deepcopy(ppo)
    bad["agent"]["algorithm"]["gama"] = 1
    odd = copy.deepcopy(ppo)
    odd["agent"]["algorithm"]["training_frequency"] = 1
    odd["env"].update(name="${env}", max_frame="${max_frame}")
    checks = check_file(write("a.json", {"good": ppo, "bad": bad, "odd": odd}))
    assert [(check.name, check.ok) for check in checks] == [
        ("good", True),
        ("bad", False),
        ("odd", True),
    ]
    assert checks[1].problems[0].path == "agent.algorithm.gama"
    assert "training_frequency" in checks[2].warnings[0]


def test_the_door_opens_without_torch_numpy_or_gymnasium():
    heavy = "('torch', 'numpy', 'gymnasium')"
    code = f"import sys, slm_lab.spec; sys.exit(any(name in sys.modules for name in {heavy}))"
    root = packaged_spec_dir().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    assert done.returncode == 0


# Text that grows


def bomb(doublings: int) -> dict[str, str]:
    """`_defaults` in which each placeholder is twice the next: 2 ** doublings letters in all."""
    chain = {f"a{i}": f"${{a{i + 1}}}${{a{i + 1}}}" for i in range(doublings)}
    return {**chain, f"a{doublings}": "x"}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_defaults_that_double_without_end_are_refused_before_they_take_memory(
    tmp_path, ppo, suffix
):
    ppo["env"]["name"] = "${a0}"
    file = tmp_path / f"bomb{suffix}"
    file.write_text(json.dumps({"_defaults": bomb(64), "x": ppo}))
    for read in (lambda: load_spec(file, "x"), lambda: check_file(file)):
        with pytest.raises(SpecError, match=r"\$\{a\d+\}.* more than 1,000,000 characters"):
            read()


def test_flags_that_double_without_end_are_refused_too(tmp_path, ppo):
    ppo["env"]["name"] = "${a0}"
    file = tmp_path / "bomb.json"
    file.write_text(json.dumps({"x": ppo}))
    with pytest.raises(SpecError, match=r"\$\{a\d+\}.* more than 1,000,000 characters"):
        load_spec(file, "x", [f"{key}={value}" for key, value in bomb(64).items()])


def test_defaults_may_build_on_each_other(tmp_path, ppo):
    ppo["env"]["name"] = "${a0}"
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"_defaults": bomb(2), "x": ppo}))
    assert load_spec(file, "x").env.name == "xxxx"


# Names


@pytest.mark.parametrize(
    "name",
    [
        "x_t0",  # what the files of trial 0 of `x` begin with
        "x_t12",
        "two\nlines",
        "{x}",
        "a/b",
        "..",
        ".hidden",
        "-flag",
        "with space",
        "esc\x1b[2J",
        "é",
        "x" * 101,
    ],
)
def test_a_name_that_cannot_begin_the_files_of_a_run_is_refused(ppo, write, name):
    file = write("named.json", {name: ppo})
    message = refusal(file, name)
    assert "name: found" in message
    assert "1 to 100 letters, digits and _ - . +" in message
    assert "\x1b" not in message
    assert not check_file(file)[0].ok
    with pytest.raises(SpecError, match="1 to 100 letters"):
        spec_from_dict(ppo, name)


@pytest.mark.parametrize("name", ["x", "x" * 100, "ppo_v1.2+sil-b", "x_t0_wide", "x_to", "3d"])
def test_other_names_are_taken(ppo, write, name):
    assert load_spec(write("named.json", {name: ppo}), name).name == name


def test_every_shipped_name_is_taken():
    names = {name for _, name in packaged_specs()}
    assert len(names) > 50
    assert [name for name in names if name_complaint(name)] == []


def test_a_saved_spec_without_a_name_has_that_of_its_file_without_the_trial(ppo, write):
    assert load_spec(write("small_t3_spec.json", ppo)).name == "small"
    assert load_spec(write("small_spec.json", ppo)).name == "small"


def test_the_name_of_an_env_that_is_filled_in_is_part_of_the_name(templated):
    sets = ["max_frame=1000", "env=my_package.envs:Pole-v0"]
    assert load_spec(templated, "ppo_many", sets).name == "ppo_many_pole"
