"""Callbacks: what they see and add, how they end a session, and that a resume continues them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.analysis.tables import read_session
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import is_finished, stop_reasons
from slm_lab.spec import SpecError, load_spec
from slm_lab.spec.trust import SpecOrigin, admit_modules
from slm_lab.training.callback import Callback, CallbackError
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session

# A user's callback, in a file of his own.
OWN = """
from slm_lab.spec.block import Count, Key
from slm_lab.spec.callback import CallbackSpec
from slm_lab.training.callback import Callback


class CountingSpec(CallbackSpec):
    '''Counts its calls.'''

    limit: Count = Key(10**9, "Steps at which the session ends.")


class Counting(Callback):
    spec_class = CountingSpec

    def __init__(self, *args, **keys):
        super().__init__(*args, **keys)
        self.counts = dict.fromkeys(["start", "step", "episodes", "update", "checkpoint"], 0)

    def on_training_start(self, session):
        self.counts["start"] += 1

    def on_step(self, session):
        self.counts["step"] += 1
        if self.counts["step"] == self.spec.limit:
            session.stop(f"{self.spec.limit}   steps")

    def on_episode_end(self, session, episodes):
        self.counts["episodes"] += len(episodes.returns)

    def on_update(self, session, metrics):
        self.counts["update"] += 1

    def on_row(self, session, row):
        return {"steps": self.counts["step"], "seen": row["total_reward_ma"]}

    def on_checkpoint(self, session):
        self.counts["checkpoint"] += 1

    def on_end(self, session, reason):
        (session.folder / "end.txt").write_text(f"{reason} {self.counts}")

    def state_dict(self):
        return {"counts": self.counts}

    def load_state_dict(self, state):
        self.counts = dict(state["counts"])


class Wrong:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Stand in a folder with the module own_callbacks."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "own_callbacks.py").write_text(OWN)
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "own_callbacks", raising=False)
    return "own_callbacks:Counting"


def one(name, **keys):
    return [{"name": name, **keys}]


def test_a_callback_is_called_at_every_point_and_adds_columns(own, make_spec, run_session):
    layout = run_session(make_spec(meta__callbacks=[own]))
    table = read_session(layout.session_csv(0, 0, "train"))
    # 200 frames of 2 envs; an episode of ActionMatters is one step long; 16 * 2 frames an update.
    assert table["steps"].tolist() == [25, 50, 75, 100]
    assert table["seen"].tolist() == table["total_reward_ma"].tolist()
    assert list(table.columns)[-2:] == ["steps", "seen"]
    calls = {"start": 1, "step": 100, "episodes": 200, "update": 6, "checkpoint": 1}
    assert (layout.predir / "end.txt").read_text() == f"finished {calls}"


def test_the_numbers_of_a_session_are_the_same_with_a_callback_that_only_looks(
    own, make_spec, run_session
):
    plain = read_session(run_session(make_spec()).session_csv(0, 0, "train"))
    seen = read_session(run_session(make_spec(meta__callbacks=[own])).session_csv(0, 0, "train"))
    clock = ["fps", "wall_t"]
    assert seen[plain.columns].drop(columns=clock).equals(plain.drop(columns=clock))


def test_a_stop_gives_a_last_row_and_counts_as_finished(own, make_spec, run_session):
    spec = make_spec(meta__callbacks=one(own, limit=30))
    layout = run_session(spec)
    assert run_session.completed
    assert read_session(layout.session_csv(0, 0, "train"))["frame"].tolist() == [50, 60]
    assert is_finished(layout, 0, 0)
    assert stop_reasons(layout, 0, [0]) == {0: "30 steps"}
    assert (layout.predir / "end.txt").read_text().startswith("30 steps ")
    again = Session(spec, layout, 0, 0, RunOptions(resume=True))
    assert again.run()
    assert again.frame == 60


