"""The manifest covers what the documents list, and every row's spec is run under its Settings."""

from __future__ import annotations

import pytest
import yaml

from slm_lab.benchmark.manifest import ManifestError, load_manifest, row_problems
from slm_lab.benchmark.seeds import derived_seed, fingerprint
from slm_lab.spec.catalog import target_scores

SHIPPED = load_manifest()
# Phase -> envs and rows, as the documents list them.
COVERED = {1: (3, 22), 2: (2, 10), 3: (11, 44), 4: (63, 366), 5: (54, 54)}


@pytest.mark.parametrize("phase", SHIPPED.phases, ids=lambda phase: phase.name)
def test_every_row_resolves_to_a_spec_with_its_settings(phase):
    assert [problem for row in phase.rows for problem in row_problems(row)] == []


@pytest.mark.parametrize("phase", SHIPPED.phases, ids=lambda phase: phase.name)
def test_every_env_and_row_of_the_documents_is_there(phase):
    rows = list(phase.rows)
    assert (len({row.env for row in rows}), len(rows)) == COVERED[phase.phase]


def test_every_target_belongs_to_a_row_that_takes_it_from_the_one_list():
    listed = {row.env: row.target for row in SHIPPED.rows if row.target is not None}
    assert listed.items() <= target_scores().items()
    # BipedalWalker has a spec, but no table in the documents.
    assert target_scores().keys() - listed.keys() == {"BipedalWalker-v3"}


def test_a_row_has_the_command_that_makes_it():
    row = SHIPPED.by_id["ale-pong-v5_ppo"]
    assert row.command == (
        "slm-lab run slm_lab/spec/benchmark/ppo/ppo_atari.json ppo_atari_lam85 train "
        f"-s env=ALE/Pong-v5 --seed {row.spec().meta.random_seed}"
    )


def test_the_goal_is_the_bar_else_the_target_else_the_documents_best():
    assert SHIPPED.by_id["cartpole-v1_ppo"].goal == 499  # its own bar
    assert SHIPPED.by_id["cartpole-v1_sac"].goal == 450  # the bar of its table
    assert SHIPPED.by_id["hopper-v5_ppo"].goal == 2000  # the target
    assert SHIPPED.by_id["ale-alien-v5_ppo"].goal == 1789  # nobody set a target


def test_a_spec_that_drifts_from_the_settings_is_named_with_its_row(write_manifest):
    path = write_manifest(settings={"max_frame": 300, "log_frequency": 10})
    (row,) = load_manifest(path).rows
    assert row_problems(row) == [
        f"{row.id}: max_frame: the spec has 200, the row 300",
        f"{row.id}: log_frequency: the spec has 50, the row 10",
    ]


def test_fewer_sessions_are_a_setting_that_the_row_says_and_the_spec_is_given(write_manifest):
    path = write_manifest(settings={"max_session": 1}, flags=["env", "meta.max_session"])
    (row,) = load_manifest(path).rows
    assert row.sets == ["env=probe/ActionMatters-v0", "meta.max_session=1"]
    assert row_problems(row) == []
    assert row.spec().meta.max_session == 1


def test_the_trials_of_a_row_differ_in_the_seeds_that_follow_from_its_spec():
    row = SHIPPED.by_id["cartpole-v1_ppo"]
    assert (row.trials, row.sessions) == (2, 8)
    mark = fingerprint(row.spec())
    for trial in range(2):
        assert row.spec(trial).meta.random_seed == derived_seed(mark, trial)
    short = row.limited(sessions=2, trials=1)
    assert (short.sessions, short.spec().meta.max_session) == (2, 2)
    assert short.spec().meta.random_seed == row.spec().meta.random_seed
    assert row.limited(sessions=9, trials=9) == row


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"algorithm": "SAC"}, "algorithm: the spec has PPO, the row SAC"),
        (
            {"env": "probe/ConstantReward-v0", "flags": [], "variables": {"env": "CartPole-v1"}},
            "env:",
        ),
        ({"spec_name": "tinny"}, "no spec `tinny`"),
    ],
)
def test_a_row_about_something_else_is_told(write_manifest, change, told):
    (row,) = load_manifest(write_manifest(**change)).rows
    (problem,) = row_problems(row)
    assert told in problem
    assert row.id in problem


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scores": 3}, "probe/ActionMatters-v0 PPO scores: Extra inputs are not permitted"),
        ({"settings": {"num_envs": 0}}, "PPO settings.num_envs: Input should be greater than 0"),
        ({"best": {"score": 1, "source": "HEARSAY"}}, "found HEARSAY, expected a tag of"),
    ],
)
def test_a_manifest_with_a_mistake_is_refused_by_file_row_and_key(write_manifest, change, told):
    with pytest.raises(ManifestError, match=r"tiny|probe") as caught:
        load_manifest(write_manifest(**change))
    assert told in str(caught.value)


def test_an_entry_with_envs_stands_for_a_row_of_each(write_manifest):
    path = write_manifest()
    phase = yaml.safe_load(path.read_text())
    (row,) = phase["tables"][0]["rows"]
    del row["env"]
    row["envs"] = {
        "probe/ActionMatters-v0": {},
        "CartPole-v1": {"bar": 7},
    }
    path.write_text(yaml.safe_dump(phase, sort_keys=False))
    rows = load_manifest(path).rows
    assert [(each.env, each.goal) for each in rows] == [
        ("probe/ActionMatters-v0", 0.5),
        ("CartPole-v1", 7),
    ]
    assert [problem for each in rows for problem in row_problems(each)] == []


def test_settings_of_the_documents_come_from_phase_table_row_and_the_spec_that_they_name():
    row = SHIPPED.by_id["hopper-v5_sac"]
    assert row.documents.model_dump(exclude_none=True) == {
        "num_envs": 16,  # of the phase
        "sessions": 4,
        "log_frequency": 10_000,
        "max_frame": 3_000_000,  # of the row
        "batch": 256,  # of the original's sac_hopper.json
        "updates_per_frame": 0.5,
    }


def test_two_rows_with_one_name_are_refused(write_manifest, tmp_path):
    path = write_manifest()
    (tmp_path / "phase2.yaml").write_text(path.read_text())
    with pytest.raises(ManifestError, match="two rows have probe/ActionMatters-v0 and PPO"):
        load_manifest(tmp_path)


def test_rows_are_chosen_by_phase_env_and_algorithm():
    assert len(SHIPPED.choose(phases=[1, 2])) == 32
    chosen = SHIPPED.choose(envs=["cartpole-v1"], algorithms=["ppo", "A2C"])
    assert [row.id for row in chosen] == ["cartpole-v1_a2c", "cartpole-v1_ppo"]
    assert len(SHIPPED.choose(envs=["LunarLander*-v3"], algorithms=["SAC"])) == 2
    with pytest.raises(ManifestError, match="--algo TRPO: no row of the manifest fits"):
        SHIPPED.choose(algorithms=["TRPO"])
