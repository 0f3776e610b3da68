"""`enjoy`, `eval` and `export` on a folder that a real run left."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger

from slm_lab import evaluate
from slm_lab.api.run import run
from slm_lab.cli.main import main
from slm_lab.spec import load_spec
from slm_lab.training.options import RunOptions

PPO = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
TINY = [
    "env.max_frame=400",
    "env.num_envs=2",
    "env.normalize_obs=true",
    "meta.max_session=2",
    "meta.log_frequency=50",
    "meta.compile=off",
    "meta.random_seed=1",
    "agent.algorithm.time_horizon=16",
    "agent.algorithm.minibatch_size=16",
    "agent.algorithm.training_epoch=1",
]
RETURN = re.compile(r"episode (\d+) +return +(\d+\.\d\d) +length (\d+)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sessions, made once."""
    data = tmp_path_factory.mktemp("trained") / "data"
    metrics = run(load_spec(PPO, sets=TINY), "train", RunOptions(data_dir=str(data)))
    logger.remove()
    return metrics.predir


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it under ./data, relative to where commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RENDER", raising=False)
    shutil.copytree(trained, Path("data") / trained.name)
    return Path("data") / trained.name


@pytest.fixture
def slm_lab(monkeypatch, capsys):
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def command(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["slm-lab", *map(str, arguments)])
        with warnings.catch_warnings():
            try:
                main()
                code: Any = 0
            except SystemExit as exit_:
                code = exit_.code or 0
        return code, *capsys.readouterr()

    return command


# enjoy


def test_enjoy_prints_each_return_with_mean_and_spread(slm_lab, folder):
    code, out, _ = slm_lab("enjoy", folder, "--episodes", 3)
    assert code == 0
    lines = out.splitlines()
    assert re.fullmatch(r"ppo_cartpole_t0_s[01] \(best agent\): PPO on CartPole-v1", lines[0])
    episodes = [RETURN.fullmatch(line) for line in lines[1:4]]
    returns = [float(match[2]) for match in episodes if match]
    assert [match and int(match[1]) for match in episodes] == [1, 2, 3]
    mean = sum(returns) / 3
    std = (sum((x - mean) ** 2 for x in returns) / 3) ** 0.5
    assert lines[4].startswith(f"mean    {mean:.2f} +- {std:.2f} over 3 episode(s)")


def test_every_form_of_the_documents_replays_the_same_episodes(slm_lab, folder):
    saved = folder / "ppo_cartpole_t0_spec.json"
    wheres = [folder, saved, saved.with_suffix(".yaml"), "latest", "data/ppo_*/*_t0_spec.yaml"]
    outputs = [slm_lab("run", PPO, "ppo_cartpole", f"enjoy@{where}") for where in wheres]
    outputs.append(slm_lab(PPO, "ppo_cartpole", f"enjoy@{saved}"))
    outputs.append(slm_lab("enjoy", folder))
    assert len(RETURN.findall(outputs[0][1])) == 10
    assert all(output == outputs[0] for output in outputs)


def test_the_seed_and_the_choice_of_agent_reach_the_replay(slm_lab, folder):
    plain = slm_lab("enjoy", folder, "--session", 0)[1]
    assert slm_lab("enjoy", folder, "--session", 0, "--seed", 5)[1] != plain
    assert "(last agent)" in slm_lab("enjoy", folder, "--session", 0, "--last")[1]
    assert "_s1 (best agent)" in slm_lab("enjoy", folder, "--session", 1)[1]
    assert slm_lab("enjoy", folder, "--session", 0, "--sampled")[1] != plain
    assert (
        slm_lab("run", PPO, "ppo_cartpole", f"enjoy@{folder}", "--seed", 5)[1].splitlines()[1:]
        == slm_lab("enjoy", folder, "--seed", 5)[1].splitlines()[1:]
    )


