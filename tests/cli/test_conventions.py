"""What all commands have in common: how they are found, and how folders and options are spelled."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import typer.core
from typer.main import get_command

from slm_lab.cli.main import app
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import load_spec
from tests.cli.test_graphs import write_run
from tests.cli.test_main import PPO, TINY, refused

# Commands that work on run folders, with the option that says where runs are kept.
TAKE_A_FOLDER = ("enjoy", "eval", "plot", "compare", "dashboard", "retro", "report", "export")
TAKE_DATA = (*TAKE_A_FOLDER, "run", "list", "plot-list", "pull", "push", "graduate")
WRITE = ("enjoy", "plot", "compare", "report", "export", "spec")


@pytest.fixture
def parsed(slm_lab, monkeypatch):
    """The values that a command would be called with."""
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(
        typer.core.TyperCommand, "invoke", lambda _, context: calls.append(context.params)
    )

    def parse(*words: object) -> dict[str, object]:
        assert slm_lab(*words)[::2] == (0, "")
        return calls.pop()

    return parse


@pytest.fixture
def called(monkeypatch):
    """What `run` would have been called with, instead of training."""
    calls = []

    def record(spec, mode, options):
        calls.append((spec, mode, options))
        raise SystemExit(0)

    monkeypatch.setattr("slm_lab.api.run.run", record)
    return calls


# The way to a command


def test_the_version_is_that_of_the_package(slm_lab):
    version = importlib.metadata.version("slm-lab")
    assert slm_lab("--version") == (0, f"slm-lab {version}\n", "")


def test_the_help_has_groups_and_begins_with_run(slm_lab):
    code, out, _ = slm_lab("--help")
    assert code == 0
    titles = ["─ Train ─", "─ Look ─", "─ Share ─", "─ Develop ─"]
    assert [out.count(title) for title in titles] == [1, 1, 1, 1]
    assert sorted(titles, key=out.index) == titles
    first = out.split("─ Train ─")[1].splitlines()[1]
    assert first.split()[1] == "run"
    assert slm_lab("-h") == (code, out, "")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["plto", "x"], ["no `plto`", "`slm-lab plot`"]),
        (["evaluate", "latest"], ["no `evaluate`", "`slm-lab eval`"]),
        (["ppo_cartpol", "train"], ["no `ppo_cartpol`", "`slm-lab ppo_cartpole`"]),
        (["train", "ppo_cartpole"], ["no `train`", "Did you mean `slm-lab run SPEC_NAME train`?"]),
        (["trian"], ["no `trian`", "Did you mean `slm-lab run SPEC_NAME train`?"]),
        (["zzz"], ["no `zzz`", "`slm-lab --help` lists the commands"]),
        (["env", "chek"], ["chek", "Did you mean 'check'?"]),
        (["benchmark", "statsu"], ["statsu", "Did you mean 'status'"]),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(slm_lab, words, named):
    message = refused(slm_lab(*words))
    for word in named:
        assert word in message


# The spec of a run


def test_the_name_of_a_shipped_spec_is_enough(slm_lab, called):
    forms = [
        ("run", "ppo_cartpole", "train"),
        ("ppo_cartpole", "train"),
        ("run", PPO, "ppo_cartpole", "train"),
        ("run", PPO, "train"),  # the file holds one spec
    ]
    for form in forms:
        assert slm_lab(*form, "--seed", 3) == (0, "", "")
    assert all(call == called[0] for call in called)
    spec, mode, _ = called[0]
    assert (spec.name, mode) == ("ppo_cartpole", "train")
    slm_lab("run", "sac_cartpole")
    assert (called[-1][0].name, called[-1][1]) == ("sac_cartpole", "dev")


def test_a_file_alone_lists_its_names(slm_lab, called):
    code, out, err = slm_lab("run", "benchmark/ppo/ppo_mujoco.json")
    names = out.split()
    assert (code, called) == (0, [])
    assert len(names) > 1
    assert "ppo_mujoco" in names
    assert f"slm-lab run benchmark/ppo/ppo_mujoco.json {names[0]} dev" in err
    code, _, err = slm_lab("run", "benchmark/ppo/ppo_mujoco.json", "train")
    assert code == 2
    assert "no spec `train`; the file has " in err


def test_a_spec_that_is_not_there_is_answered_with_the_nearest(slm_lab):
    message = refused(slm_lab("run", "ppo_cartpol", "train"))
    assert "no such file or shipped spec. Did you mean ppo_cartpole, " in message


def test_what_to_do_next_repeats_the_options_of_the_run(slm_lab):
    words = [word for flag in TINY for word in flag.split()]
    code, out, err = slm_lab("run", "ppo_cartpole", "dev", *words, "--data", "my runs")
    assert code == 0, err
    (predir,) = Path("my runs").iterdir()
    assert f"Folder  {predir}" in out
    assert not Path("data").exists()
    options = " ".join([*TINY[:-2], "--seed 3", "--compile off", "--data 'my runs'"])
    assert f"all seeds:    slm-lab run ppo_cartpole train {options}\n" in out
    assert (
        f"change it:    slm-lab run ppo_cartpole dev {options} -s agent.algorithm.gamma=0.95" in out
    )
    assert "watch it:     slm-lab enjoy latest --video --data 'my runs'\n" in out
    assert "all curves:   tensorboard --logdir 'my runs'" in out


# Folders and options


def commands() -> dict[str, Any]:
    app_command: Any = get_command(app)
    found: dict[str, Any] = app_command.commands
    return found


def options_of(name: str) -> set[str]:
    return {option for parameter in commands()[name].params for option in parameter.opts}


@pytest.mark.parametrize("name", TAKE_DATA)
def test_every_command_on_runs_takes_data(name):
    assert {"--data", "-d"} <= options_of(name)


@pytest.mark.parametrize("name", WRITE)
def test_every_command_that_writes_elsewhere_takes_output(name):
    assert {"--output", "-o"} <= options_of(name)


def test_no_help_shows_an_earlier_spelling(slm_lab):
    for name in commands():
        _, out, _ = slm_lab(name, "--help")
        for old in ("--out ", "--data-dir", "--data-folder", "--folders"):
            assert old not in out, name


@pytest.mark.parametrize(
    ("old", "today"),
    [
        (("list", "--data-dir", "x"), ("list", "--data", "x")),
        (("plot-list", "--data-folder=x"), ("plot-list", "--data=x")),
        (("pull", "p", "--data-folder", "x"), ("pull", "p", "-d", "x")),
        (("enjoy", "f", "--out", "x.mp4"), ("enjoy", "f", "--output", "x.mp4")),
        (("export", "f", "--out=x.pt2"), ("export", "f", "-o", "x.pt2")),
        (("env", "baseline", "E", "--data-dir", "x"), ("env", "baseline", "E", "--data", "x")),
    ],
)
def test_an_earlier_spelling_means_the_same(parsed, old, today):
    assert parsed(*old) == parsed(*today)


def test_a_value_that_looks_like_an_earlier_spelling_stays(parsed):
    assert parsed("list", "out")["pattern"] == "out"
    assert parsed("list", "-d", "--output")["data"] == Path("--output")


def test_folders_of_a_plot_stand_behind_it_or_as_the_documents_have_them(slm_lab):
    a, b = write_run("ppo_cartpole"), write_run("dqn_cartpole", "DQN")
    shown = "data/plots/CartPole-v1_multi_trial_graph_mean_returns_ma_vs_frames.png\n"
    printed = ("plot", "-t", "CartPole-v1", "-f", f"{a.name},{b.name}")
    for form in (printed, ("plot", a.name, b), ("plot", a, "latest"), ("plot", f"{a},{b}")):
        assert slm_lab(*form) == (0, shown, ""), form
    assert "plots" not in slm_lab("plot-list")[1]
    assert slm_lab("list")[0] == 0


@pytest.mark.parametrize("command", ["retro", "report", "plot", "compare"])
def test_latest_is_the_newest_run_of_data(slm_lab, command):
    old, new = write_run("ppo_cartpole"), write_run("dqn_cartpole", "DQN")
    new = new.rename(new.with_name("dqn_cartpole_2026_02_13_094433"))
    Path("data").rename("pulled")
    code, out, err = slm_lab(command, "latest", "--data", "pulled")
    assert code == 0, err
    written = {path for path in Path("pulled").rglob("*") if path.stat().st_mtime}
    assert out
    assert not [path for path in written if old.name in path.parts and path.suffix == ".html"]
    folder = Path("pulled") / (new.name if command in ("retro", "report") else "plots")
    assert str(folder) in out


def test_a_run_is_named_from_anywhere_by_its_data_folder(slm_lab):
    folder = write_run("ppo_cartpole")
    Path("elsewhere").mkdir()
    Path("data").rename("elsewhere/runs")
    for command in ("retro", "report"):
        assert slm_lab(command, folder.name, "-d", "elsewhere/runs")[0] == 0
    _, _, err = slm_lab("enjoy", "ppo_cartpol_2026_01_13_094433", "-d", "elsewhere/runs")
    assert f"Did you mean elsewhere/runs/{folder.name}?" in err


def test_a_run_goes_on_in_the_data_folder_that_is_named(slm_lab, called):
    slm_lab("run", "ppo_cartpole", "train@latest", "--data", "elsewhere")
    _, mode, options = called[0]
    assert (mode, options.data_dir) == ("train@latest", "elsewhere")


@pytest.mark.parametrize("env", ["my.envs:Mine-v0", "ALE/Pong-v5", "playground/CartpoleBalance"])
def test_no_name_of_a_file_has_a_colon_or_a_slash(slm_lab, env):
    folder = write_run("ppo_cartpole")
    path = folder / "ppo_cartpole_t0_spec.json"
    path.write_text(path.read_text().replace("CartPole-v1", env))
    for command in ("plot", "compare", "retro", "report"):
        assert slm_lab(command, folder.name)[0] == 0
    names = [path.name for path in Path("data").rglob("*")]
    assert [name for name in names if ":" in name or env.split("/")[0] == name] == []
    assert any(name.startswith(env.replace(":", "/").split("/")[-1]) for name in names)


def test_a_run_of_an_env_of_ones_own_has_a_plain_name(slm_lab, tmp_path):
    spec = load_spec("benchmark/ppo/ppo_mujoco.json", "ppo_mujoco", ["env=my.envs:Mine-v0"])
    assert RunLayout.create(spec.name, "now", tmp_path).predir.name == "ppo_mujoco_mine_now"
