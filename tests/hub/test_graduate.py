"""Who may graduate: finished runs with the Settings of their table, and none of a search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slm_lab.benchmark.graduate import graduate
from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.remote import Remote, RemoteError
from slm_lab.hub.transfer import push
from slm_lab.spec import load_spec

FOLDER = "ppo_cartpole_2026_01_30_221924"


@pytest.fixture
def public(tmp_path: Path) -> Path:
    path = tmp_path / "public"
    path.mkdir()
    return path


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return write_run(tmp_path / "data" / FOLDER)


def write_run(
    folder: Path, sets: tuple[str, ...] = (), frame: int = 200_000, score: float = 490.0
) -> Path:
    """What counts of a run of ppo_cartpole: its spec, its tables and its score."""
    spec = load_spec("benchmark/ppo/ppo_cartpole.json", sets=sets)
    (folder / "info").mkdir(parents=True)
    (folder / "ppo_cartpole_t0_spec.json").write_text(
        json.dumps({"name": "ppo_cartpole", **spec.to_dict()})
    )
    for session in range(spec.meta.max_session):
        csv = folder / "info" / f"ppo_cartpole_t0_s{session}_session_df_train.csv"
        csv.write_text(f"total_reward_ma,frame\n1,500\n{score},{frame}\n")
    scalar = folder / "info" / "ppo_cartpole_t0_trial_metrics_scalar.json"
    scalar.write_text(json.dumps({"total_reward_ma": score}))
    return folder


def test_a_finished_run_is_copied_from_one_remote_to_the_other(
    remote: Remote, finished: Path, public: Path, kit: Any, share: Path, monkeypatch: Any
) -> None:
    push(remote, finished)
    source = str(kit.REPO) if "datasets" in remote.label else f"file:{share}"
    outcome = graduate("ppo_cartpole_2026", source, f"file:{public}")
    assert kit.contents(public / "data" / FOLDER) == kit.contents(finished)
    assert outcome.notes == ("total_reward_ma 490.00 reaches the target 400 of CartPole-v1",)


def test_a_local_folder_is_published_from_here(finished: Path, public: Path, kit: Any) -> None:
    assert (
        "can graduate" in graduate(str(finished), None, f"file:{public}", only_check=True).summary
    )
    assert not (public / "data").exists()
    graduate(str(finished), None, f"file:{public}")
    assert DirectoryRemote(public).folders() == [FOLDER]


def test_other_settings_are_refused_with_all_of_them_named(tmp_path: Path, public: Path) -> None:
    sets = ("env.num_envs=8", "meta.max_session=2", "env.max_frame=1e5", "meta.log_frequency=100")
    folder = write_run(tmp_path / "data" / FOLDER, sets, frame=100_000)
    with pytest.raises(RemoteError) as caught:
        graduate(str(folder), None, f"file:{public}")
    assert str(caught.value).splitlines() == [
        f"{FOLDER} cannot graduate:",
        "  env.num_envs: found 8, the Settings of cartpole-v1_ppo are 4.",
        "  env.max_frame: found 100,000, the Settings of cartpole-v1_ppo are 200,000.",
        "  meta.max_session: found 2, the Settings of cartpole-v1_ppo are 4.",
        "  meta.log_frequency: found 100, the Settings of cartpole-v1_ppo are 500.",
    ]
    assert not (public / "data").exists()


def test_other_hyper_parameters_are_no_obstacle(tmp_path: Path, public: Path) -> None:
    folder = write_run(tmp_path / "data" / FOLDER, ("agent.algorithm.gamma=0.9",))
    graduate(str(folder), None, f"file:{public}")


@pytest.mark.parametrize(
    "trace", ["ray_tune/journal.jsonl", "ppo_cartpole_experiment_df.csv", "validation/x"]
)
def test_a_search_is_refused(finished: Path, public: Path, trace: str) -> None:
    (finished / trace).parent.mkdir(exist_ok=True)
    (finished / trace).write_text("x")
    with pytest.raises(RemoteError, match="it came from a search"):
        graduate(str(finished), None, f"file:{public}")


def test_several_trials_are_a_search(finished: Path, public: Path) -> None:
    (finished / "info" / "ppo_cartpole_t1_s0_session_df_train.csv").write_text("frame\n1\n")
    with pytest.raises(RemoteError, match="it came from a search"):
        graduate(str(finished), None, f"file:{public}")


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path, public: Path) -> None:
    folder = write_run(tmp_path / "data" / FOLDER, frame=150_000)
    with pytest.raises(RemoteError, match=r"session 0: ended at frame 150,000 of 200,000"):
        graduate(str(folder), None, f"file:{public}")
    folder = write_run(tmp_path / "other" / FOLDER)
    (folder / "info" / "ppo_cartpole_t0_s3_session_df_train.csv").unlink()
    with pytest.raises(RemoteError, match=r"session 3: ended at frame 0"):
        graduate(str(folder), None, f"file:{public}")


def test_what_no_table_lists_claims_nothing(tmp_path: Path, public: Path) -> None:
    folder = write_run(tmp_path / "data" / FOLDER, ("env.name=MountainCar-v0",))
    with pytest.raises(RemoteError, match="no benchmark table lists PPO on MountainCar-v0"):
        graduate(str(folder), None, f"file:{public}")


def test_a_name_must_mean_one_folder(share: Path, public: Path) -> None:
    with pytest.raises(RemoteError, match=r"should mean one folder.*found none"):
        graduate("nothing", f"file:{share}", f"file:{public}")
