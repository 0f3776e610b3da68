"""A trial over a Ray cluster of two nodes without a shared disk, and the trial on this machine.

The nodes are on this machine, with a core each; a session works in a scratch folder of its own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.runs.checkpoint_manifest import read_manifest
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import unfinished_sessions
from slm_lab.spec import Spec, SpecError
from slm_lab.training.console import TrialDisplay
from slm_lab.training.executors.local import SessionEnd, StopRequest, TrialJob, run_here
from slm_lab.training.options import RunOptions
from slm_lab.training.trial import TrialEnd, run_sessions

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and files of its own behind for the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


PATIENT_ENV = """
import os, time
import gymnasium as gym
import numpy as np


class Patient(gym.Env):
    \"""Random observations; slow from its 300th step on, until a file exists.\"""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, until, **_):
        self.until, self.steps = until, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 300 and not os.path.exists(self.until):
            time.sleep(0.02)
        self.left -= 1
        return self._obs(), float(action), self.left == 0, False, {}

    def _obs(self):
        return self.np_random.random(2, dtype=np.float32)


gym.register("Patient-v0", entry_point=Patient)
"""


@pytest.fixture(scope="module")
def cluster(faulty_folder) -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    (faulty_folder / "patient_env.py").write_text(PATIENT_ENV)
    settings = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(faulty_folder)  # where the envs of these tests are imported from
        nodes = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "include_dashboard": False,
                "_system_config": settings | {"health_check_failure_threshold": 3},
            },
        )
        try:
            nodes.add_node(num_cpus=1)
            yield nodes
        finally:
            nodes.shutdown()


def run(spec: Spec, layout: RunLayout, address: str, **options: Any) -> TrialEnd:
    return run_sessions(spec, layout, 0, RunOptions(mode="train", ray_address=address, **options))


def run_locally(spec: Spec, layout: RunLayout) -> list[SessionEnd]:
    """In this process, which has torch loaded; test_trial.py shows that others give the same."""
    job = TrialJob(spec, layout, 0, RunOptions(mode="train"))
    sessions = range(spec.meta.max_session)
    with TrialDisplay(0, sessions, 10_000) as display:
        return list(run_here(job, sessions, display, StopRequest()))


def curve(layout: RunLayout, session: int) -> str:
    text: str = drop_clock(read_session(layout.session_csv(0, session, "train"))).to_csv()
    return text


def files(layout: RunLayout) -> set[str]:
    """What a run leaves, but for locks, and with the time and machine of TensorBoard's files."""
    names = {path.relative_to(layout.predir).as_posix() for path in layout.predir.rglob("*")}
    return {
        "log/events." + name.rpartition(".")[2] if "tfevents" in name else name
        for name in names
        if not name.endswith(".lock") and (layout.predir / name).is_file()
    }


def test_a_trial_over_two_nodes_is_the_trial_on_this_machine(
    cluster, make_spec, env_seed, tmp_path
):
    """Three sessions on two cores; the env raises in the second of them, at its 61st step."""
    spec = make_spec(meta__max_session=3, env__name="faulty_env:Faulty-v0")
    spec = spec.with_values({"env.victims": {str(env_seed(spec, 1)): "raise"}})
    there = RunLayout.create(spec.name, "there", tmp_path)
    here = RunLayout.create(spec.name, "here", tmp_path)
    spread, local = run(spec, there, cluster.address), run_locally(spec, here)
    assert list(spread.failed) == [end.session for end in local if end.error] == [1]
    assert spread.failed[1].splitlines()[-1] == "RuntimeError: the pole broke"
    assert "Traceback" in spread.failed[1]
    assert spread.stopped_by is None
    for session in range(3):
        assert curve(there, session) == curve(here, session)
    assert files(there) == files(here)
    assert "RuntimeError: the pole broke" in there.log_path(0, 1).read_text()
    assert "Session 0 done" in there.log_path(0, 0).read_text()
    assert read_manifest(there.checkpoint_dir(0, 0) / "last").finished
    assert unfinished_sessions(spec, there, 0) == [1]


TOLD = """
from beside import COLUMN
from slm_lab.training.callback import Callback


class Told(Callback):
    def on_row(self, session, row):
        return {COLUMN: float(session.frame)}
"""


def test_callbacks_and_what_they_import_travel_to_a_node_that_does_not_have_them(
    cluster, make_spec, tmp_path, monkeypatch
):
    """The folder of the modules is not the one that Ray shows to every process on this machine."""
    folder = tmp_path / "only_here"
    folder.mkdir()
    (folder / "told.py").write_text(TOLD)
    (folder / "beside.py").write_text("COLUMN = 'told'\n")
    monkeypatch.syspath_prepend(str(folder))
    layout = RunLayout.create("tiny", "told", tmp_path)
    end = run(make_spec(meta__callbacks=["told:Told"]), layout, cluster.address)
    assert end == TrialEnd({})
    table = read_session(layout.session_csv(0, 0, "train"))
    assert (table["told"] == table["frame"]).all()


