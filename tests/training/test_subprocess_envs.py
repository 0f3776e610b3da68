"""Sessions whose envs run in worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slm_lab.env.error import EnvError
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.training.executors.local import StopRequest, TrialJob, run_session
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session
from slm_lab.training.trial import run_sessions


def trained(spec: Spec, folder: Path, *stops: int) -> RunLayout:
    """Train in pieces, up to each of `stops` and to the end."""
    layout = RunLayout.create(spec.name, "now", folder)
    for until in (*stops, None):
        options = RunOptions(mode="train", resume=until not in stops[:1] and bool(stops), cores=2)
        piece = Session(spec, layout, 0, 0, options)
        piece.advance(until)
        piece.close()
    return layout


@pytest.mark.parametrize("algorithm", ["PPO", "DDQN+PER", "recurrent PPO"])
def test_a_resumed_session_on_workers_is_the_uninterrupted_one_without_them(
    tmp_path, algorithm, every_spec, same_run
):
    values: dict[str, Any] = {} if algorithm == "recurrent PPO" else {"env__frame_stack": 2}
    if algorithm == "PPO":
        values |= {"meta__rigorous_eval": 1, "meta__eval_frequency": 100}
    spec = every_spec(
        algorithm,
        env__normalize_obs=True,
        env__normalize_reward=True,
        **values,
    )
    on_workers = spec.with_values({"env.backend": "subprocess"})
    pieces = trained(on_workers, tmp_path / "pieces", 146)
    same_run(pieces, trained(spec, tmp_path / "whole"))


def test_a_session_whose_env_raises_ends_with_one_line(make_spec, faulty, tmp_path):
    spec = make_spec(
        env__name=faulty,
        env__backend="subprocess",
        env__num_threads=2,
        env__fault="raise",
        meta__max_session=1,
    )
    layout = RunLayout.create(spec.name, "now", tmp_path)
    end = run_sessions(spec, layout, 0, RunOptions(mode="train"))
    line = (
        "WorkerError: env.name: worker 0 of 2, with env 0 of `faulty_env:Faulty-v0`, failed: "
        "RuntimeError: the pole broke"
    )
    assert end.failed == {0: line}
    log = layout.log_path(0, 0).read_text()
    assert f"Session 0 failed. {line}\n" in log
    assert 'raise RuntimeError("the pole broke")' in log


@pytest.mark.parametrize(("sessions", "threads", "cores"), [(1, None, 8), (4, None, 2), (9, 3, 4)])
def test_workers_of_sessions_side_by_side_share_the_cores(
    make_spec, tmp_path, monkeypatch, sessions, threads, cores
):
    given = []

    def session(*arguments: Any, **_: Any) -> None:
        given.append(arguments[4].cores)
        raise EnvError("enough")

    monkeypatch.setattr("slm_lab.training.executors.local.available_cores", lambda: 8)
    monkeypatch.setattr("slm_lab.training.session.Session", session)
    spec = make_spec(meta__max_session=sessions, meta__threads=threads)
    layout = RunLayout.create(spec.name, "now", tmp_path)
    job = TrialJob(spec, layout, 0, RunOptions(optimize_perf=False))
    run_session(job, 0, lambda _: None, StopRequest())
    assert given == [cores]
