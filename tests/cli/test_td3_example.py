"""examples/td3.py: an algorithm in one file of the user's own does all that ours do."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from slm_lab import evaluate, load_spec, run
from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.runs.layout import RunLayout
from slm_lab.search.plan import plan_search
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = RunOptions(mode="train", log_level="ERROR")
SETS = [
    "env.max_frame=200",
    "env.max_t=50",
    "agent.algorithm.training_start_step=40",
    "agent.net.hid_layers=[8]",
    "agent.memory.batch_size=8",
    "agent.memory.max_size=150",
    "meta.log_frequency=50",
    "meta.checkpoint_frequency=50",
    "meta.compile=off",
    "meta.random_seed=1",
]
KILLING = """
import os, signal
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv

class Killing(PendulumEnv):
    '''Kills its process at a step, in the first life of a run only.'''

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 130 and not os.path.exists("lived"):
            open("lived", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

gym.register("Killing-v0", entry_point=Killing, max_episode_steps=40)
"""

pytestmark = pytest.mark.filterwarnings("ignore::slm_lab.SpecWarning")


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """td3.py and td3.yaml in the working directory; nobody remembers a module of another test."""
    for name in ("td3.py", "td3.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "td3.py"
    forget()
    logger.remove()


def forget() -> None:
    for name in ("td3", "killing"):
        sys.modules.pop(name, None)


def small(*sets: str) -> Spec:
    return load_spec("td3.yaml", sets=[*SETS, *sets])


def dashboard_of(data: Path) -> str:
    """What the page shows of a folder at first."""
    from slm_lab.dashboard.server import make_app

    text: str = (
        make_app(data).test_client().get("/_dash-layout", headers={"Host": "localhost"}).text
    )
    return text


def curves(run: Path | RunLayout) -> list[str]:
    layout = run if isinstance(run, RunLayout) else RunLayout.open(run)
    paths = [layout.session_csv(0, session, "train") for session in layout.sessions(0)]
    return [drop_clock(read_session(path)).to_csv() for path in paths]


def test_its_spec_is_checked_and_printed_like_those_of_ours(slm_lab):
    code, out, _ = slm_lab("spec", "--check", "td3.yaml")
    assert (code, "ok" in out) == (0, True)
    printed = json.loads(slm_lab("spec", "td3.yaml")[1])
    assert printed["agent"]["algorithm"]["target_noise_clip"] == 0.5
    sets = ["-s", "agent.algorithm.target_nois=1"]
    code, _, err = slm_lab("run", "td3.yaml", "td3_pendulum", "train", *sets)
    assert code == 2
    assert "agent.algorithm.target_nois: unknown key for td3:TD3. Did you mean" in err
    assert not Path("data").exists()


@pytest.mark.slow
def test_it_trains_is_listed_compared_reported_scored_and_exported(slm_lab, example):
    predir = run(small(), "train", QUIET).predir
    layout = RunLayout.open(predir)
    record: Any = json.loads(layout.trial_provenance(0).read_text())
    (entry,) = record["sittings"]
    assert entry["modules"]["td3"]["file"] == "td3.py"
    assert len(entry["modules"]["td3"]["sha256"]) == 64
    assert slm_lab("eval", predir, "--episodes", 1)[0] == 0
    assert slm_lab("export", predir, "--format", "torchscript")[0] == 0

    # What only reads a folder runs none of its code: here that would leave a mark.
    forget()
    example.write_text("open('executed', 'a').close()\n")
    reading: list[list[Any]] = [
        ["list", "-d", "data"],
        ["plot", "-f", predir],
        ["compare", predir],
        ["report", predir],
        ["retro", predir],
    ]
    outputs = [slm_lab(*command) for command in reading]
    assert [code for code, _, _ in outputs] == [0] * len(reading), outputs
    assert "TD3" in outputs[0][1]
    if importlib.util.find_spec("dash"):
        assert "TD3" in dashboard_of(Path("data"))
    assert not Path("executed").exists()
    assert "td3" not in sys.modules


@pytest.mark.slow
def test_a_folder_from_elsewhere_needs_trust(slm_lab, example, tmp_path, monkeypatch):
    predir = run(small(), "train", QUIET).predir
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other_state"))  # another user
    forget()
    for command in (["enjoy"], ["eval"], ["export"]):
        code, _, err = slm_lab(*command, predir)
        assert code == 2
        assert "agent.algorithm.name: the spec of a run folder asks for code" in err
        assert "--trust td3" in err
        assert "td3" not in sys.modules
    assert slm_lab("eval", predir, "--episodes", 1, "--trust", "td3")[0] == 0


@pytest.mark.slow
def test_killed_and_resumed_it_goes_on_bit_for_bit(slm_lab, example, capsys):
    """Two sessions in processes of their own, of which the first to get there is killed."""
    Path("killing.py").write_text(KILLING)
    spec = small("env.name=killing:Killing-v0", "meta.max_session=2")
    predir = run(spec, "train", QUIET).predir
    assert Path("lived").exists()
    # A comment added to the module changes its hash, and the user is told.
    example.write_text(example.read_text() + "\n# another line\n")
    metrics = run(spec, "train@latest", RunOptions(log_level="WARNING"))
    assert "td3.py: the module `td3` has changed since this run was last" in capsys.readouterr().err
    assert metrics.predir == predir
    assert len(curves(predir)) == 2
    whole = RunLayout.create("whole", "2026_01_01_000000", "data")
    for session in (0, 1):
        assert Session(spec, whole, 0, session, QUIET).run()
    assert curves(predir) == curves(whole)


@pytest.mark.search_smoke
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what Ray leaves when it shuts down
def test_its_own_keys_are_searched_over(slm_lab):
    assert plan_search(load_spec("td3.yaml")).max_trial == 9
    pytest.importorskip("ray", reason="the extra `search` is not installed")
    metrics = run(small("meta.max_trial=2", "meta.search_sampler=random"), "search", QUIET)
    table = next(metrics.predir.glob("*_experiment_df.csv")).read_text()
    assert "explore_noise" in table.splitlines()[0]
    assert len(table.splitlines()) == 3
    forget()
    assert slm_lab("retro", metrics.predir)[0] == 0
    assert "td3" not in sys.modules


@pytest.mark.parametrize(
    "sets",
    [
        ["agent.memory.name=PrioritizedReplay"],
        ["agent.memory.use_cer=true", "agent.algorithm.n_step=3"],
        ["env.num_envs=4", "env.normalize_obs=true", "env.normalize_reward=true"],
        [
            "agent.net.batch_norm=true",
            "agent.net.lr_scheduler_spec={name: LinearToZero, frame: 200}",
        ],
        ["env.frame_stack=2", "agent.net.update_type=replace", "agent.net.update_frequency=20"],
    ],
    ids=lambda sets: sets[0],
)
def test_it_goes_with_the_features_that_its_base_classes_bring(sets):
    spec = small(*sets)
    whole, half = (RunLayout.create(name, "2026_01_01_000000", "data") for name in ("all", "half"))
    assert Session(spec, whole, 0, 0, QUIET).run()
    asked = itertools.count()
    assert not Session(spec, half, 0, 0, QUIET, should_stop=lambda: next(asked) > 30).run()
    assert Session(spec, half, 0, 0, replace(QUIET, resume=True)).run()
    assert curves(whole) == curves(half)


@pytest.mark.slow
def test_workers_that_share_their_nets_find_it_too():
    spec = small("meta.distributed=synced", "meta.max_session=2")
    assert len(curves(run(spec, "train", QUIET).predir)) == 2


@pytest.mark.slow
@pytest.mark.long_learning
def test_it_learns_pendulum_in_20000_frames():
    metrics = run(load_spec("td3.yaml", sets=["meta.random_seed=1"]), "train", QUIET)
    assert evaluate(metrics.predir, episodes=20).mean > -160