@pytest.mark.parametrize("algorithm", ["PPO", "DDQN+PER", "recurrent PPO"])
def test_a_resumed_session_equals_one_that_was_never_stopped(
    own, algorithm, every_spec, run_session, same_run, tmp_path
):
    callbacks = [
        own,
        {"name": "EvaluateEvery", "every": 70, "episodes": 2},
        {"name": "EarlyStopping", "patience": 10_000},
    ]
    spec = every_spec(algorithm, meta__callbacks=callbacks)
    whole = run_session(spec)
    layout = RunLayout.create(spec.name, "then", tmp_path)
    for stop_after in (57, 10**9):
        asked = iter(range(10**9))
        options = RunOptions(resume=stop_after > 57)
        stop = lambda limit=stop_after, asked=asked: next(asked) > limit  # noqa: E731
        Session(spec, layout, 0, 0, options, should_stop=stop).run()
    same_run(layout, whole)
    counts = [(place.predir / "end.txt").read_text() for place in (whole, layout)]
    steps = [text.partition("'step': ")[2].partition(",")[0] for text in counts]
    assert steps == ["160", "160"]


def test_a_session_ends_at_a_score_or_without_improvement(make_spec, run_session):
    reached = run_session(make_spec(meta__callbacks=one("stop_at_score", score=-1e9)))
    assert stop_reasons(reached, 0, [0])[0].endswith("reached -1e+09")
    waiting = one("EarlyStopping", patience=100, column="frame", least=1000)
    stale = run_session(make_spec(meta__callbacks=waiting, env__max_frame=400))
    reason = "frame is not above 50 since frame 50, 100 frames ago"
    assert stop_reasons(stale, 0, [0]) == {0: reason}


def test_a_column_that_the_curve_lacks_is_named(make_spec, run_session):
    with pytest.raises(CallbackError, match=r"StopAtScore.column: the curve has no `scor`; it has"):
        run_session(make_spec(meta__callbacks=one("StopAtScore", score=1, column="scor")))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"loss": 1.0}, "`loss` is there already"),
        ({"a,b": 1.0}, "cannot head a table"),
        ({"note": "text"}, "is 'text'. Expected a number"),
    ],
)
def test_columns_that_no_table_can_have_are_refused(
    own, columns, message, make_spec, run_session, monkeypatch
):
    spec = make_spec(meta__callbacks=[own])
    run_session(spec)
    counting = sys.modules["own_callbacks"].Counting
    monkeypatch.setattr(counting, "on_row", lambda *_: columns)
    with pytest.raises(CallbackError, match=message):
        run_session(spec)


def test_agents_saved_under_a_name_are_loaded_by_it(make_spec, train_folder):
    from slm_lab import load_agent
    from slm_lab.spec.run_folder import RunFolderError

    callbacks = [*one("SaveEvery", every=100), *one("EvaluateEvery", every=60, episodes=3)]
    folder = train_folder(make_spec(meta__callbacks=callbacks))
    nets = (folder / "model").glob("*_ckpt-*_net_model.pt")
    saved = {path.name for path in nets if "critic" not in path.name}
    names = ["best", "evaluated", "frame100", "frame200"]
    assert saved == {f"tiny_t0_s0_ckpt-{name}_net_model.pt" for name in names}
    agent, env = load_agent(folder, checkpoint="frame100")
    last, _ = load_agent(folder, best=False)
    early, late = (a.algorithm.modules["net"].state_dict() for a in (agent, last))
    assert any(not early[key].equal(late[key]) for key in early)
    assert agent.act(env.reset(), explore=False).shape == (1,)
    with pytest.raises(RunFolderError, match=r"no frame7 agent.*evaluated, frame100, frame200"):
        load_agent(folder, checkpoint="frame7")


class Levels(gym.Env):
    """The observation, and the reward, is the level of the reset's options."""

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.steps = float((options or {}).get("level", 0)), 0
        return np.full(1, self.level, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.level, np.float32), self.level, self.steps == 5, False, {}


@pytest.fixture
def levels(monkeypatch):
    gym.register("Levels-v0", entry_point=lambda **_: Levels())
    yield "Levels-v0"
    gym.registry.pop("Levels-v0")


STAGES = [{"frame": 0, "options": {"level": 1}}, {"frame": 103, "options": {"level": 3}}]


