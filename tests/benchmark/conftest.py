"""A manifest with one tiny row, and a result of it made up by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from loguru import logger

from slm_lab.benchmark.collect import attempt_of
from slm_lab.benchmark.ledger import Event, write_entry
from slm_lab.benchmark.manifest import BenchmarkManifest, load_manifest
from slm_lab.benchmark.result import (
    CollectedResult,
    Evaluated,
    Provenance,
    Result,
    TrialResult,
)
from slm_lab.benchmark.seeds import fingerprint
from tests.tiny import TINY

SPEC = TINY | {
    "env": {**TINY["env"], "name": "${env}"},
    "meta": {**TINY["meta"], "max_session": 2},
}
ENV = "probe/ActionMatters-v0"
PHASE: dict[str, Any] = {
    "phase": 1,
    "name": "Tiny",
    "code_version": "0.1.0",
    "settings": {"num_envs": 2, "log_frequency": 50, "max_session": 2, "max_frame": 200},
    "documents": {"num_envs": 2, "sessions": 4},
    "tables": [
        {
            "title": ENV,
            "docs": "https://example.org",
            "rows": [
                {
                    "env": ENV,
                    "algorithm": "PPO",
                    "spec_file": "tiny.json",
                    "spec_name": "tiny",
                    "flags": ["env"],
                    "bar": 0.5,
                    "other_targets": {"J": 0.7},
                    "documents": {"max_frame": 1_000_000},
                    "best": {"score": 0.9, "source": "D12"},
                    "references": [{"score": 1, "frames": 100, "source": "ZOO"}],
                }
            ],
        }
    ],
}
ROW = "probe-actionmatters-v0_ppo"

WriteManifest = Callable[..., Path]


def write_phase(folder: Path, **row: Any) -> Path:
    """The tiny manifest in a folder, with changes to its row; its spec file lies beside it."""
    tree = json.loads(json.dumps(PHASE))
    tree["tables"][0]["rows"][0].update(row)
    (folder / "tiny.json").write_text(json.dumps({"tiny": SPEC}))
    path = folder / "phase1_tiny.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(autouse=True)
def silent_log():
    yield
    logger.remove()  # a run leaves its log file open


@pytest.fixture
def write_manifest(tmp_path, monkeypatch) -> WriteManifest:
    """Stand in a folder of its own, and write the tiny manifest there."""
    monkeypatch.chdir(tmp_path)

    def write(**row: Any) -> Path:
        return write_phase(tmp_path, **row)

    return write


@pytest.fixture
def manifest(write_manifest) -> BenchmarkManifest:
    return load_manifest(write_manifest())


@pytest.fixture
def kept(manifest) -> CollectedResult:
    """A flawless result of one trial: two sessions whose moving averages end at 0.5 and 0.75."""
    frames = [50, 100, 150, 200]
    returns = pd.DataFrame(
        {"t0_s0": [0.25, 0.5, 0.75, 0.5], "t0_s1": [None, 0.75, 0.5, 1.0]},  # no episode ended yet
        index=pd.Index(frames, name="frame"),
    )
    spec = manifest.rows[0].spec()
    trial = TrialResult(
        seed=spec.meta.random_seed,
        folder="tiny_actionmatters_2026_01_01_000000",
        frame=200,
        sessions={0: 0.5, 1: 0.75},
        metrics={"strength": 0.4},
        evaluation=Evaluated(
            agent="last",
            policy="deterministic",
            episodes=100,
            seed=0,
            sessions={0: 0.8, 1: 1.0},
        ),
        provenance=Provenance(
            mode="train",
            git_shas=("0123456789" * 4,),
            git_dirty=False,
            versions={"slm-lab": "0.1.0", "torch": "2.13.0"},
            cores=2,
            machine="x86_64",
            started="2026-01-01T00:00:00+00:00",
            sittings=1,
            seconds=90.0,
            cpu_seconds=120.0,
        ),
    )
    mark = fingerprint(spec)
    result = Result(row=ROW, fingerprint=mark, total_reward_ma=0.625, trials=(trial,))
    return CollectedResult(result, spec, returns)


def enter_attempt(kept: CollectedResult, results: Path, event: Event = "finished") -> None:
    """Write the ledger of a result: its trial started, and ended."""
    (trial,) = kept.result.trials
    attempt = attempt_of(kept.spec, Path(trial.folder), 0)
    commit = trial.provenance.git_shas[0]
    write_entry(results / kept.result.row, attempt, "started", commit=commit)
    sessions = trial.sessions if event == "finished" else None
    write_entry(results / kept.result.row, attempt, event, commit=commit, sessions=sessions)
