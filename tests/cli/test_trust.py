"""Code that a run folder names runs only when the user says so, and never from below the folder."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from loguru import logger

from slm_lab import SpecError, load_agent, load_spec, make_env
from slm_lab.api.run import run
from slm_lab.spec import Spec
from slm_lab.spec.trust import admit_modules
from slm_lab.training.options import RunOptions
from tests.tiny import tiny

CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
gym.register("Own-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an ordinary env, made once."""
    data = tmp_path_factory.mktemp("trained") / "data"
    spec = tiny(meta__random_seed=1)
    predir = run(spec, "train", RunOptions(data_dir=str(data))).predir
    logger.remove()
    return predir


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Exists once foreign code has run."""
    return tmp_path / "executed"


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a test imports is forgotten, and nobody remembers modules of other tests."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("data", "own_envs")]:
        del sys.modules[name]
    gym.registry.pop("Own-v0", None)


@pytest.fixture
def hostile(trained: Path, tmp_path: Path, mark: Path) -> Path:
    """A pulled folder: data/RUN, whose spec names a module inside of it."""
    folder = Path("data") / trained.name
    shutil.copytree(trained, folder)
    (folder / "info" / "helper.py").write_text(CODE.format(mark=str(mark)))
    name_env(folder, f"data.{folder.name}.info.helper:CartPole-v1")
    return folder


def name_env(folder: Path, name: str) -> None:
    for path in folder.glob("*_spec.json"):
        tree: dict[str, Any] = json.loads(path.read_text())
        tree["env"]["name"] = name
        path.write_text(json.dumps(tree))


COMMANDS = [
    ["enjoy", "{folder}"],
    ["eval", "{folder}", "--episodes", "1"],
    ["export", "{folder}", "--format", "torchscript"],
    ["run", "any", "tiny", "enjoy@{folder}"],
    ["run", "{folder}/tiny_t0_spec.json", "tiny", "train@{folder}"],
    ["run", "{folder}/tiny_t0_spec.json", "tiny", "dev"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_module_inside_of_a_run_folder_is_never_imported(slm_lab, hostile, mark, command):
    module = f"data.{hostile.name}.info.helper"
    code, _, err = slm_lab(*(word.format(folder=hostile) for word in command))
    assert not mark.exists()
    assert code == 2
    assert "env.name" in err
    assert module in err
    assert "Traceback" not in err


def test_trusting_it_by_name_changes_nothing(slm_lab, hostile, mark, monkeypatch):
    module = f"data.{hostile.name}.info.helper"
    monkeypatch.setenv("SLM_LAB_TRUST", module)
    code, _, err = slm_lab("enjoy", hostile, "--trust", module)
    assert (code, mark.exists()) == (2, False)
    assert "no code is ever imported from there" in err


def test_the_working_directory_may_be_the_data_folder_or_the_run(
    slm_lab, hostile, mark, monkeypatch
):
    name_env(hostile, f"{hostile.name}.info.helper:CartPole-v1")
    monkeypatch.chdir("data")
    assert slm_lab("enjoy", hostile.name)[0] == 2
    name_env(Path(hostile.name), "helper:CartPole-v1")
    monkeypatch.chdir(Path(hostile.name) / "info")
    assert slm_lab("enjoy", "..", "--trust", "helper")[0] == 2
    assert not mark.exists()


def test_python_is_refused_what_the_commands_are(hostile, mark):
    for ask in (
        lambda: load_agent(hostile),
        lambda: load_agent(hostile, trust=(f"data.{hostile.name}.info.helper",)),
        lambda: make_env(load_spec(hostile / "tiny_t0_spec.json").env, seed=0),
        lambda: run(load_spec(hostile / "tiny_t0_spec.json"), "train"),
    ):
        with pytest.raises(SpecError, match=r"env\.name: the module"):
            ask()
    assert not mark.exists()
    assert [folder.name for folder in Path("data").iterdir()] == [hostile.name]


# A module of one's own


@pytest.fixture
def own_module(mark: Path) -> Path:
    """own_envs.py in the working directory; it leaves the mark when it is run."""
    path = Path("own_envs.py")
    path.write_text(CODE.format(mark=str(mark)))
    return path


@pytest.fixture
def pulled(trained: Path, own_module: Path) -> Path:
    """A folder from elsewhere whose spec names a module that happens to be here."""
    folder = Path("data") / trained.name
    shutil.copytree(trained, folder)
    name_env(folder, "own_envs:Own-v0")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_folder_from_elsewhere_may_not_name_a_module_unasked(
    slm_lab, pulled, own_module, mark, command
):
    code, _, err = slm_lab(*(word.format(folder=pulled) for word in command))
    assert (code, mark.exists()) == (2, False)
    assert "env.name: the spec of a run folder asks for code of the module `own_envs`" in err
    assert str(own_module.absolute()) in err
    assert "--trust own_envs" in err
    assert len(list(Path("data").iterdir())) == 1


@pytest.mark.parametrize(
    "command", [words for words in COMMANDS if words[-1] != "dev"], ids=" ".join
)
def test_the_flag_allows_it_for_one_command(slm_lab, pulled, mark, command):
    words = [word.format(folder=pulled) for word in command]
    code, _, err = slm_lab(*words, "--trust", "some.other", "--trust", "own_envs")
    assert code == 0, err
    assert mark.exists() or "train@" in words[-1]  # which has nothing left to train
    assert slm_lab(*words)[0] == 2


def test_the_variable_and_the_keyword_allow_it_too(slm_lab, pulled, mark, monkeypatch):
    agent, env = load_agent(pulled, trust=("own_envs",))
    assert agent.act(env.reset()).shape == (1,)
    with pytest.raises(SpecError, match="--trust own_envs"):
        load_agent(pulled)
    monkeypatch.setenv("SLM_LAB_TRUST", "some.other, own_envs")
    assert slm_lab("enjoy", pulled)[0] == 0


def test_a_module_that_a_flag_of_the_command_names_is_the_users_own_word(pulled, mark):
    saved = pulled / "tiny_t0_spec.json"
    make_env(load_spec(saved, sets=["env.name=own_envs:Own-v0"]).env, seed=0)
    assert mark.exists()


# Trained here


@pytest.fixture
def own_spec(own_module: Path) -> Spec:
    """A spec in a file of the user's own, with the module of his own."""
    tree = tiny(meta__random_seed=1).to_dict()
    tree["env"]["name"] = "own_envs:Own-v0"
    Path("my_spec.json").write_text(json.dumps({"tiny": tree}))
    return load_spec("my_spec.json", "tiny")


