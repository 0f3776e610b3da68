"""Which run, trial and session is meant."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import yaml

from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import save_spec
from slm_lab.spec import SpecError, load_spec
from slm_lab.spec.load import read_saved_spec
from slm_lab.spec.run_folder import RunFolderError


@pytest.fixture
def folder(tmp_path, make_spec) -> Path:
    """A folder as a search leaves it: trials 0 and 2 with agents, two sessions each."""
    return write_run(tmp_path / "data" / "tiny_2026_01_02_030405", make_spec())


def write_run(folder: Path, spec, name: str = "tiny") -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "info").mkdir()
    (folder / f"{name}_spec.json").write_text(json.dumps(spec.to_dict()))
    for trial, score in ((0, 10.0), (1, 99.0), (2, 50.0)):
        (folder / f"{name}_t{trial}_spec.json").write_text(
            json.dumps(spec.with_values({"env.max_frame": 200 + trial}).to_dict())
        )
        write_score(folder / f"info/{name}_t{trial}_trial_metrics_scalar.json", score)
        for session in range(2) if trial != 1 else ():
            for best in ("", "_ckpt-best"):
                (folder / f"model/{name}_t{trial}_s{session}{best}_net_model.pt").touch()
            path = folder / f"info/{name}_t{trial}_s{session}_session_metrics_scalar_train.json"
            write_score(path, score + session)
    return folder


def write_score(path: Path, score: float) -> None:
    path.write_text(json.dumps({"total_reward_ma": score, "strength": -score}))


def test_a_folder_means_its_best_trial_that_has_an_agent_and_the_best_session_of_it(folder):
    run = open_run(folder)
    assert (run.trial, run.best_session(), run.sessions()) == (2, 1, (0, 1))
    assert run.spec.env.max_frame == 202


def test_a_trial_can_be_chosen(folder):
    run = open_run(folder, trial=0)
    assert (run.trial, run.spec.env.max_frame) == (0, 200)


@pytest.mark.parametrize("name", ["tiny_t0_spec.json", "tiny_t0_spec.yaml", "tiny_t0_spec.yml"])
def test_a_spec_file_means_its_trial_under_either_extension(folder, name):
    assert open_run(folder / name).trial == 0


def test_a_saved_yaml_spec_is_found_when_json_is_asked_for(folder):
    path = folder / "tiny_t0_spec.json"
    path.rename(path.with_suffix(".yaml"))  # JSON is YAML
    assert open_run(path).spec.env.max_frame == 200


def test_a_spec_written_in_yaml_is_saved_as_yaml_too_and_json_counts(make_spec, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"tiny": make_spec().given()}))
    spec = pickle.loads(pickle.dumps(load_spec(file, "tiny").with_values({"env.max_t": 7})))
    layout = RunLayout.create("tiny", "2026_01_02_030405", tmp_path / "data")
    path = layout.trial_spec_path(0)
    save_spec(spec, path, layout, 0, "2026_01_02_030405", 0)
    copy = path.with_suffix(".yaml")
    assert yaml.safe_load(copy.read_text()) == json.loads(path.read_text())
    assert copy.read_text().startswith("# Copy of tiny_t0_spec.json")
    assert load_spec(copy) == load_spec(path) == spec

    more = read_saved_spec(path).with_values({"env.max_frame": 999})  # a run that is extended
    save_spec(more, path, layout, 0, "2026_01_02_030405", 0)
    assert load_spec(copy).env.max_frame == 999
    copy.write_text(copy.read_text().replace("999", "1"))
    assert open_run(layout.predir).spec.env.max_frame == 999


def test_a_spec_written_in_json_has_no_yaml(make_spec, tmp_path):
    layout = RunLayout.create("tiny", "2026_01_02_030405", tmp_path)
    save_spec(make_spec(), layout.trial_spec_path(0), layout, 0, "2026_01_02_030405", 0)
    assert [path.suffix for path in layout.predir.iterdir() if path.is_file()] == [".json"]


def test_a_star_means_the_last_match_since_no_shell_expands_it_after_an_at_sign(
    folder, make_spec, monkeypatch
):
    newer = write_run(folder.parent / "tiny_2026_01_03_000000", make_spec())
    monkeypatch.chdir(folder.parent.parent)
    run = open_run("data/tiny_*/tiny_t0_spec.yaml")
    assert (run.layout.predir.resolve(), run.trial) == (newer.resolve(), 0)


def test_latest_is_the_newest_run_of_the_spec_and_not_of_one_with_a_longer_name(
    folder, make_spec, monkeypatch
):
    monkeypatch.chdir(folder.parent.parent)
    write_run(folder.parent / "tiny_arc_2026_05_05_000000", make_spec(), "tiny_arc")
    newer = write_run(folder.parent / "tiny_2026_02_02_000000", make_spec())
    assert open_run("latest", spec_name="tiny").layout.predir.name == newer.name
    assert open_run("latest").layout.predir.name == "tiny_arc_2026_05_05_000000"
    assert open_run("latest", spec_name="tiny_arc").layout.name == "tiny_arc"


def test_latest_finds_a_run_named_after_its_env(folder, make_spec, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    write_run(folder.parent / "many_pong_2026_02_02_000000", make_spec(), "many_pong")
    assert open_run("latest", spec_name="many").layout.name == "many_pong"


def test_looking_changes_nothing(folder):
    before = sorted(folder.rglob("*"))
    open_run(folder).best_session()
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("data/tiny_2026_01_02_030406", ["no such run", "tiny_2026_01_02_030405"]),
        ("data/tiny_2026_01_02_030405/tiny_spec.txt", ["no such run", "*_spec.json"]),
        ("data/none_*/x_spec.json", ["no such run"]),
        ("data", ["not a run folder", "*_spec.yaml"]),
        ("", ["not a run folder"]),
    ],
)
def test_what_is_no_run_says_what_was_expected(folder, monkeypatch, where, words):
    monkeypatch.chdir(folder.parent.parent)
    with pytest.raises(RunFolderError) as error:
        open_run(where)
    for word in words:
        assert word in str(error.value)


def test_latest_of_nothing_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match="latest: no run of tiny in data/"):
        open_run("latest", spec_name="tiny")


def test_a_trial_without_agents_names_the_file_that_is_missing(folder):
    with pytest.raises(RunFolderError, match=r"no best agent of trial 1.*tiny_t1_s0_ckpt-best_net"):
        open_run(folder, trial=1).best_session()


def test_metrics_that_cannot_be_read_count_as_none(folder):
    info = folder / "info"
    (info / "tiny_t2_trial_metrics_scalar.json").write_text("[" * 100_000)
    (info / "tiny_t0_trial_metrics_scalar.json").write_text('{"total_reward_ma": NaN}')
    for path in info.glob("tiny_t0_s*"):
        path.write_text('{"total_reward_ma": "high"}')
    run = open_run(folder)
    assert (run.trial, run.best_session()) == (0, 0)


def test_a_name_in_a_spec_leads_nowhere(folder):
    path = folder / "tiny_t2_spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": "../../../etc/passwd"}))
    with pytest.raises(SpecError, match="name: "):
        open_run(folder)


def test_a_link_out_of_the_folder_is_not_followed(folder, tmp_path):
    path = folder / "tiny_t2_spec.json"
    outside = tmp_path / "outside_spec.json"
    path.rename(outside)
    os.symlink(outside, path)
    with pytest.raises(RunFolderError, match="is a link"):
        open_run(folder)


def test_a_spec_that_is_no_spec_is_a_spec_error(folder):
    (folder / "tiny_t2_spec.json").write_text("{")
    with pytest.raises(SpecError, match="not valid JSON"):
        open_run(folder)
