"""A whole search, on a real Ray: what it leaves behind, how it goes on, where it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.analysis.experiment import SearchMetrics
from slm_lab.analysis.metrics import save_random_baseline
from slm_lab.api.run import SessionsFailed, run
from slm_lab.runs.find import find_run, find_search
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.search_journal import Journal
from slm_lab.search.plan import Speed, describe_search
from slm_lab.spec import Spec, SpecError, load_spec, spec_from_dict
from slm_lab.training.options import RunOptions
from tests.tiny import tiny

# Ray leaves sockets and files to the garbage collector when it shuts down.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

ROOT = Path(__file__).parents[2]
GAMMA = "agent.algorithm.gamma"
SEARCH = {f"{GAMMA}__uniform": [0.8, 0.99]}

# Rewards are infinite for one setting: a trial that diverges. And two that wait for each other.
ENVS = '''
import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np


class Base(gym.Env):
    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}


class Odd(Base):
    """A step pays -1; with `fault` it pays nothing finite."""

    def __init__(self, fault=False):
        super().__init__()
        self.reward = float("inf") if fault else -1.0

    def step(self, action):
        return np.zeros(1, np.float32), self.reward, True, False, {}


class Meeting(Base):
    """Does nothing until two processes are here."""

    def __init__(self, folder=""):
        super().__init__()
        self.folder = Path(folder)

    def reset(self, *, seed=None, options=None):
        (self.folder / str(os.getpid())).touch()
        deadline = time.monotonic() + 240
        while len(list(self.folder.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


gym.register("Odd-v0", entry_point=Odd)
gym.register("Meeting-v0", entry_point=Meeting)
'''

CALLBACK = """
from slm_lab.training.callback import Callback


class Told(Callback):
    def on_row(self, session, row):
        return {"told": row["frame"]}
"""


def spec_to_search(**values: Any) -> Spec:
    """The tiny spec with a space to search."""
    usual = {
        "env__max_frame": 400,
        "meta__max_session": 2,
        "meta__max_trial": 3,
        "meta__random_seed": 1,
        "meta__search_sampler": "random",
    }
    return spec_from_dict({**tiny(**(usual | values)).to_dict(), "search": SEARCH}, "tiny")


def with_space(space: dict[str, Any], **values: Any) -> Spec:
    return spec_from_dict({**spec_to_search(**values).to_dict(), "search": space}, "tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """To stand in, so that `odd_env:Odd-v0` is found, in this process and in others."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "odd_env.py").write_text(ENVS)
    elsewhere = folder / "elsewhere"  # on the path of this process alone
    elsewhere.mkdir()
    (elsewhere / "odd_calls.py").write_text(CALLBACK)
    before = Path.cwd()
    os.chdir(folder)
    sys.path[:0] = [str(folder), str(elsewhere)]
    yield folder
    sys.path.remove(str(folder))
    sys.path.remove(str(elsewhere))
    os.chdir(before)


@pytest.fixture(scope="module")
def searched(folder: Path) -> SearchMetrics:
    """Three trials, one of which diverges; one is kept, and one validated."""
    space = {
        f"{GAMMA}__choice": [0.9, 0.99],
        "env.fault__choice": [False, True],
    }
    spec = with_space(
        space,
        env__name="odd_env:Odd-v0",
        env__fault=False,
        meta__callbacks=["odd_calls:Told"],
        meta__max_trial=None,
        meta__search_sampler="grid",
        meta__search_scheduler={"grace_period": 100, "reduction_factor": 2},
    )
    return run(spec, "search", RunOptions(log_level="ERROR", keep=1, validate=1))


