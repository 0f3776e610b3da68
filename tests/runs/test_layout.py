from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slm_lab.runs.layout import RunLayout
from slm_lab.spec.run_folder import RunFolderError

TS = "2026_01_02_030405"


@pytest.fixture
def layout(tmp_path):
    return RunLayout.create("demo", TS, tmp_path)


def test_a_new_run_has_its_folders(layout, tmp_path):
    assert layout.predir == tmp_path / f"demo_{TS}"
    assert {path.name for path in layout.predir.iterdir()} == {"info", "graph", "model", "log"}


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: RunLayout.create("demo", TS, tmp_path), range(4)))
    assert sorted(run.predir.name for run in runs) == [
        f"demo_{TS}",
        f"demo_{TS}_02",
        f"demo_{TS}_03",
        f"demo_{TS}_04",
    ]
    assert {run.name for run in runs} == {"demo"}


def test_the_last_folder_in_the_alphabet_is_the_latest(tmp_path):
    runs = [RunLayout.create("demo", TS, tmp_path) for _ in range(12)]
    assert max(path.name for path in tmp_path.iterdir()) == runs[-1].predir.name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (lambda run: run.spec_path(), "demo_spec.json"),
        (lambda run: run.trial_spec_path(1), "demo_t1_spec.json"),
        (lambda run: run.session_csv(0, 2, "train"), "info/demo_t0_s2_session_df_train.csv"),
        (
            lambda run: run.session_metrics(0, 2, "eval"),
            "info/demo_t0_s2_session_metrics_eval.json",
        ),
        (
            lambda run: run.session_metrics_scalar(0, 2, "eval"),
            "info/demo_t0_s2_session_metrics_scalar_eval.json",
        ),
        (
            lambda run: run.session_graph(0, 2, "train", "loss", "frame"),
            "graph/demo_t0_s2_session_graph_train_loss_vs_frame.png",
        ),
        (lambda run: run.trial_metrics(0), "info/demo_t0_trial_metrics.json"),
        (lambda run: run.trial_metrics_scalar(0), "info/demo_t0_trial_metrics_scalar.json"),
        (lambda run: run.trial_metrics_scalar_copy(0), "demo_t0_trial_metrics_scalar.json"),
        (
            lambda run: run.trial_graph(0, "mean_returns_ma"),
            "graph/demo_t0_trial_graph_mean_returns_ma_vs_frames.png",
        ),
        (
            lambda run: run.trial_graph_copy(0, "mean_returns"),
            "demo_t0_trial_graph_mean_returns_vs_frames.png",
        ),
        (
            lambda run: run.trial_graph_html(0),
            "demo_t0_trial_graph_mean_returns_vs_frames.html",
        ),
        (
            lambda run: run.session_graph_html(0, 1, "train"),
            "graph/demo_t0_s1_session_graph_train_mean_returns_vs_frames.html",
        ),
        (
            lambda run: run.model_path(0, 1, "net", "model", best=False),
            "model/demo_t0_s1_net_model.pt",
        ),
        (
            lambda run: run.model_path(0, 1, "critic_net", "optim", best=True),
            "model/demo_t0_s1_ckpt-best_critic_net_optim.pt",
        ),
        (lambda run: run.log_path(), "log/demo.log"),
        (lambda run: run.log_path(0), "log/demo_t0.log"),
        (lambda run: run.log_path(0, 3), "log/demo_t0_s3.log"),
        (lambda run: run.experiment_csv(), "info/demo_experiment_df.csv"),
        (lambda run: run.experiment_csv_copy(), "demo_experiment_df.csv"),
        (lambda run: run.experiment_graph(), "graph/demo_experiment_graph.png"),
        (lambda run: run.experiment_graph_copy(), "demo_experiment_graph.png"),
        (lambda run: run.trial_data_dict(), "info/demo_trial_data_dict.json"),
        (
            lambda run: run.multi_trial_graph("mean_returns_ma"),
            "graph/demo_multi_trial_graph_mean_returns_ma_vs_frames.png",
        ),
        (
            lambda run: run.multi_trial_graph_copy("mean_returns"),
            "demo_multi_trial_graph_mean_returns_vs_frames.png",
        ),
        (lambda run: run.search_dir(), "ray_tune"),
    ],
)
def test_a_file_is_named_after_what_it_belongs_to(layout, path, expected):
    assert path(layout).relative_to(layout.predir) == Path(expected)


def test_an_existing_folder_opens_with_the_name_its_files_carry(layout):
    layout.spec_path().touch()
    layout.trial_spec_path(0).touch()
    assert RunLayout.open(layout.predir) == layout


def test_a_folder_that_only_has_a_trial_spec_opens_too(layout):
    layout.trial_spec_path(0).touch()
    assert RunLayout.open(str(layout.predir)) == layout


def test_a_folder_that_no_run_wrote_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"not a run folder.*_spec\.json"):
        RunLayout.open(tmp_path)


def test_the_sessions_and_trials_on_disk_are_listed_in_number_order(layout):
    for trial, session in [(0, 10), (0, 2), (11, 0)]:
        layout.session_csv(trial, session, "train").touch()
    layout.session_metrics(0, 5, "train").touch()
    assert layout.trials() == (0, 11)
    assert layout.sessions(0) == (2, 10)
    assert layout.sessions(1) == ()