def test_a_curriculum_changes_what_episodes_begin_with_and_resumes_within_one(
    levels, make_spec, run_session, same_run, tmp_path
):
    spec = make_spec(
        env__name=levels, meta__log_frequency=20, meta__callbacks=one("Curriculum", stages=STAGES)
    )
    whole = run_session(spec)
    rewards = read_session(whole.session_csv(0, 0, "train"))["total_reward"].tolist()
    assert rewards[:5] == [5.0] * 5
    assert rewards[-1] == pytest.approx((5 * 22 + 15 * 18) / 40)
    layout = RunLayout.create(spec.name, "then", tmp_path)
    # After 53 steps of 2 envs: within an episode that began with level 1, in the stage of level 3.
    for limit in (52, 10**9):
        asked = iter(range(10**9))
        stop = lambda limit=limit, asked=asked: next(asked) > limit  # noqa: E731
        Session(spec, layout, 0, 0, RunOptions(resume=limit > 52), should_stop=stop).run()
    same_run(layout, whole)


def test_a_curriculum_on_envs_that_take_no_options_is_refused_by_name(make_spec, run_session):
    pytest.importorskip("envpool")
    from slm_lab.env.error import EnvError

    spec = make_spec(
        env__name="CartPole-v1",
        env__backend="envpool",
        meta__callbacks=one("Curriculum", stages=STAGES),
    )
    with pytest.raises(EnvError, match=r"`envpool` take no reset options.*env.backend: gymnasium"):
        run_session(spec)


def test_a_video_is_filmed_of_fresh_episodes(make_spec, run_session):
    spec = make_spec(
        env__name="CartPole-v1",
        env__max_frame=60,
        env__max_t=10,
        meta__callbacks=one("VideoEvery", every=50),
    )
    layout = run_session(spec)
    assert [path.stem for path in (layout.predir / "video").iterdir()] == ["tiny_t0_s0_frame50"]


def test_an_env_that_draws_nothing_costs_a_warning(make_spec, run_session):
    layout = run_session(make_spec(meta__callbacks=one("VideoEvery", every=50)))
    assert not list((layout.predir / "video").glob("*"))


def test_a_command_at_the_end_gets_the_reason(make_spec, run_session, tmp_path):
    out = tmp_path / "said"
    command = f'echo "$SLM_LAB_REASON at $SLM_LAB_FRAME" > {out}; exit 3'
    run_session(make_spec(meta__callbacks=one("CommandAtEnd", command=command)))
    assert out.read_text() == "finished at 200\n"


def test_an_address_is_told_how_a_session_ended(make_spec, run_session):
    told = []

    class Ear(BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Ear) as server:
        Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        run_session(make_spec(meta__callbacks=one("WebhookAtEnd", url=url)))
    assert [(t["session"], t["reason"], t["frame"]) for t in told] == [
        ("tiny_t0_s0", "finished", 200)
    ]


def test_a_command_of_a_run_folder_is_refused_until_its_user_has_run_the_same(
    make_spec, run_session, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mark = tmp_path / "ran"
    spec = make_spec(meta__callbacks=one("CommandAtEnd", command=f"touch {mark}"))
    folder = tmp_path / "pulled_2026_01_01_000000"
    (folder / "log").mkdir(parents=True)
    (folder / "tiny_t0_spec.json").write_text(json.dumps(spec.to_dict() | {"name": "tiny"}))
    pulled = load_spec(folder / "tiny_t0_spec.json", "tiny")
    with pytest.raises(SpecError, match=r"meta.callbacks.0: .*command touch .*never runs unless"):
        admit_modules(pulled)
    # Even where nobody has asked before.
    stranger = pulled.with_origin(SpecOrigin(folder, frozenset()))
    run_session(stranger)
    assert not mark.exists()
    admit_modules(load_spec(folder / "tiny_t0_spec.json", trust=[f"command touch {mark}"]))
    admit_modules(spec)  # a run of his own
    admit_modules(load_spec(folder / "tiny_t0_spec.json", "tiny"))


def test_an_agent_is_played_without_trust_in_the_callbacks_it_was_trained_with(
    make_spec, train_folder
):
    from slm_lab import load_agent

    folder = train_folder(make_spec())
    path = folder / "tiny_t0_spec.json"
    tree = json.loads(path.read_text())
    tree["meta"]["callbacks"] = ["their_module:X", *one("CommandAtEnd", command="rm x")]
    path.write_text(json.dumps(tree))
    load_agent(folder)
    with pytest.raises(SpecError, match=r"callbacks.0.*: .*code of the module `their_module`"):
        admit_modules(load_spec(path))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("no_such_module:X", r"meta.callbacks.0.name: cannot import `no_such_module`"),
        ("own_callbacks:Countin", r"`own_callbacks` has no `Countin`. Did you mean `Counting`"),
        ("own_callbacks:Wrong", r"expected a subclass of slm_lab.training.callback.Callback"),
        ({"name": "own_callbacks:Counting", "limt": 3}, r"callbacks.0.limt: unknown key for Count"),
    ],
)
def test_a_callback_of_ones_own_is_checked_before_anything_is_written(
    own, entry, message, make_spec
):
    from slm_lab import run

    with pytest.raises(SpecError, match=message):
        run(make_spec(meta__callbacks=[entry]), "train")
    assert not Path("data").exists()