@pytest.mark.slow
def test_a_search_leaves_its_table_graphs_and_the_best_spec(searched):
    predir = searched.predir
    assert predir.parent == Path("data")
    for name in (
        "tiny_spec.json",
        "tiny_best_spec.json",
        "tiny_experiment_df.csv",
        "tiny_experiment_graph.png",
        "tiny_experiment_graph_parallel.png",
        "tiny_experiment_graph_importance.png",
        "tiny_experiment_graph.html",
        "tiny_multi_trial_graph_mean_returns_vs_frames.png",
        "tiny_multi_trial_graph_mean_returns_ma_vs_frames.png",
        "tiny_t3_spec.json",
        "tiny_t0_trial_metrics_scalar.json",
        "info/tiny_experiment_df.csv",
        "info/tiny_trial_data_dict.json",
        "info/tiny_validation.json",
        "log/tiny.log",
        "log/tiny_t0.log",
        "log/tiny_t0_s1.log",
        "ray_tune/journal.jsonl",
    ):
        assert (predir / name).is_file(), name
    assert not (predir / "ray_tune" / "tune").exists(), "what Tune keeps for itself is removed"
    table = pd.read_csv(predir / "tiny_experiment_df.csv")
    assert sorted(table["trial"]) == [0, 1, 2, 3]
    assert table["score"].is_monotonic_decreasing


@pytest.mark.slow
def test_a_trial_that_diverges_has_the_random_score_and_is_never_the_best(searched):
    """Every step pays -1, so 0 or NaN would be better than what any trial can reach."""
    rows = {row.trial: row for row in searched.trials}
    assert [rows[trial].status for trial in (1, 3)] == ["diverged", "diverged"]
    assert {rows[trial].score for trial in (1, 3)} == {-1.0}
    assert searched.best is not None
    assert searched.best.trial in (0, 2)


@pytest.mark.slow
def test_callbacks_of_the_users_own_are_called_in_every_trial(searched):
    for trial in (0, 2):
        path = searched.predir / "info" / f"tiny_t{trial}_s1_session_df_train.csv"
        table = pd.read_csv(path)
        assert (table["told"] == table["frame"]).all()
        assert not table.empty


@pytest.mark.slow
def test_only_the_models_of_the_best_are_kept(searched):
    kept = {path.name.split("_s")[0] for path in (searched.predir / "model").iterdir()}
    best = max((row for row in searched.trials if row.trial in (0, 2)), key=lambda r: r.score)
    assert kept == {f"tiny_t{best.trial}"}
    checkpoints = {path.name for path in (searched.predir / "checkpoint").glob("tiny_t*")}
    assert checkpoints == {f"tiny_t{best.trial}_s{session}" for session in (0, 1)}


@pytest.mark.slow
def test_the_best_is_trained_again_with_fresh_seeds_and_both_numbers_are_kept(searched):
    (row,) = searched.validated
    content = json.loads((searched.predir / "info" / "tiny_validation.json").read_text())
    entry = content[str(row.trial)]
    assert entry["total_reward_ma"] == row.validated
    assert entry["search_score"] == row.score
    assert len(entry["sessions"]) == 4, "as many as make a result, though the trials had two"
    saved = load_spec(next((searched.predir / entry["predir"]).glob("*_t0_spec.json")))
    assert saved.meta.random_seed != spec_to_search().meta.random_seed
    assert f"validated {row.validated:.2f}" in searched.summary_line()


@pytest.mark.slow
def test_what_a_kill_left_undone_after_the_last_trial_is_made_up_for(searched):
    """The metrics of a trial that had ended, and a validation that had begun."""
    (row,) = searched.validated
    layout = RunLayout(searched.predir, "tiny")
    metrics = layout.trial_metrics_scalar_copy(row.trial)
    content = metrics.read_text()
    metrics.unlink()
    validation = json.loads(layout.validation_path().read_text())
    layout.validation_path().unlink()
    (begun,) = layout.validation_dir().glob("*/checkpoint")
    shutil.rmtree(begun / f"tiny_trial{row.trial}_t0_s3")

    options = RunOptions(log_level="ERROR", keep=1, validate=1)
    run(load_spec(layout.spec_path(), "tiny"), f"search@{searched.predir}", options)
    assert metrics.read_text() == content
    assert json.loads(layout.validation_path().read_text()) == validation


@pytest.mark.slow
def test_the_best_spec_is_whole_and_runs_with_seeds_of_its_own(searched):
    assert searched.best_spec is not None
    assert searched.best is not None
    spec = load_spec(searched.best_spec)
    assert spec.to_dict()["agent"]["algorithm"]["gamma"] == searched.best.values[GAMMA]
    assert spec.meta.random_seed is None
    assert run(spec, "dev", RunOptions(log_level="ERROR")).frame == 400


