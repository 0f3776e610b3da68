"""`train(...)`: two lines to a result, whatever the process that they run in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loguru import logger

from slm_lab.analysis.tables import drop_clock
from slm_lab.api.result import Result, load_result
from slm_lab.api.run import run
from slm_lab.api.train import train
from slm_lab.spec import SpecError, SpecWarning
from slm_lab.spec.keywords import spec_from_keywords
from slm_lab.training.callback import Callback
from slm_lab.training.console import Progress
from slm_lab.training.notebook_display import NotebookDisplay
from slm_lab.training.options import RunOptions

SMALL: dict[str, Any] = {"num_envs": 2, "time_horizon": 16, "minibatch_size": 32, "hid_layers": [4]}
SMALL |= {"compile": "off", "seed": 1}


@pytest.fixture(autouse=True, scope="module")
def silent_log():
    yield
    logger.remove()  # a run leaves its log file open


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    folder = tmp_path_factory.mktemp("data")
    return train("PPO", env="CartPole-v1", frames=400, data=folder, **SMALL)


def test_a_result_has_every_row(result):
    assert result.df.columns[0] == "session"
    assert list(result.df["frame"])[-1] == 400
    assert set(result.df["session"]) == {0}
    assert result.sessions[0].keys() >= {"total_reward_ma", "strength"}


def test_a_result_shows_itself(result):
    text, html = repr(result), result._repr_html_()
    assert text.startswith("PPO on CartPole-v1\n  score")
    assert str(result.predir) in text
    assert "data:image/png;base64," in html
    assert len(html) < 60_000, "a notebook keeps every byte"


def test_its_curve_is_a_picture_of_any_column(result, tmp_path):
    for graph in (result.plot(), result.plot("loss"), result.plot(smooth=False)):
        assert graph._repr_png_().startswith(b"\x89PNG")
    assert result.plot().save(tmp_path / "a.png").read_bytes() == result.plot().png
    with pytest.raises(ValueError, match="no column 'los'; the sessions have"):
        result.plot("los")


def test_its_agent_acts_and_is_scored(result):
    agent = result.agent()
    assert agent.predict(np.zeros(4)) in (0, 1)
    evaluation = result.evaluate(episodes=3)
    assert len(evaluation.sessions[0].returns) == 3


def test_a_result_is_loaded_from_its_folder(result):
    again = load_result(result.predir)
    assert again == result
    assert load_result("latest", data=result.predir.parent) == result


def test_run_gives_a_result_too(tmp_path):
    spec = spec_from_keywords("Random", {"env": "CartPole-v1", "frames": 50})
    assert isinstance(run(spec, "dev", RunOptions(data_dir=str(tmp_path))), Result)


def test_a_result_goes_on_as_if_it_had_never_stopped(tmp_path):
    short = train("PPO", "CartPole-v1", 200, data=tmp_path / "a", log_frequency=50, **SMALL)
    more = train(short, frames=400)
    whole = train("PPO", "CartPole-v1", 400, data=tmp_path / "b", log_frequency=50, **SMALL)
    assert more.predir == short.predir
    assert drop_clock(more.df).equals(drop_clock(whole.df))
    with pytest.raises(SpecError, match=r"gamma: A result goes on as it began.*init_from=result"):
        train(short, frames=600, gamma=0.5)


def test_a_result_that_goes_on_takes_no_other_name_and_no_callbacks(result):
    with pytest.raises(SpecError, match="name: A result goes on as it began"):
        train(result, frames=800, name="other")
    with pytest.raises(SpecError, match="callbacks: A result goes on as it began"):
        train(result, frames=800, callbacks=[Callback])


def test_a_warning_points_at_the_line_that_called_train(tmp_path, monkeypatch):
    monkeypatch.setattr("slm_lab.api.train._run", lambda *_, **__: None)
    with pytest.warns(SpecWarning, match="so nothing is learned") as caught:
        train("PPO", env="CartPole-v1", frames=9, data=tmp_path)
    assert {warning.filename for warning in caught} == {__file__}


def test_an_agent_that_learns_begins_a_run_and_one_that_acts_does_not(result, tmp_path):
    learner = result.agent(learns=True)
    assert result.agent().spec == learner.spec == result.spec, "with the envs of the training"
    begun = train(learner, frames=200, data=tmp_path)
    assert begun.spec.meta.init_from is not None
    assert Path(begun.spec.meta.init_from.folder).parent == tmp_path
    with pytest.raises(SpecError, match="loaded to act"):
        train(result.agent(), frames=200, data=tmp_path)


SCRIPT = """
import threading
import gymnasium as gym, numpy as np
from slm_lab import train
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.training.callback import Callback