def when(layout: RunLayout, sessions: range, act: Any) -> threading.Thread:
    """Do something once a checkpoint of every session has arrived."""

    def watch() -> None:
        deadline = time.monotonic() + 300
        wanted = [layout.checkpoint_dir(0, s) / "last" / "manifest.json" for s in sessions]
        while not all(path.exists() for path in wanted) and time.monotonic() < deadline:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def patient(make_spec: Callable[..., Spec], tmp_path: Path, monkeypatch) -> Spec:
    """Long enough to be interrupted, and short once the file is there."""
    monkeypatch.setattr("slm_lab.training.executors.ray_cluster.SHIP_SECONDS", 0.2)
    values: dict[str, Any] = {"env__max_frame": 4000, "meta__log_frequency": 500}
    until = str(tmp_path / "go")
    return make_spec(
        env__name="patient_env:Patient-v0",
        env__until=until,
        meta__checkpoint_frequency=200,
        **values,
    )


@pytest.mark.cluster
def test_ctrl_c_stops_the_sessions_and_a_resume_ends_as_if_nothing_had_happened(
    cluster, patient, tmp_path
):
    spec = patient.with_values({"meta.max_session": 2})
    layout = RunLayout.create(spec.name, "stopped", tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    watch = when(layout, range(2), lambda: os.kill(os.getpid(), signal.SIGINT))
    end = run(spec, layout, cluster.address)
    watch.join()
    assert (end.stopped_by, end.failed) == (signal.SIGINT, {})
    assert signal.getsignal(signal.SIGTERM) == handler  # Ray takes it, and gives it back
    assert unfinished_sessions(spec, layout, 0) == [0, 1]
    assert not list(layout.predir.rglob("*.arriving"))
    for session in range(2):
        assert "stopped early" in layout.log_path(0, session).read_text()

    (tmp_path / "go").touch()
    assert run(spec, layout, cluster.address, resume=True) == TrialEnd({})
    whole = RunLayout.create(spec.name, "whole", tmp_path)
    run_locally(spec, whole)
    for session in range(2):
        assert curve(layout, session) == curve(whole, session)
        log = layout.log_path(0, session).read_text()
        assert log.index("stopped early") < log.index("goes on from frame") < log.index(" done")


@pytest.mark.cluster
def test_a_session_whose_node_dies_goes_on_elsewhere_from_its_last_checkpoint(
    cluster, patient, tmp_path
):
    from ray._private.state import available_resources_per_node

    spec = patient.with_values({"meta.threads": 2})
    # Only on these is room for two threads; whichever gets the session dies.
    large = {node.node_id: node for node in (cluster.add_node(num_cpus=2) for _ in range(2))}
    layout = RunLayout.create(spec.name, "moved", tmp_path)

    def fail() -> None:
        free = available_resources_per_node()
        (doomed,) = [node for name, node in large.items() if free[name].get("CPU", 0) < 2]
        cluster.remove_node(doomed, allow_graceful=False)
        (tmp_path / "go").touch()

    watch = when(layout, range(1), fail)
    end = run(spec, layout, cluster.address)
    watch.join()
    assert end == TrialEnd({})
    assert "goes on from frame" in layout.log_path(0, 0).read_text()
    whole = RunLayout.create(spec.name, "whole", tmp_path)
    run_locally(spec, whole)
    assert curve(layout, 0) == curve(whole, 0)


def test_what_cannot_run_on_a_cluster_is_refused(make_spec, tmp_path):
    layout = RunLayout.create("tiny", "now", tmp_path)
    spec = make_spec("ActorCritic", meta__max_session=2, meta__distributed="synced")
    with pytest.raises(SpecError, match=r"meta\.distributed: .* share the memory of one machine"):
        run(spec, layout, "127.0.0.1:1")
    with pytest.raises(SpecError, match="--render: a node of a cluster has no screen"):
        run(make_spec(), layout, "127.0.0.1:1", render=True)


def test_an_address_where_nobody_listens_is_named_at_once(make_spec, tmp_path):
    layout = RunLayout.create("tiny", "now", tmp_path)
    with pytest.raises(SpecError, match=r"--ray-address: found `127\.0\.0\.1:9`; no Ray cluster"):
        run(make_spec(), layout, "127.0.0.1:9")