@pytest.fixture
def trained_here(own_spec: Spec, pulled: Path) -> Path:
    """What a run of it leaves: its folder, and the user's record of the module."""
    admit_modules(own_spec)
    return pulled


@pytest.mark.slow
def test_what_was_trained_here_is_replayed_and_resumed_without_a_flag(slm_lab, own_spec):
    folder = run(own_spec, "train").predir
    assert slm_lab("enjoy", "latest")[0] == 0
    assert slm_lab("eval", folder, "--episodes", 1)[0] == 0
    shutil.rmtree(folder / "checkpoint" / "tiny_t0_s0")  # so that there is something to train
    saved = folder / "tiny_t0_spec.json"
    assert slm_lab("run", saved, "tiny", f"train@{folder}")[0] == 0
    assert (folder / "checkpoint" / "tiny_t0_s0" / "last").is_dir()


def test_the_users_own_spec_resumes_whatever_the_record_says(slm_lab, own_spec, pulled, mark):
    assert slm_lab("run", "my_spec.json", "tiny", "train@latest")[0] == 0
    assert slm_lab("run", pulled / "tiny_t0_spec.json", "tiny", "train@latest")[0] == 0


def test_the_name_must_lead_to_the_file_that_was_trained_with(
    slm_lab, trained_here, own_module, tmp_path, monkeypatch
):
    (tmp_path / "other").mkdir()
    own_module.rename(tmp_path / "other" / "own_envs.py")
    monkeypatch.chdir("other")
    code, _, err = slm_lab("enjoy", tmp_path / trained_here)
    assert code == 2
    assert str(tmp_path / "other" / "own_envs.py") in err
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    monkeypatch.chdir(tmp_path)
    Path("other/own_envs.py").rename("own_envs.py")
    assert slm_lab("enjoy", trained_here)[0] == 2, "the record is each user's own"


def test_the_record_is_private_and_survives_bad_lines(slm_lab, trained_here, tmp_path):
    record = tmp_path / "state" / "slm-lab" / "trusted_modules.jsonl"
    line = record.read_text()
    assert json.loads(line) == {
        "module": "own_envs",
        "file": str((tmp_path / "own_envs.py").resolve()),
    }
    assert record.stat().st_mode & 0o077 == 0
    record.write_text(f"rubbish\n[1]\n{line}")
    assert slm_lab("enjoy", trained_here)[0] == 0
    admit_modules(load_spec("my_spec.json", "tiny"))
    assert record.read_text().count("own_envs") == 2, "the name and the file, once"


def test_a_home_that_cannot_be_written_to_does_not_stop_a_run(own_spec, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    admit_modules(own_spec)
    make_env(own_spec.env, seed=0)


def test_a_resume_imports_no_other_modules_than_the_users_spec_names(
    slm_lab, own_spec, hostile, mark
):
    name_env(hostile, f"data.{hostile.name}.info.helper:CartPole-v1")
    code, _, err = slm_lab("run", "my_spec.json", "tiny", f"train@{hostile}")
    assert (code, mark.exists()) == (2, False)
    assert "env.name" in err


# A search


def test_a_search_may_not_choose_a_module_unasked(pulled, mark):
    path = pulled / "tiny_spec.json"
    tree = json.loads(path.read_text())
    tree["env"]["name"] = "CartPole-v1"
    tree["search"] = {"env.name__choice": ["CartPole-v1", "own_envs:Own-v0"]}
    tree["meta"]["max_trial"] = 1
    path.write_text(json.dumps(tree))
    with pytest.raises(SpecError, match=r"search\.env\.name__choice: .*`own_envs`"):
        run(load_spec(path), "search")
    assert not mark.exists()


def test_values_that_a_folder_gives_to_a_trial_name_no_new_module(pulled, own_module, mark):
    """As the journal of a search from elsewhere could; the search itself is one of CartPole."""
    name_env(pulled, "CartPole-v1")
    saved = load_spec(pulled / "tiny_spec.json")
    trial = pickle.loads(pickle.dumps(saved)).with_values({"env.name": "own_envs:Own-v0"})
    with pytest.raises(SpecError, match="--trust own_envs"):
        make_env(trial.renamed("tiny_trial0").env, seed=0)
    assert not mark.exists()
