"""`run --upload-hf`: from the command to the folder on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

pytestmark = pytest.mark.slow

Call = Callable[..., tuple[int, str, str]]
RUN = ["run", "slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "train"]
SETS = [
    "env.max_frame=400",
    "meta.max_session=1",
    "meta.log_frequency=100",
    "meta.compile=off",
    "meta.random_seed=1",
    "agent.algorithm.time_horizon=16",
    "agent.algorithm.minibatch_size=16",
    "agent.algorithm.training_epoch=1",
]
TINY = [*RUN, *(word for item in SETS for word in ("-s", item))]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    logger.remove()


def test_the_whole_folder_is_on_the_hub_when_the_run_ends_and_no_token_is_in_it(
    hub: Any, slm_lab: Call, kit: Any
) -> None:
    code, out, err = slm_lab(*TINY, "--upload-hf")
    assert code == 0, err
    assert "Uploading ppo_cartpole_" in err
    tree = hub.datasets[kit.REPO].tree
    (folder,) = Path("data").glob("ppo_cartpole_*")
    for name in (
        "ppo_cartpole_t0_spec.json",
        "info/ppo_cartpole_t0_trial_metrics.json",
        "info/ppo_cartpole_t0_s0_session_df_train.csv",
        "model/ppo_cartpole_t0_s0_ckpt-best_net_model.pt",
        "checkpoint/ppo_cartpole_t0_s0/last/manifest.json",
        "manifest.json",
    ):
        assert f"data/{folder.name}/{name}" in tree
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"hf_writer" not in everything
    assert "hf_writer" not in out + err
    assert "up to date" in slm_lab("push", str(folder))[1]
    code, _, err = slm_lab(*TINY[:3], f"train@{folder}", *TINY[4:], "--upload-hf")
    assert code == 0
    assert "nothing to resume" in err


def test_a_variable_does_what_the_flag_does(
    hub: Any, slm_lab: Call, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPLOAD_HF", "1")
    assert slm_lab(*TINY)[0] == 0
    assert len(hub.datasets[kit.REPO].tree) > 10


def test_a_remote_that_does_not_let_us_in_is_told_before_anything_is_trained(
    hub: Any, slm_lab: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    code, _, err = slm_lab(*TINY, "--upload-hf")
    assert code == 2
    assert "HF_TOKEN is not set" in err
    assert not Path("data").exists()


def test_a_hub_that_is_down_at_the_start_does_not_keep_a_run_from_starting(
    hub: Any, slm_lab: Call, kit: Any
) -> None:
    hub.errors["/api/datasets/"] = (503, 1)
    code, _, err = slm_lab(*TINY, "--upload-hf")
    assert code == 0, err
    assert hub.errors["/api/datasets/"] == (503, 0)
    assert len(hub.datasets[kit.REPO].tree) > 10


def test_a_run_whose_upload_fails_shows_its_score_and_exits_1_with_the_command_to_repeat(
    hub: Any, slm_lab: Call, kit: Any
) -> None:
    hub.errors["/commit/"] = (403, 1_000_000)
    code, out, err = slm_lab(*TINY, "--upload-hf")
    assert code == 1
    assert "Score   last 100 episodes" in out
    (folder,) = Path("data").glob("ppo_cartpole_*")
    assert f"slm-lab push {folder}" in err.splitlines()[-1]
    hub.errors.clear()
    assert slm_lab("push", str(folder))[0] == 0
    assert any(folder.name in path for path in hub.datasets[kit.REPO].tree)


def test_a_mistake_in_the_spec_leaves_nothing_on_the_hub(hub: Any, slm_lab: Call, kit: Any) -> None:
    code, _, _ = slm_lab(*TINY, "-s", "env.name=NoSuchEnv-v9", "--upload-hf")
    assert code == 2
    assert not hub.datasets[kit.REPO].tree
