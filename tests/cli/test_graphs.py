"""`slm-lab plot`, `plot-list`, `compare`, `retro`, on folders laid out as the original has them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from slm_lab.cli.main import retro_main
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked

HEADER = "total_reward,total_reward_ma,loss,fps,frame,wall_t,t,epi,opt_step,lr,entropy\n"


def write_run(name: str, algorithm: str = "PPO", *, scores=(100.0, 200.0), trials=1) -> Path:
    """Sessions whose return stays the same, in data/ of the working directory."""
    folder = Path("data") / f"{name}_2026_01_13_094433"
    (folder / "info").mkdir(parents=True)
    spec = {
        "agent": {"name": "a", "algorithm": {"name": algorithm}, "memory": {"name": "Replay"}},
        "env": {"name": "CartPole-v1", "max_frame": 300},
        "meta": {"max_session": len(scores)},
        "name": name,
    }
    stems = [name, *(f"{name}_t{trial}" for trial in range(trials))]
    for stem in stems:
        (folder / f"{stem}_spec.json").write_text(json.dumps(spec))
    for trial in range(trials):
        for session, score in enumerate(scores):
            rows = [
                f"{score},{score},0.5,5000,{f},{f // 100},{f},,{f},0.1,0.6" for f in (100, 200, 300)
            ]
            for mode in ("train", "eval"):
                path = folder / "info" / f"{name}_t{trial}_s{session}_session_df_{mode}.csv"
                path.write_text(HEADER + "\n".join(rows) + "\n")
    return folder


def test_plot_draws_the_graph_of_the_documents(slm_lab):
    a, b = write_run("ppo_cartpole"), write_run("dqn_cartpole", "DQN")
    code, out, _ = slm_lab("plot", "-t", "CartPole-v1", "-f", f"{a.name},{b.name}")
    path = Path("data/plots/CartPole-v1_multi_trial_graph_mean_returns_ma_vs_frames.png")
    assert (code, out.strip()) == (0, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no plotly.js beside it"


def test_plot_against_time_of_folders_elsewhere_with_names_of_ones_own(slm_lab):
    a = write_run("ppo_cartpole")
    Path("data").rename("pulled")
    arguments = ("-d", "pulled", "-o", "out", "--x", "time", "-l", "mine", "--no-legend", "--html")
    code, out, _ = slm_lab("plot", "-f", a.name, *arguments)
    assert code == 0
    assert out.split() == [
        "out/CartPole-v1_multi_trial_graph_mean_returns_ma_vs_wall_t.png",
        "out/CartPole-v1_multi_trial_graph_mean_returns_ma_vs_wall_t.html",
    ]
    assert '"name":"mine"' in Path(out.split()[1]).read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("plot", "-f", "ppo_cartpol_2026_01_13_094433"), "Did you mean ppo_cartpole_2026"),
        (("plot", "-f", " , "), "at least one run folder"),
        (("plot", "-f", "ppo_cartpole_2026_01_13_094433", "-l", "a,b"), "2 name(s) for 1 folder"),
        (("plot", "-f", "ppo_cartpole_2026_01_13_094433", "-t", ".."), "--title"),
        (("plot",), "FOLDER: expected at least one run folder"),
        (("compare", "nothing"), "nothing: no such run folder"),
        (("retro", "data"), "data: not a run folder"),
        (("retro", "nowhere"), "nowhere: no such run folder"),
    ],
)
def test_a_mistake_is_named_and_exits_with_2(slm_lab, arguments, named):
    write_run("ppo_cartpole")
    code, _, err = slm_lab(*arguments)
    assert code == 2
    assert named in err
    assert "Traceback" not in err


def test_plot_list_says_what_can_be_plotted_and_why_not(slm_lab):
    write_run("ppo_cartpole")
    write_run("dqn_cartpole", "DQN", scores=())
    Path("data/empty").mkdir()
    code, out, _ = slm_lab("plot-list")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert lines["ppo_cartpole_2026_01_13_094433"].split()[1:] == [
        "PPO",
        "CartPole-v1",
        "2",
        "300",
        "yes",
    ]
    assert "no: no results of trial 0" in lines["dqn_cartpole_2026_01_13_094433"]
    assert "no: not a run folder" in lines["empty"]
    assert "No run folders in elsewhere/" in slm_lab("plot-list", "-d", "elsewhere")[1]


def test_compare_prints_statistics_and_a_verdict_and_leaves_graphs(slm_lab):
    a = write_run("ppo_cartpole", scores=(400.0, 410, 420, 430, 440))
    b = write_run("dqn_cartpole", "DQN", scores=(100.0, 110, 120, 130, 140))
    code, out, _ = slm_lab("compare", a.name, b.name, "-o", "out")
    assert code == 0
    assert "CartPole-v1 at frame 300, target 400" in out
    assert "420.00 [" in out
    assert "PPO > DQN" in out
    assert "PPO is better" in out
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "CartPole-v1_compare.json",
        "CartPole-v1_compare_improvement.png",
        "CartPole-v1_compare_intervals.png",
        "CartPole-v1_compare_profiles.png",
    ]


def test_compare_says_when_there_are_too_few_seeds_to_tell(slm_lab):
    a, b = write_run("ppo_cartpole"), write_run("dqn_cartpole", "DQN", scores=(1.0, 2.0))
    _, out, _ = slm_lab("compare", f"{a.name},{b.name}")
    assert "too few seeds to tell" in out
    assert "few seeds (PPO 2, DQN 2)" in out


def test_retro_redoes_what_a_run_leaves(slm_lab):
    folder = write_run("ppo_cartpole")
    code, out, _ = slm_lab("retro", str(folder))
    assert code == 0
    assert "ppo_cartpole_t0: trial_metrics: frame:3.00e+02 | total_reward_ma:150.00" in out
    for name in (
        "ppo_cartpole_t0_trial_metrics_scalar.json",
        "ppo_cartpole_t0_trial_graph_mean_returns_ma_vs_frames.png",
        "ppo_cartpole_t0_trial_graph_mean_returns_vs_frames.html",
        "plotly.min.js",
        "info/ppo_cartpole_t0_trial_metrics.json",
        "info/ppo_cartpole_t0_s1_session_metrics_train.json",
        "graph/ppo_cartpole_t0_trial_graph_mean_returns_vs_opt_steps.png",
        "graph/ppo_cartpole_t0_s1_session_graph_train_loss_vs_frame.png",
    ):
        assert (folder / name).is_file(), name
    assert not (folder / "checkpoint").exists(), "nothing that would make it look like ours"


def test_the_older_command_does_the_same(slm_lab, monkeypatch, capsys):
    folder = write_run("ppo_cartpole")
    monkeypatch.setattr(sys, "argv", ["slm-retro", str(folder)])
    with pytest.raises(SystemExit) as exit_:
        retro_main()
    assert not exit_.value.code
    assert "trial_metrics: " in capsys.readouterr().out


def test_retro_of_a_search_of_the_original_redraws_its_table_and_graphs(slm_lab):
    """It leaves no journal; the trials' values and scores are in one JSON file, NaN included."""
    folder = write_run("tiny", trials=3)
    key = "agent.algorithm.gamma"
    write_search_spec(folder / "tiny_spec.json", key)
    scalars = {"frame": 300, "strength": 1.0}
    content = {
        str(trial): {key: gamma, "total_reward_ma": score, **scalars}
        for trial, gamma, score in ((0, 0.9, 20.0), (1, 0.99, 90.0), (2, 0.95, float("nan")))
    }
    (folder / "info" / "tiny_trial_data_dict.json").write_text(json.dumps(content))
    code, _, err = slm_lab("retro", str(folder))
    assert code == 0, err
    table = (folder / "tiny_experiment_df.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in table] == ["trial", "1", "0", "2"]
    assert (folder / "tiny_experiment_graph.png").is_file()
    assert (folder / "tiny_multi_trial_graph_mean_returns_ma_vs_frames.png").is_file()


def write_search_spec(path: Path, key: str) -> None:
    from slm_lab.spec import load_spec

    tree = load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole").to_dict()
    path.write_text(json.dumps({**tree, "name": "tiny", "search": {f"{key}__uniform": [0.9, 1.0]}}))


def test_retro_of_a_run_that_is_going_on_is_refused(slm_lab):
    folder = write_run("ppo_cartpole")
    with locked(RunLayout(folder, "ppo_cartpole").run_lock(), "the run"):
        code, _, err = slm_lab("retro", str(folder))
    assert code == 2
    assert "run folder" in err


def test_retro_writes_through_no_link_that_leads_out(slm_lab, tmp_path):
    folder = write_run("ppo_cartpole")
    precious = tmp_path / "precious.json"
    precious.write_text("keep me")
    (folder / "info" / "ppo_cartpole_t0_trial_metrics.json").symlink_to(precious)
    code, _, err = slm_lab("retro", str(folder))
    assert code == 2
    assert "ppo_cartpole_t0_trial_metrics.json: is a link" in err
    assert precious.read_text() == "keep me"


def test_retro_names_a_table_that_it_cannot_read(slm_lab):
    folder = write_run("ppo_cartpole")
    (folder / "info" / "ppo_cartpole_t0_s0_session_df_train.csv").write_text("a,b\n1,x\n")
    code, _, err = slm_lab("retro", str(folder))
    assert code == 2
    assert "ppo_cartpole_t0_s0_session_df_train.csv: not a session table" in err


def test_run_with_wandb_but_without_the_extra_is_told_how_to_install_it(slm_lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    code, _, err = slm_lab("run", "--wandb")
    assert code == 2
    assert "--wandb: wandb is not installed" in err
    assert "pip install 'slm-lab[wandb]'" in err
    assert not Path("data").exists()


def test_plot_list_sends_no_escape_sequence_of_a_folder_to_the_terminal(slm_lab):
    folder = write_run("ppo_cartpole")
    path = folder / "ppo_cartpole_t0_spec.json"
    tree = json.loads(path.read_text())
    tree["env"]["name"] = "\x1b]0;owned\x07\x1b[2J"
    path.write_text(json.dumps(tree))
    (Path("data") / "bad\x1b[31m_2026_01_13_094433").mkdir()
    code, out, err = slm_lab("plot-list")
    assert code == 0
    assert "owned" in out
    assert "\x1b" not in out + err


@pytest.mark.parametrize("command", [["plot", "-f"], ["compare"]])
def test_an_output_folder_that_cannot_be_made_is_named(slm_lab, command):
    folder = write_run("ppo_cartpole")
    Path("out").write_text("a file")
    code, _, err = slm_lab(*command, folder.name, "-o", "out/plots")
    assert code == 2
    assert "RunFolderError: --output: out" in err
    assert "Traceback" not in err
