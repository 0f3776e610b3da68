"""The README that a push gives a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.run_card import CARD, card
from slm_lab.hub.transfer import pull, push
from slm_lab.runs.catalog import read_run

SMALL = SyntheticRun(sessions=2, rows=10, max_frame=100)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    layout = write_run(tmp_path / "data", SMALL)
    scores = {"total_reward_ma": 123.456, "last_100_return": 150.0, "frame": 100.0}
    layout.trial_metrics_scalar(0).write_text(json.dumps(scores))
    return layout.predir


def test_a_push_says_what_was_trained_how_well_and_how_to_use_it(
    trained: Path, share: Path, tmp_path: Path
) -> None:
    push(DirectoryRemote(share), trained)
    text = (share / "data" / trained.name / CARD).read_text()
    assert text == (trained / CARD).read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["tags"] == ["reinforcement-learning", "slm-lab", "PPO", "CartPole-v1"]
    assert "| frames of each session | 100 of 100 |" in text
    assert "| sessions, each with its own seed | 2 of 2 finished |" in text
    assert "| return of the last 100 training episodes | 150.00 |" in text
    assert "| target of the benchmark | 400.00 |" in text
    assert f"slm-lab enjoy {trained.name} " in text
    assert str(tmp_path) not in text


def test_it_is_sent_again_only_if_the_run_went_on(trained: Path, share: Path) -> None:
    remote = DirectoryRemote(share)
    push(remote, trained)
    assert push(remote, trained).files == 0
    metrics = next(trained.glob("info/*_t0_trial_metrics_scalar.json"))
    metrics.write_text(metrics.read_text().replace("150.0", "160.0"))
    assert push(remote, trained).files == 2
    assert "160.00" in (share / "data" / trained.name / CARD).read_text()
    pull(remote, trained.name, share.parent / "elsewhere")
    assert "160.00" in (share.parent / "elsewhere" / trained.name / CARD).read_text()


@pytest.mark.parametrize("own", ["# My run\n", None])
def test_a_readme_of_ones_own_stays(trained: Path, share: Path, own: str | None) -> None:
    if own is None:
        (trained / CARD).symlink_to(trained / "nowhere")
    else:
        (trained / CARD).write_text(own)
    push(DirectoryRemote(share), trained)
    if own is None:
        assert (trained / CARD).is_symlink()
    else:
        assert (share / "data" / trained.name / CARD).read_text() == own


def test_a_folder_whose_spec_cannot_be_read_has_no_card(run_dir: Path, share: Path) -> None:
    push(DirectoryRemote(share), run_dir)
    assert not (run_dir / CARD).exists()


def test_words_of_a_foreign_spec_stay_words(trained: Path) -> None:
    spec: dict[str, Any]
    for path in trained.glob("*_spec.json"):
        spec = json.loads(path.read_text())
        spec["env"]["name"] = "x | y\n<script> [a](b)"
        path.write_text(json.dumps(spec))
    text = card(read_run(trained)).split("---", 2)[2]
    assert "| env | x \\| y &lt;script> \\[a](b) |" in text