class Corridor(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.ones(1, np.float32), float(action), self.steps == 9, False, {}

class Held(Corridor):
    lock = threading.Lock()
    def __init__(self):
        self.held = self.lock

class Mine(PPO):
    pass

class Note(Callback):
    def on_end(self, session, reason):
        open(f"{session.spec.name}{session.index}.txt", "w").write(reason)

gym.register("Corridor-v0", entry_point="__main__:Corridor")
keys = dict(frames=120, sessions=2, num_envs=2, time_horizon=16, compile="off", seed=3)
keys |= dict(net={"hid_layers": [4]}, callbacks=[Note])
"""
APART = "apart = train(Mine, env=Corridor, name='apart', **keys)\n"
NAMED = "named = train('PPO', env='Corridor-v0', name='named', **keys)\n"
HERE = """
here = train(Mine, env=lambda: Held(), name="here", **keys)
tables = [result.df.drop(columns=["fps", "wall_t"]) for result in (apart, here)]
assert len(tables[0]) and tables[0].equals(tables[1])
"""


def python(*arguments: str, folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, input=text, capture_output=True, text=True, check=False
    )


def notes(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.txt")}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["-c", "stdin"])
def test_sessions_get_the_env_and_the_callback_of_a_command(by, tmp_path):
    code = SCRIPT + NAMED
    done = (
        python("-c", code, folder=tmp_path)
        if by == "-c"
        else python("-", folder=tmp_path, text=code)
    )
    assert done.returncode == 0, done.stderr
    assert notes(tmp_path) == {"named0.txt", "named1.txt"}


@pytest.mark.slow
def test_a_script_needs_no_guard_and_what_cannot_be_sent_runs_here_with_equal_numbers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + APART + HERE)
    done = python("script.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("one after another in this process: env.name: python/Held") == 1
    assert "Only from here can this run be resumed" in done.stderr
    assert notes(tmp_path) == {"apart0.txt", "apart1.txt", "here0.txt", "here1.txt"}
    (folder,) = tmp_path.glob("data/apart_*")
    load = f"from slm_lab import load_agent; load_agent({str(folder)!r}"
    untrusted = python("-c", f"{load})", folder=tmp_path)
    assert "which runs only if you trust it" in untrusted.stderr
    elsewhere = python("-c", f"{load}, trust=('__main__',))", folder=tmp_path)
    assert "`__main__` has no `Mine`" in elsewhere.stderr


def test_a_search_refuses_what_exists_in_this_process_alone(tmp_path):
    import gymnasium as gym

    here: Any = lambda: gym.make("CartPole-v1")  # noqa: E731
    gym.register("python/Here", entry_point=here)
    search = {"agent.algorithm.gamma__uniform": [0, 1]}
    keys = {"env": "python/Here", "frames": 2999, "gamma": 0.9, "search": search}
    spec = spec_from_keywords("PPO", keys)
    try:
        for mode, options in (
            ("search", RunOptions(data_dir=str(tmp_path))),
            ("train", RunOptions(data_dir=str(tmp_path), ray_address="here:1")),
        ):
            with pytest.raises(SpecError, match=r"python/Here.*exists in this process alone"):
                run(spec, mode, options)
    finally:
        del gym.registry["python/Here"]


def test_a_notebook_shows_one_table_that_is_redrawn():
    shown: list[str] = []
    now = iter(range(100))

    def show(text: str):
        shown.append(text)
        return lambda text: shown.append(text)

    with NotebookDisplay([0, 1], show=show, clock=lambda: next(now)) as display:
        assert shown[-1].count("waiting for a core") == 2
        display.update(Progress(1, 50, 100, 25.0, 3.0, 4.0))
        assert "50 of 100 frames" in shown[-1]
        assert "2 s left" in shown[-1]
        display.finish(1, "Session 1 done <ok>")
    assert "Session 1 done &lt;ok&gt;" in shown[-1]