def test_reading_a_spec_imports_no_module_of_a_callback(own, make_spec):
    make_spec(meta__callbacks=[own])
    assert "own_callbacks" not in sys.modules


def test_callbacks_given_in_python_are_written_into_the_spec(own, make_spec):
    from slm_lab.training.callback import with_callbacks
    from slm_lab.training.shipped_callbacks import StopAtScore

    sys.path.insert(0, ".")
    try:
        import own_callbacks  # type: ignore[import-not-found]
    finally:
        sys.path.remove(".")
    given = [StopAtScore(score=3), own_callbacks.Counting, own_callbacks.Counting(limit=7)]
    spec = with_callbacks(make_spec(meta__callbacks=one("SaveEvery", every=9)), given)
    assert spec.to_dict()["meta"]["callbacks"] == [
        {"name": "SaveEvery", "every": 9},
        {"name": "StopAtScore", "score": 3.0},
        {"name": own},
        {"name": own, "limit": 7},
    ]


def test_a_class_that_no_other_process_could_import_is_refused(make_spec):
    from slm_lab.training.callback import with_callbacks
    from slm_lab.training.shipped_callbacks import StopAtScore

    class Local(Callback):
        pass

    with pytest.raises(SpecError, match=r"Local cannot be found by its name. Define it at the top"):
        with_callbacks(make_spec(), [Local])
    with pytest.raises(SpecError, match="expected subclasses of Callback"):
        with_callbacks(make_spec(), [math.inf])  # type: ignore[list-item]
    with pytest.raises(SpecError, match=r"unknown key for StopAtScore"):
        StopAtScore(score=1, colum="x")


def test_training_imports_no_playback_before_a_video_is_asked_for():
    code = "import sys, slm_lab.training.session, slm_lab.training.shipped_callbacks as _;"
    code += "print([m for m in sys.modules if m.startswith('slm_lab.playback')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_sessions_in_processes_of_their_own_stop_each_for_itself(own, make_spec, tmp_path):
    from slm_lab import run

    spec = make_spec(meta__max_session=2, meta__callbacks=one(own, limit=40))
    metrics = run(spec, "train", RunOptions(data_dir=str(tmp_path / "data")))
    assert metrics.stopped == {0: "40 steps", 1: "40 steps"}
    info = metrics.predir / "info"
    assert json.loads((info / "tiny_t0_trial_metrics.json").read_text())["stopped"]["1"]
    record = json.loads((info / "tiny_t0_provenance.json").read_text())["sittings"][-1]
    assert record["stop_reasons"] == {"0": "40 steps", "1": "40 steps"}
    again = run(spec, f"train@{metrics.predir}", RunOptions(data_dir=str(tmp_path / "data")))
    assert again.frame == metrics.frame
    shared = spec.with_values({"meta.distributed": "synced"})
    assert (
        run(shared, "train", RunOptions(data_dir=str(tmp_path / "d2"))).stopped == metrics.stopped
    )
