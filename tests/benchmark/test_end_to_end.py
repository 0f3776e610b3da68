"""`slm-lab benchmark` from an empty folder to a page and an audit, with real trainings."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from loguru import logger

from slm_lab.api.results import evaluate
from slm_lab.benchmark.ledger import read_ledger
from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.runner import Step, run_benchmark
from slm_lab.benchmark.seeds import derived_seed
from slm_lab.benchmark.state import RowStatus, row_state
from slm_lab.cli.main import main
from slm_lab.runs.init_from import source_agent
from slm_lab.spec.schema import InitFrom

pytestmark = pytest.mark.slow

ENVS = '''
import os, signal
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Trouble(CartPoleEnv):
    """Does something in the first life of a run."""

    def __init__(self, kind="raise", at=40):
        super().__init__()
        self.kind, self.at, self.steps = kind, at, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and not os.path.exists("lived"):
            open("lived", "w").close()
            if self.kind == "raise":
                raise RuntimeError("the pole broke")
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)

gym.register("Trouble-v0", entry_point=Trouble, max_episode_steps=50)
'''


@pytest.fixture(autouse=True)
def known_code(monkeypatch):
    """As in a clean checkout, whatever the tree of who runs the tests looks like."""
    monkeypatch.setattr("slm_lab.runs.provenance.git_sha", lambda: "a" * 40)
    monkeypatch.setattr("slm_lab.runs.provenance.git_dirty", lambda: False)


@pytest.fixture
def benchmark(monkeypatch, capsys):
    """Run `slm-lab benchmark ...` in this process: (exit code, stdout, stderr)."""

    def command(word: str, *arguments: str) -> tuple[Any, str, str]:
        places = ["--manifest", "phase1_tiny.yaml", "--results", "res"]
        monkeypatch.setattr(sys, "argv", ["slm-lab", "benchmark", word, *arguments, *places])
        with warnings.catch_warnings():
            try:
                main()
                code: Any = 0
            except SystemExit as exit_:
                code = exit_.code or 0
        logger.remove()
        return code, *capsys.readouterr()

    return command


def status(benchmark) -> str:
    code, out, _ = benchmark("status")
    assert code == 0
    word: str = out.splitlines()[1].split()[2]
    return word


def test_run_collect_table_audit_and_then_tampering(write_manifest, benchmark):
    write_manifest(trials=2)
    assert status(benchmark) == "missing"
    code, out, _ = benchmark("run", "--dry-run", "--budget", "1")
    assert (code, "1 row(s), about 0.0 h" in out) == (0, True)

    code, out, err = benchmark("run")
    assert code == 0, err
    assert "1 done, 0 failed" in out
    assert status(benchmark) == "done"
    row = Path("res/probe-actionmatters-v0_ppo")
    files = sorted(path.relative_to(row).as_posix() for path in row.rglob("*.*"))
    assert files == [
        "attempts.jsonl",
        *(
            f"model/tiny_actionmatters_t{t}_s{s}_net_model.safetensors"
            for t, s in itertools.product((0, 1), (0, 1))
        ),
        "plot.png",
        "result.json",
        "returns.csv.gz",
        "tiny_actionmatters_spec.json",
    ]
    assert sum((row / name).stat().st_size for name in files) < 60_000
    result = json.loads((row / "result.json").read_text())
    trials, folders = result["trials"], sorted(Path("data").glob("tiny_actionmatters_*"))
    scores = []
    for trial, folder in zip(trials, folders, strict=True):
        name = f"{folder.name[:18]}_t0_trial_metrics_scalar.json"
        scores.append(json.loads((folder / name).read_text())["total_reward_ma"])
        assert trial["folder"] == folder.name
        assert list(trial["sessions"]) == ["0", "1"]
        assert trial["evaluation"]["episodes"] == 100
        assert trial["provenance"]["git_shas"] == ["a" * 40]
        assert trial["provenance"]["cpu_seconds"] > 0
    assert result["total_reward_ma"] == pytest.approx(sum(scores) / 2)
    mark = result["fingerprint"]
    assert [trial["seed"] for trial in trials] == [derived_seed(mark, 0), derived_seed(mark, 1)]
    assert str(Path.cwd()) not in "".join(p.read_text() for p in row.glob("*.js*"))
    ledger = [(entry.event, entry.trial, entry.score) for entry in read_ledger(row)]
    assert ledger == [
        ("started", 0, None),
        ("finished", 0, pytest.approx(scores[0])),
        ("started", 1, None),
        ("finished", 1, pytest.approx(scores[1])),
    ]
    # The final policies act in a clone: the same episodes as those that were evaluated.
    played = evaluate(row, episodes=100)
    assert {i: s.mean for i, s in played.sessions.items()} == {
        int(i): mean for i, mean in trials[0]["evaluation"]["sessions"].items()
    }
    shutil.rmtree(row / "info")
    agent = source_agent(InitFrom(folder=row.as_posix()), 1)  # a new run can begin with them
    assert {name: path.name for name, path in agent.files().items()} == {
        "net": "tiny_actionmatters_t0_s1_net_model.safetensors"
    }
    folder = folders[0]

    assert benchmark("table")[0] == 0
    page = Path("docs/BENCHMARKS.md").read_bytes()
    assert benchmark("audit")[:2] == (0, "ok\n")
    assert benchmark("audit", str(folder))[:2] == (0, "ok\n")

    # What is kept is enough: without the run folder the same page comes out.
    away = Path("data").rename("elsewhere")
    Path("docs/BENCHMARKS.md").unlink()
    assert benchmark("table")[0] == 0
    assert Path("docs/BENCHMARKS.md").read_bytes() == page
    code, out, _ = benchmark("run")
    assert (code, out.startswith("Nothing to run")) == (0, True)

    # Collecting again gives the same data; the episodes are not played again.
    before = {path.name: path.read_bytes() for path in row.rglob("*.*")}
    for path in row.rglob("*.*"):
        if path.name != "attempts.jsonl":
            path.unlink()
    away.rename("data")
    code, _, err = benchmark("collect", str(folders[1]))
    assert (code, "lacks trial 0" in err) == (2, True), err
    assert benchmark("collect", *map(str, folders))[0] == 0
    assert {path.name: path.read_bytes() for path in row.rglob("*.*")} == before

    # A run folder that was tampered with.
    spec_path = next(folder.glob("*_t0_spec.json"))
    spec = json.loads(spec_path.read_text())
    for key, value, told in (
        (("agent", "algorithm", "gamma"), 0.5, "agent.algorithm.gamma: found 0.9"),
        (("env", "num_envs"), 4, "env.num_envs: found 2"),
        (("meta", "random_seed"), 8, "meta.random_seed: found 8, but"),
    ):
        changed = json.loads(json.dumps(spec))
        block = changed
        for part in key[:-1]:
            block = block[part]
        block[key[-1]] = value
        spec_path.write_text(json.dumps(changed))
        code, out, _ = benchmark("audit", str(folder))
        assert (code, told in out) == (1, True), out
        assert benchmark("collect", str(folder))[0] == 2
    spec_path.write_text(json.dumps(spec))

    record = next(folder.glob("info/*_provenance.json"))
    sittings = json.loads(record.read_text())
    sittings["sittings"][0]["git_dirty"] = True
    record.write_text(json.dumps(sittings))
    assert "the package differed" in benchmark("audit", str(folder))[1]
    sittings["sittings"][0]["git_dirty"] = False
    record.write_text(json.dumps(sittings))

    graph = next(folder.glob("*_t0_trial_graph_mean_returns_ma_vs_frames.png"))
    graph.rename("graph.png")
    assert "its plot is missing" in benchmark("audit", str(folder))[1]
    Path("graph.png").rename(graph)

    train = next(folder.glob("info/*_s1_session_df_train.csv"))
    train.rename("s1_train.csv")
    assert "sessions: found [0], expected [0, 1]" in benchmark("audit", str(folder))[1]
    Path("s1_train.csv").rename(train)

    (folder / "ray_tune").mkdir()
    assert "is a search" in benchmark("audit", str(folder))[1]
    code, _, err = benchmark("collect", str(folder))
    assert (code, "is a search" in err) == (2, True)


def trouble(kind: str) -> dict[str, Any]:
    return {
        "env": "trouble:Trouble-v0",
        "settings": {"max_session": 1, "max_frame": 200},
        "flags": ["env", "meta.max_session"],
        "variables": {"env.kwargs.kind": kind},
    }


def test_ctrl_c_leaves_a_row_that_the_next_call_goes_on_with(write_manifest, benchmark):
    Path("trouble.py").write_text(ENVS)
    write_manifest(**trouble("interrupt"))
    code, _, err = benchmark("run")
    assert code == 128 + signal.SIGINT, err
    assert "goes on where it was" in err
    assert status(benchmark) == "interrupted"
    code, _, err = benchmark("run")
    assert code == 0, err
    assert status(benchmark) == "done"
    assert len(list(Path("data").iterdir())) == 1
    row = Path("res/trouble-trouble-v0_ppo")
    (trial,) = json.loads((row / "result.json").read_text())["trials"]
    assert trial["provenance"]["sittings"] == 2
    assert trial["frame"] == 200
    events = [entry.event for entry in read_ledger(row)]
    assert events == ["started", "interrupted", "resumed", "finished"]
    assert benchmark("table")[0] == 0
    assert benchmark("audit")[:2] == (0, "ok\n")


def test_a_row_that_fails_is_reported_and_the_others_run(write_manifest, benchmark):
    Path("trouble.py").write_text(ENVS)
    path = write_manifest(**trouble("raise"))
    tree = yaml.safe_load(path.read_text())
    (row,) = tree["tables"][0]["rows"]
    good = {**row, "env": "probe/ActionMatters-v0", "variables": {}}
    tree["tables"][0]["rows"] = [row, good]
    path.write_text(yaml.safe_dump(tree))
    code, out, err = benchmark("run")
    assert code == 1
    assert "1 done, 1 failed" in out
    assert "trouble-trouble-v0_ppo: RuntimeError: session 0 failed" in err
    assert status(benchmark) == "failed"
    assert benchmark("run")[1].startswith("Nothing to run")
    code, out, err = benchmark("run", "--retry")  # the trouble is over by now
    assert (code, "1 done, 0 failed" in out) == (0, True), err
    events = [entry.event for entry in read_ledger(Path("res/trouble-trouble-v0_ppo"))]
    assert events == ["started", "failed", "resumed", "finished"]


def test_a_budget_that_ends_stops_the_training_cleanly(write_manifest):
    path = write_manifest(
        env="CartPole-v1",
        settings={"max_session": 1, "max_frame": 100_000_000},
        flags=["env", "env.max_frame", "meta.max_session"],
    )
    manifest, results, data = load_manifest(path), Path("res"), Path("data")
    state = row_state(manifest.rows[0], results, data)
    report = run_benchmark(
        manifest,
        [Step(state, hours=0.0)],  # taken for short
        results_dir=results,
        data_dir=data,
        budget_hours=5 / 3600,
        log_level="ERROR",
        tell=lambda _: None,
    )
    assert (report.stopped_by, report.failed, report.done) == (signal.SIGTERM, {}, [])
    after = row_state(manifest.rows[0], results, data)
    assert after.status is RowStatus.interrupted
    assert 0 < after.progress < 1