@pytest.mark.slow
def test_trials_that_all_fail_end_the_search_and_say_why(folder):
    spec = spec_to_search(env__name="odd_env:Absent-v0", meta__max_trial=8)
    with pytest.raises((SessionsFailed, ValueError), match="Absent"):
        run(spec, "search", RunOptions(log_level="ERROR", data_dir="failed"))


@pytest.mark.slow
def test_stopping_searches_where_none_runs_stops_nothing(tmp_path):
    assert command(tmp_path, "run", "--stop-ray").stdout == "No search runs in data/\n"


LONGER = spec_to_search(
    env__max_frame=1600, meta__max_session=1, meta__max_trial=4, meta__checkpoint_frequency=400
)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line, in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "slm_lab.cli.main", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LOG_LEVEL": "WARNING"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def search_command(folder: Path, mode: str) -> subprocess.Popen[str]:
    (folder / "tiny.json").write_text(json.dumps({"tiny": LONGER.to_dict()}))
    return start(folder, "run", "tiny.json", "tiny", mode)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def journal_of(folder: Path) -> str:
    files = list(folder.glob("data/*/ray_tune/journal.jsonl"))
    return files[0].read_text() if files else ""


def is_under_way(journal: str) -> bool:
    """Whether its last event is the report of a trial that has a checkpoint, and far to go."""
    whole_lines = journal[: journal.rfind("\n") + 1].splitlines()
    last: dict[str, Any] = json.loads(whole_lines[-1]) if whole_lines else {}
    return last.get("event") == "report" and 400 <= last["frame"] <= 1200


@pytest.mark.search_smoke
def test_a_search_that_is_stopped_and_killed_ends_with_the_trials_of_one_that_was_not(tmp_path):
    whole = run(LONGER, "search", RunOptions(log_level="ERROR", data_dir=str(tmp_path / "whole")))

    stopped = search_command(tmp_path, "search")
    wait_for(lambda: '"report"' in journal_of(tmp_path), stopped)
    assert command(tmp_path, "run", "--stop-ray").stdout.startswith("Stopped the search in data/")
    _, err = stopped.communicate(timeout=240)
    assert stopped.returncode == 128 + signal.SIGINT, err
    assert "Resume with: slm-lab run data/tiny_" in err
    assert "Traceback" not in err
    ended = journal_of(tmp_path).count('"end"')
    assert ended < 4

    before = len(journal_of(tmp_path))
    killed = search_command(tmp_path, "search@latest")
    wait_for(lambda: is_under_way(journal_of(tmp_path)[before:]), killed)
    killed.kill()
    killed.communicate()

    last = search_command(tmp_path, "search@latest")
    _, err = last.communicate(timeout=400)
    assert last.returncode == 0, err

    (path,) = tmp_path.glob("data/*/ray_tune/journal.jsonl")
    records = Journal(path).records
    expected = Journal(whole.predir / "ray_tune" / "journal.jsonl").records
    assert sorted(records) == [0, 1, 2, 3]
    logs = [path.read_text() for path in path.parents[1].glob("log/tiny_t*_s*.log")]
    assert any("goes on from frame" in text for text in logs), "from its checkpoint"
    for trial, record in records.items():
        assert record.values == expected[trial].values
        assert record.status == "completed"
        assert record.score == expected[trial].score, "the curve goes on where it was"


@pytest.mark.cluster
def test_a_search_runs_over_both_nodes_of_a_cluster_and_leaves_it_running(folder, tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=1)
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        # Known, so that nobody plays this env in the search's own process, where nobody comes.
        save_random_baseline(tmp_path / "random_baseline.json", "odd_env:Meeting-v0", 1.0, 0.0)
        spec = spec_to_search(
            env__name="odd_env:Meeting-v0",
            env__folder=str(meeting),
            env__max_frame=100,
            meta__max_session=1,
            meta__max_trial=2,
        )
        options = RunOptions(log_level="ERROR", data_dir=str(tmp_path), ray_address=cluster.address)
        metrics = run(spec, "search", options)
        records = Journal(metrics.predir / "ray_tune" / "journal.jsonl").records
        assert [record.status for record in records.values()] == ["completed", "completed"]
        assert len({record.reports[0].node for record in records.values()}) == 2
        assert len(cluster.list_all_nodes()) == 2
        assert all(node.any_processes_alive() for node in cluster.list_all_nodes())
    finally:
        cluster.shutdown()