def test_a_video_is_written_into_the_folder_or_where_asked(slm_lab, folder):
    code, out, err = slm_lab("enjoy", folder, "--session", 0, "--video")
    assert code == 0, err
    (path,) = (folder / "video").iterdir()
    assert out.splitlines()[-1] == f"video   {path}"
    assert path.stem == "ppo_cartpole_t0_s0_best"
    assert len(RETURN.findall(out)) == 1
    assert slm_lab("enjoy", folder, "--out", "mine.gif")[0] == 0
    assert Path("mine.gif").read_bytes()[:6] == b"GIF89a"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["enjoy", "data/nothing"], ["RunFolderError: data/nothing: no such run"]),
        (["enjoy", "{folder}", "--session", "9"], ["no best agent", "Saved: session 0, 1"]),
        (["enjoy", "{folder}", "--trial", "3"], ["no best agent of trial 3"]),
        (["enjoy", "{folder}", "-o", "x.avi"], ["--output: found `x.avi`", ".gif"]),
        (["enjoy", "{folder}", "--out", "data/taken/x.gif"], ["--output: data/taken/x.gif cannot"]),
        (
            ["export", "{folder}", "--output", "data/taken/x.pt2"],
            ["--output: data/taken/x.pt2 cannot"],
        ),
        (["enjoy", "{folder}", "--episodes", "0"], ["--episodes"]),
        (["run", PPO, "ppo_cartpole", "enjoy"], ["enjoy@FOLDER"]),
        (["run", PPO, "x", "enjoy@{folder}", "-s", "env.max_frame=1"], ["-s changes nothing"]),
        (["run", PPO, "none", "enjoy@latest"], ["latest: no run of none in data/"]),
        (["eval", "data"], ["not a run folder"]),
        (["export", "{folder}", "--format", "keras"], ["keras"]),
    ],
)
def test_a_mistake_is_named_with_exit_code_2(slm_lab, folder, arguments, words):
    Path("data/taken").touch()  # a file where a folder would be needed
    code, out, err = slm_lab(*(text.format(folder=folder) for text in arguments))
    assert code == 2
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert "episode" not in out


def test_a_hostile_folder_ends_with_exit_code_2_and_runs_nothing(folder):
    class Payload:
        def __reduce__(self) -> Any:
            return print, ("executed",)

    for path in folder.glob("model/*_net_model.pt"):
        torch.save({"model.0.weight": Payload()}, path)
    command = [sys.executable, "-m", "slm_lab.cli.main", "enjoy", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "refused by torch's weights-only reader" in done.stderr
    assert "executed" not in done.stdout
    assert "Traceback" not in done.stderr


# eval


def test_eval_scores_every_session_and_writes_what_it_prints(slm_lab, folder):
    code, out, _ = slm_lab("eval", folder, "--episodes", 20, "--seed", 2)
    assert code == 0
    path = folder / "info" / "ppo_cartpole_t0_evaluation_best_deterministic.json"
    assert out.splitlines()[-1] == f"written {path}"
    saved = json.loads(path.read_text())
    assert {k: saved[k] for k in ("env", "agent", "policy", "episodes", "seed", "trial")} == {
        "env": "CartPole-v1",
        "agent": "best",
        "policy": "deterministic",
        "episodes": 20,
        "seed": 2,
        "trial": 0,
    }
    assert [len(session["returns"]) for session in saved["sessions"].values()] == [20, 20]
    assert f"mean    {saved['mean']:.2f} " in out
    low, high = saved["ci95_over_sessions"]
    assert f"95 % [{low:.2f}, {high:.2f}] over sessions and episodes" in out
    assert low <= saved["mean"] <= high


def test_the_same_evaluation_twice_gives_the_same_numbers_and_sampling_others(folder):
    first, again = (evaluate(folder, episodes=5, seed=1) for _ in range(2))
    sampled = evaluate(folder, episodes=5, seed=1, sampled=True)
    last = evaluate(folder, episodes=5, seed=1, best=False)
    assert first == again
    assert first.sessions[0].returns != sampled.sessions[0].returns
    assert len({first.path, sampled.path, last.path}) == 3


def test_evaluation_moves_no_statistics(folder):
    before = {path: path.read_bytes() for path in (folder / "model").iterdir()}
    evaluate(folder, episodes=2)
    assert {path: path.read_bytes() for path in (folder / "model").iterdir()} == before


def test_a_folder_that_cannot_be_written_to_is_named(slm_lab, folder):
    (folder / "info" / "ppo_cartpole_t0_evaluation_best_deterministic.json").mkdir()
    code, _, err = slm_lab("eval", folder, "--episodes", 1)
    assert code == 2
    assert "evaluation_best_deterministic.json: is a folder, expected a plain file" in err


# export


def test_export_writes_a_checked_file_and_says_how_to_load_it(slm_lab, folder):
    code, out, err = slm_lab("export", folder, "--session", 1, "--format", "torchscript")
    assert code == 0, err
    path = folder / "model" / "ppo_cartpole_t0_s1_best_policy.ts"
    first, second = out.splitlines()
    assert first.startswith(f"{path}  (acts as the live agent does")
    assert second == f'load    torch.jit.load("{path}")(obs)'
    assert path.is_file()
    assert slm_lab("export", folder, "--format", "torchscript", "--out", "a/b.ts")[0] == 0
    assert Path("a/b.ts").is_file()


@pytest.mark.slow
def test_the_default_format_loads_as_printed(slm_lab, folder):
    code, out, _ = slm_lab("export", folder)
    assert code == 0
    expression = out.splitlines()[-1].removeprefix("load    ")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        action = eval(expression, {"torch": torch, "obs": torch.zeros(3, 4)})
    assert action.shape == (3,)
