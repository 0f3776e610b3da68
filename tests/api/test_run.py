"""`run(spec, mode)`: everything a run leaves behind."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.analysis.trial import TrialMetrics
from slm_lab.api.run import RunStopped, SessionsFailed, run
from slm_lab.env.error import EnvError
from slm_lab.runs.provenance import git_sha, read_run_records
from slm_lab.spec import Spec, SpecError, load_spec, spec_from_dict
from slm_lab.spec.schema import SAVED_RUN_KEYS
from slm_lab.training.options import RunOptions
from tests.tiny import TINY, tiny

# SPEC 10, for a run of two sessions, without the copies that SPEC 10.1 names eval
SESSION_FILES = """
info/tiny_t0_s{s}_session_df_train.csv
info/tiny_t0_s{s}_session_metrics_train.json
info/tiny_t0_s{s}_session_metrics_scalar_train.json
graph/tiny_t0_s{s}_session_graph_train_mean_returns_vs_frames.html
graph/tiny_t0_s{s}_session_graph_train_mean_returns_vs_frames.png
graph/tiny_t0_s{s}_session_graph_train_mean_returns_ma_vs_frames.png
graph/tiny_t0_s{s}_session_graph_train_loss_vs_frame.png
graph/tiny_t0_s{s}_session_graph_train_entropy_vs_frame.png
model/tiny_t0_s{s}_net_model.pt
model/tiny_t0_s{s}_net_optim.pt
model/tiny_t0_s{s}_critic_net_model.pt
model/tiny_t0_s{s}_critic_net_optim.pt
model/tiny_t0_s{s}_ckpt-best_net_model.pt
model/tiny_t0_s{s}_ckpt-best_net_optim.pt
model/tiny_t0_s{s}_ckpt-best_critic_net_model.pt
model/tiny_t0_s{s}_ckpt-best_critic_net_optim.pt
log/tiny_t0_s{s}.log
log/events.out.tfevents.tiny_t0_s{s}
checkpoint/tiny_t0_s{s}/session.lock
checkpoint/tiny_t0_s{s}/last/manifest.json
checkpoint/tiny_t0_s{s}/last/state.json
checkpoint/tiny_t0_s{s}/last/tensors.safetensors
checkpoint/tiny_t0_s{s}/best/manifest.json
checkpoint/tiny_t0_s{s}/best/state.json
checkpoint/tiny_t0_s{s}/best/tensors.safetensors
"""
TRIAL_FILES = """
tiny_spec.json
tiny_t0_spec.json
tiny_t0_trial_metrics_scalar.json
tiny_t0_trial_graph_mean_returns_vs_frames.png
tiny_t0_trial_graph_mean_returns_vs_frames.html
tiny_t0_trial_graph_mean_returns_ma_vs_frames.png
info/tiny_t0_provenance.json
info/tiny_t0_trial_metrics.json
info/tiny_t0_trial_metrics_scalar.json
graph/tiny_t0_trial_graph_mean_returns_vs_frames.png
graph/tiny_t0_trial_graph_mean_returns_ma_vs_frames.png
graph/tiny_t0_trial_graph_mean_returns_vs_opt_steps.png
graph/tiny_t0_trial_graph_mean_returns_ma_vs_opt_steps.png
graph/tiny_t0_trial_graph_mean_returns_vs_wall_t.png
graph/tiny_t0_trial_graph_mean_returns_ma_vs_wall_t.png
plotly.min.js
log/tiny_t0.log
checkpoint/run.lock
"""
SESSION_SCALARS = [
    "total_reward_ma",
    "strength",
    "max_strength",
    "final_strength",
    "sample_efficiency",
    "training_efficiency",
    "stability",
    "last_100_return",  # which the original does not have
]
TRIAL_SCALARS = ["frame", *SESSION_SCALARS[:-1], "consistency", "last_100_return"]
LOCAL = [
    "mean_returns",
    "strengths",
    "sample_efficiencies",
    "training_efficiencies",
    "stabilities",
    "frames",
    "opt_steps",
]


@pytest.fixture(autouse=True, scope="module")
def silent_log():
    yield
    logger.remove()  # a run leaves its log file open


@pytest.fixture(scope="module")
def two_sessions(tmp_path_factory) -> TrialMetrics:
    folder = tmp_path_factory.mktemp("train")
    spec = tiny(meta__max_session=2)
    return run(spec, "train", RunOptions(data_dir=str(folder), log_level="ERROR"))


@pytest.fixture(scope="module")
def tried(tmp_path_factory) -> TrialMetrics:
    """A dev run, with everything extra."""
    folder = tmp_path_factory.mktemp("dev")
    options = RunOptions(data_dir=str(folder), log_extra=True, log_level="DEBUG")
    return run(tiny(meta__max_session=4, meta__random_seed=5), "dev", options)


def files(predir: Path) -> set[str]:
    """Paths in a run folder; the name of an event file without its time, host and process."""
    found = (p.relative_to(predir).as_posix() for p in predir.rglob("*") if p.is_file())
    return {re.sub(r"tfevents\.\d+\..*\.(tiny_)", r"tfevents.\1", path) for path in found}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_writes_exactly_the_files_that_tools_expect(two_sessions):
    expected = TRIAL_FILES.split() + [
        path.format(s=session) for session in (0, 1) for path in SESSION_FILES.split()
    ]
    assert files(two_sessions.predir) == set(expected)
    assert re.fullmatch(r"tiny_\d{4}_\d\d_\d\d_\d{6}", two_sessions.predir.name)


def test_metrics_have_the_keys_that_tools_expect(two_sessions):
    info = two_sessions.predir / "info"
    session = read(info / "tiny_t0_s0_session_metrics_train.json")
    assert list(session["scalar"]) == SESSION_SCALARS
    assert list(session["local"]) == LOCAL
    assert read(info / "tiny_t0_s0_session_metrics_scalar_train.json") == session["scalar"]
    trial = read(info / "tiny_t0_trial_metrics.json")
    assert list(trial["scalar"]) == TRIAL_SCALARS
    assert set(trial["local"]) == {*LOCAL, "consistencies"}
    assert [len(series) for series in trial["local"]["strengths"]] == [4, 4]
    assert trial["local"]["frames"] == [50, 100, 150, 200]
    assert read(two_sessions.predir / "tiny_t0_trial_metrics_scalar.json") == trial["scalar"]


def test_the_returned_metrics_are_those_on_disk(two_sessions):
    on_disk = read(two_sessions.predir / "tiny_t0_trial_metrics_scalar.json")
    assert two_sessions.scalars == on_disk
    assert two_sessions.frame == 200
    assert list(two_sessions.sessions) == [0, 1]
    assert (two_sessions.failed, two_sessions.diverged) == ({}, {})


def test_the_log_keeps_the_line_tools_look_for_even_when_the_screen_is_silent(two_sessions):
    log = (two_sessions.predir / "log" / "tiny_t0.log").read_text()
    assert f" | {two_sessions.summary_line()}\n" in log
    assert f"Trial 0 done. Output: {two_sessions.predir}" in log


def test_the_saved_spec_is_the_spec_that_ran(two_sessions):
    path = two_sessions.predir / "tiny_spec.json"
    assert read(path) == read(two_sessions.predir / "tiny_t0_spec.json")
    saved = load_spec(path)
    assert saved.name == "tiny"
    ran = tiny(meta__max_session=2, meta__random_seed=saved.meta.random_seed)
    assert (saved.agent, saved.env, saved.meta) == (ran.agent, ran.env, ran.meta)
    meta = read(path)["meta"]
    assert set(meta) - set(ran.to_dict()["meta"]) == SAVED_RUN_KEYS - {
        "prepath",
        "graph_prepath",
        "info_prepath",
        "log_prepath",
        "model_prepath",
    }
    assert meta["git_sha"] == git_sha()
    assert meta["predir"] == two_sessions.predir.as_posix()


def test_a_drawn_seed_is_saved_so_that_the_run_can_be_repeated(two_sessions, tmp_path):
    saved = load_spec(two_sessions.predir / "tiny_spec.json")
    assert saved.meta.random_seed is not None
    # The first of two sessions is the same session when it runs alone, and in this process.
    again = run(
        saved.with_values({"meta.max_session": 1}), "train", RunOptions(data_dir=str(tmp_path))
    )
    name = "info/tiny_t0_s0_session_df_train.csv"
    first, second = (drop_clock(read_session(m.predir / name)) for m in (two_sessions, again))
    assert first.to_csv() == second.to_csv()


def test_the_commit_is_that_of_this_checkout():
    sha = git_sha()
    assert sha is None or re.fullmatch(r"[0-9a-f]{40}", sha)


# dev


def test_dev_runs_one_session_and_measures_gradients(tried):
    saved = load_spec(tried.predir / "tiny_spec.json")
    assert (saved.meta.max_session, saved.meta.max_trial) == (1, 2)
    assert saved.meta.random_seed == 5
    (csv,) = (tried.predir / "info").glob("*_df_train.csv")
    assert "grad_norm" in read_session(csv)


def test_log_level_debug_shows_the_checkpoints(tried):
    log = (tried.predir / "log" / "tiny_t0.log").read_text()
    assert log.count("Trial 0 session 0 tiny_t0_s0 [train]\n") == 4


def test_log_extra_adds_lines_and_graphs(tried):
    log = (tried.predir / "log" / "tiny_t0.log").read_text()
    assert "Trial 0 session 0 tiny_t0_s0 [train_df metrics] total_reward_ma: " in log
    names = files(tried.predir)
    for series, x in [
        ("strengths", "frames"),
        ("sample_efficiencies", "frames"),
        ("stabilities", "frames"),
        ("training_efficiencies", "opt_steps"),
    ]:
        for unit in ("s0_session_graph_train", "trial_graph"):
            assert f"graph/tiny_t0_{unit}_{series}_vs_{x}.png" in names
            assert f"graph/tiny_t0_{unit}_{series}_ma_vs_{x}.png" in names
    assert "graph/tiny_t0_trial_graph_consistencies_vs_frames.png" in names


# What goes wrong

FAULTY = """
import os, signal
import gymnasium as gym
import numpy as np