def test_a_dry_run_shows_the_space_the_rule_and_the_time():
    spec = spec_to_search(
        env__max_frame=9000,
        meta__max_trial=6,
        meta__search_scheduler={"grace_period": 1000, "reduction_factor": 3},
    )
    text = describe_search(spec, Speed(100.0))
    assert f"{GAMMA} ~ uniform(0.8, 0.99)" in text
    assert "6 over 1 dimension(s): 6.0 per dimension, the rule is 3 to 4: enough" in text
    assert "108,000 without early stopping" in text
    # 1,000 by all, 2,000 more by a third, 6,000 more by a ninth: 2,333 of 9,000.
    assert "about 28,000 with ASHA (rungs at 1,000, 3,000; one in 3 passes)" in text
    assert "at the 100 frames/s" in text


def test_too_few_trials_for_the_space_are_named():
    text = describe_search(spec_to_search(meta__max_trial=2), Speed(100.0))
    assert "2.0 per dimension, the rule is 3 to 4: too few: set meta.max_trial to 3" in text


def test_latest_is_the_newest_search_of_that_spec_and_not_of_one_whose_name_begins_alike(tmp_path):
    for name in ("tiny_2026_01_01_000000", "tiny_2026_02_01_000000", "tiny_2_2026_03_01_000000"):
        journal = tmp_path / name / "ray_tune" / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
        spec_name = "tiny_2" if name.startswith("tiny_2_") else "tiny"
        (tmp_path / name / f"{spec_name}_spec.json").write_text("{}")
    (tmp_path / "tiny_2026_04_01_000000").mkdir()  # a training, not a search
    found = find_search("tiny", "latest", tmp_path)
    assert found.predir.name == "tiny_2026_02_01_000000"
    assert found.name == "tiny"


@pytest.mark.parametrize("where", ["latest", "nowhere"])
def test_a_search_that_is_not_there_is_named(tmp_path, where):
    with pytest.raises(SpecError, match=f"MODE: found `search@{where}`"):
        find_search("tiny", where, tmp_path)


@pytest.mark.parametrize(
    ("options", "flag"),
    [({"keep": -2}, "--keep"), ({"validate": -1}, "--validate")],
)
def test_an_option_out_of_range_is_named(tmp_path, options, flag):
    with pytest.raises(SpecError, match=f"{flag}.*found -"):
        run(spec_to_search(), "search", RunOptions(data_dir=str(tmp_path), **options))


def test_more_cores_than_there_are_is_an_error_before_anything_is_left_behind(tmp_path):
    spec = spec_to_search(meta__search_resources={"cpu": 10_000})
    with pytest.raises(SpecError, match=r"meta.search_resources.cpu: found 10000; this machine"):
        run(spec, "search", RunOptions(data_dir=str(tmp_path)))
    assert not list(tmp_path.glob("tiny_*"))


def test_without_ray_the_message_names_the_extra(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps({"tiny": spec_to_search().to_dict()}))
    code = """if True:
        import sys
        from slm_lab.cli.main import main

        sys.modules["ray"] = None
        sys.argv[1:] = ["run", "tiny.json", "tiny", "search"]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "search needs ray, which is not installed" in done.stderr
    assert "pip install 'slm-lab[search]'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_latest_training_is_never_a_search(tmp_path):
    """A search has a trial 0 too, and its folder is named like that of a training."""
    for name in ("tiny_2026_01_01_000000", "tiny_2026_02_01_000000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tiny_t0_spec.json").write_text("{}")
    (tmp_path / "tiny_2026_02_01_000000" / "ray_tune").mkdir()
    assert find_run("tiny", "latest", tmp_path).predir.name == "tiny_2026_01_01_000000"