class Faulty(gym.Env):
    def __init__(self, fault, after=60):
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.fault, self.after, self.steps = fault, after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.after and self.fault == "raise":
            raise RuntimeError("the pole broke")
        if self.steps == self.after and self.fault == "SIGINT":
            os.kill(os.getpid(), signal.SIGINT)
        reward = float("nan") if self.steps >= self.after and self.fault == "reward" else 1.0
        return np.zeros(1, np.float32), reward, True, False, {}

gym.register("LabFaulty-v0", entry_point=Faulty)
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    def make(fault: str, **values: Any) -> Spec:
        return tiny(env__name="lab_faulty:LabFaulty-v0", env__fault=fault, **values)

    (tmp_path / "lab_faulty.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    return make


def test_a_diverging_session_has_nan_metrics_and_says_so(faulty, capsys):
    metrics = run(faulty("reward"), "train")
    assert metrics.total_reward_ma != metrics.total_reward_ma
    assert list(metrics.diverged) == [0]
    assert "gave reward = nan in env 0, at step 60 of this session" in metrics.failed[0]
    assert "diverged by it at frame 128" in metrics.failed[0]
    err = capsys.readouterr().err
    assert "Trial 0 session 0 diverged" in err
    assert "total_reward_ma:nan" in err
    scalar = (metrics.predir / "tiny_t0_trial_metrics_scalar.json").read_text()
    assert '"total_reward_ma": NaN' in scalar


def test_a_failed_session_is_in_the_metrics(faulty):
    metrics = run(faulty("raise"), "train")
    assert metrics.failed[0].endswith("RuntimeError: the pole broke")
    assert metrics.frame == 100


def test_when_nothing_was_measured_there_is_an_error_and_no_score(faulty):
    with pytest.raises(SessionsFailed, match=r"all sessions failed: RuntimeError: the pole broke"):
        run(faulty("raise", env__after=3), "train")


def test_a_stopped_run_is_analysed_and_does_not_look_like_a_finished_one(faulty, capsys):
    with pytest.raises(RunStopped, match="stopped early by SIGINT") as caught:
        run(faulty("SIGINT", env__num_envs=1, env__after=140), "train")
    assert isinstance(caught.value, KeyboardInterrupt)  # a loop over runs ends too
    assert caught.value.by == signal.SIGINT
    assert caught.value.metrics is not None
    assert caught.value.metrics.frame == 100
    assert "tiny_t0_trial_graph_mean_returns_vs_frames.png" in files(caught.value.predir)
    err = capsys.readouterr().err
    assert "Trial 0 stopped early by SIGINT" in err
    assert "Trial 0 done" not in err


@pytest.mark.parametrize(
    ("values", "mode", "options", "message"),
    [
        ({}, "trian", {}, "MODE: found `trian`; expected dev, train, train@"),
        ({}, "dev", {"log_level": "loud"}, "--log-level .*found `loud`; expected DEBUG, INFO"),
        (
            {"meta__precision": "float16", "agent__net__gpu": False},
            "dev",
            {},
            "meta.precision: float16 is for CUDA",
        ),
        ({"env__name": "CartPol-v1"}, "dev", {}, "env.name: `CartPol-v1` is not registered"),
        ({"env__name": "no_such_module:X-v0"}, "dev", {}, "cannot import `no_such_module`"),
    ],
)
def test_bad_input_is_named_and_leaves_no_folder(tmp_path, values, mode, options, message):
    with pytest.raises((SpecError, EnvError), match=message):
        run(tiny(**values), mode, RunOptions(data_dir=str(tmp_path / "data"), **options))
    assert list(tmp_path.glob("data/*")) == []


@pytest.mark.parametrize("name", ["../escape", "a/b", ""])
def test_a_spec_cannot_name_a_place_outside_the_data_folder(name):
    with pytest.raises(SpecError, match="SPEC_NAME"):
        run(spec_from_dict(TINY, "x").model_copy(update={"name": name}), "dev")


def test_profile_means_dev_and_writes_its_three_outputs(tmp_path, monkeypatch):
    monkeypatch.setattr("slm_lab.training.watchers.SKIP_STEPS", 10)
    options = RunOptions(data_dir=str(tmp_path), profile=True)
    metrics = run(tiny(meta__max_session=3), "train", options)
    assert list(metrics.sessions) == [0]
    assert {
        "profiler/profiler_summary.json",
        "profiler/profiling_dashboard.html",
        "traces/trace.json",
    } <= files(metrics.predir)


def test_a_replay_is_not_training_and_the_message_says_what_is():
    with pytest.raises(
        SpecError, match=r"found `enjoy@data/x`; `run` trains.*load_agent\(FOLDER\)"
    ):
        run(tiny(), "enjoy@data/x")


def test_the_time_in_the_folder_name_can_be_given(tmp_path):
    spec = spec_from_dict(TINY, "tiny")
    options = RunOptions(data_dir=str(tmp_path), timestamp="2026_01_31_235959")
    assert run(spec, "dev", options).predir == tmp_path / "tiny_2026_01_31_235959"
    with pytest.raises(SpecError, match=r"--timestamp: found `\.\./x`; expected the form 2026"):
        run(spec, "dev", RunOptions(data_dir=str(tmp_path), timestamp="../x"))


@pytest.mark.parametrize(("has_bfloat16", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_a_run_records_the_precision_that_the_machine_computed_in(
    tmp_path, monkeypatch, has_bfloat16, precision
):
    monkeypatch.chdir(tmp_path)
    name = "slm_lab.agent.learning.precision.multiplies_bfloat16"
    monkeypatch.setattr(name, lambda device_type: has_bfloat16)
    run(tiny(meta__precision="bfloat16"), mode="train")
    (record,) = read_run_records(next(tmp_path.glob("data/*/info/*provenance.json")))
    assert record.precision == precision
    log = next(tmp_path.glob("data/*/log/*")).read_text()
    starts_in = "bfloat16 in 0 of 4 layers" if has_bfloat16 else "float32"
    assert f"learning step eager, {starts_in}, resumes" in log
