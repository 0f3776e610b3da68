"""More frames for a run: the same numbers up to the old end, and those of a longer run after it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from slm_lab import RunOptions, SpecError, load_spec, run
from slm_lab.agent.memory.replay import FrameReplay
from slm_lab.agent.memory.sampler import PrioritizedSampler
from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.runs.extend import extend, schedule_ends
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import read_run_records
from slm_lab.runs.resume import check_same_experiment
from slm_lab.runs.summary import summarize
from slm_lab.training.session import Session
from slm_lab.types import Spaces, Transition
from tests.sessions import leaves, small_spec


@pytest.fixture
def data(tmp_path):
    return RunOptions(data_dir=str(tmp_path / "data"), log_level="ERROR")


def curve(layout):
    return drop_clock(read_session(layout.session_csv(0, 0, "train")))


@pytest.mark.parametrize("algorithm", ["PPO", "recurrent PPO", "A2C"])
def test_an_extended_run_equals_one_that_had_its_budget_from_the_start(
    algorithm, data, run_session
):
    spec = small_spec(algorithm, env__max_frame=200)  # schedules end at 320 in both
    first = run(spec, "train", data)
    before = curve(RunLayout(first.predir, "tiny"))
    longer = small_spec(algorithm, env__max_frame=400)
    second = run(longer, f"train@{first.predir}", data)
    assert second.predir == first.predir
    extended = curve(RunLayout(first.predir, "tiny"))
    assert extended.iloc[: len(before)].equals(before)
    assert extended.equals(curve(run_session(longer, mode="train")))
    record = read_run_records(RunLayout(first.predir, "tiny").trial_provenance(0))
    assert [each.extended_from for each in record] == [None, 200]


def test_a_run_is_extended_twice_and_resumed_by_its_first_spec_or_its_own(data):
    spec = small_spec("PPO", env__max_frame=100)
    folder = run(spec, "train", data).predir
    for frames in (200, 300):
        metrics = run(spec.with_values({"env.max_frame": frames}), f"train@{folder}", data)
        assert metrics.frame == frames
    layout = RunLayout(folder, "tiny")
    assert [s.max_frame for s in load_spec(layout.trial_spec_path(0)).meta.extended] == [100, 200]
    for again in (spec.with_values({"env.max_frame": 300}), load_spec(layout.trial_spec_path(0))):
        assert run(again, f"train@{folder}", data).frame == 300
    summary = summarize("x", layout, is_running=False)
    assert (summary.status, summary.frame, summary.max_frame) == ("done", 300, 300)
    with pytest.raises(SpecError, match="found 200, but the run has 300"):
        run(spec.with_values({"env.max_frame": 200}), f"train@{folder}", data)


def test_a_stopped_run_with_a_replay_goes_on_exactly(run_session, tmp_path, same_run):
    """With priorities, whose exponent keeps its end, and a replay that the budget had limited."""
    keys: dict[str, Any] = {"agent__memory__max_size": 1000, "agent__memory__anneal_frames": 200}
    longer = small_spec("DDQN+PER", env__max_frame=320, **keys)
    whole = run_session(longer)
    spec = small_spec("DDQN+PER", env__max_frame=200, agent__memory__max_size=1000)
    layout = RunLayout.create("tiny", "then", tmp_path)
    asked = iter(range(10**9))
    Session(spec, layout, 0, 0, RunOptions(), should_stop=lambda: next(asked) > 70).run()
    more = extend(spec, spec, 320, follow=False)
    assert "agent.memory.anneal_frames 200" in more.note
    assert Session(more.spec, layout, 0, 0, RunOptions(resume=True)).run()
    same_run(layout, whole)


def test_a_finished_run_with_a_replay_fills_it_again(data):
    spec = small_spec("SAC", "Pendulum-v1", env__max_frame=120)
    folder = run(spec, "train", data).predir
    metrics = run(spec.with_values({"env.max_frame": 240}), f"train@{folder}", data)
    table = curve(RunLayout(folder, "tiny"))
    assert metrics.frame == 240
    # 60 updates had a replay of more than 40 rows; the new one comes to 40 rows again first.
    assert table["opt_step"].is_monotonic_increasing
    log = (folder / "log" / "tiny_t0_s0.log").read_text()
    assert "the replay of the finished run was not kept, and fills again" in log


def test_schedules_stay_or_are_stretched_and_are_named():
    spec = small_spec("DDQN+PER", env__max_frame=320)
    ends = dict(schedule_ends(spec))
    assert ends == {
        "agent.algorithm.explore_var_spec.end_step": 320,
        "agent.algorithm.explore_var_spec.start_step": 0,
        "agent.net.lr_scheduler_spec.frame": 320,
        "agent.memory.anneal_frames": 320,
    }
    stays = extend(spec, spec, 640, follow=False)
    assert dict(schedule_ends(stays.spec)) == ends
    assert "explore_var_spec.end_step 320" in stays.note
    follows = extend(spec, spec, 640, follow=True)
    assert dict(schedule_ends(follows.spec)) == {key: 2 * end for key, end in ends.items()}
    assert "schedules are stretched by 2" in follows.note


def test_a_run_that_followed_its_budget_is_still_resumed_by_its_first_spec(data):
    from dataclasses import replace

    spec = small_spec("PPO", env__max_frame=160)
    folder = run(spec, "train", data).predir
    longer = spec.with_values({"env.max_frame": 320})
    run(longer, f"train@{folder}", replace(data, follow_budget=True))
    layout = RunLayout(folder, "tiny")
    followed = load_spec(layout.trial_spec_path(0))
    assert dict(schedule_ends(followed))["agent.net.lr_scheduler_spec.frame"] == 640
    assert run(longer, f"train@{folder}", data).frame == 320
    for mode in (f"train@{folder}", "train", "search"):
        with pytest.raises(SpecError, match="--follow-budget: it goes with more frames"):
            run(longer, mode, replace(data, follow_budget=True))


def test_a_callback_that_ended_a_run_ends_it_again_only_if_it_wants_to(data):
    ends = [{"name": "EarlyStopping", "patience": 60, "column": "frame", "least": 1000}]
    spec = small_spec("PPO", env__max_frame=200, meta__callbacks=ends)
    first = run(spec, "train", data)
    assert first.frame < 200
    again = run(spec.with_values({"env.max_frame": 400}), f"train@{first.predir}", data)
    assert first.frame < again.frame < 400


def test_other_changes_are_refused_as_before(data):
    spec = small_spec("PPO", env__max_frame=100)
    folder = run(spec, "train", data).predir
    changed = spec.with_values({"env.max_frame": 200, "agent.algorithm.gamma": 0.5})
    with pytest.raises(SpecError, match=r"agent.algorithm.gamma: found 0.5, but the run has 0.99"):
        run(changed, f"train@{folder}", data)


def test_a_search_is_not_extended(data):
    spec = small_spec("PPO", env__max_frame=100)
    folder = run(spec, "train", data).predir
    (folder / "ray_tune").mkdir()
    longer = spec.with_values({"env.max_frame": 200})
    with pytest.raises(SpecError, match=r"a search cannot be extended: .*best_spec.json"):
        run(longer, f"train@{folder}", data)
    with pytest.raises(SpecError, match=r"a search cannot be extended: .*best_spec.json"):
        check_same_experiment(longer, RunLayout(folder, "tiny"), None)


@pytest.mark.slow
def test_workers_on_one_set_of_nets_go_on_together(data):
    spec = small_spec("PPO", env__max_frame=200, meta__max_session=2, meta__distributed="synced")
    first = run(spec, "train", data)
    assert first.frame == 100
    again = run(spec.with_values({"env.max_frame": 400}), f"train@{first.predir}", data)
    assert again.frame == 200


def test_a_replay_of_frames_grows_without_losing_a_stack():
    spaces = Spaces((4, 2, 2), "uint8", "discrete", (2,), frame_stack=4)

    def replay(slots):
        sampler = PrioritizedSampler(
            slots * 2, alpha=0.6, epsilon=1e-3, beta=0.4, anneal_frames=9, seed=1
        )
        return FrameReplay(slots * 2, 2, spaces, sampler, batch_size=4, gamma=0.9)

    def stack(newest):
        frames = np.arange(newest - 3, newest + 1).astype(np.uint8)
        return np.broadcast_to(frames[None, :, None, None], (2, 4, 2, 2)).copy()

    def fill(memories, begin, end):
        for step in range(begin, end):
            obs, after = stack(step % 4 and step), stack(step + 1)
            if step % 4 == 0:  # an episode begins with copies of one frame
                obs[:] = 100 + step
            after[:, : max(0, 3 - step % 4)] = 100 + step - step % 4
            obs[:, : max(0, 4 - step % 4)] = 100 + step - step % 4
            ended = np.full(2, step % 4 == 3)
            upcoming = np.full_like(after, 101 + step) if ended[0] else after
            flags = (ended, np.zeros(2, bool), ended)
            transition = Transition(upcoming, after, np.full(2, step, np.float32), *flags)
            for memory in memories:
                memory.add(obs, np.zeros(2, np.int64), transition)

    small, large = replay(6), replay(20)
    fill([small, large], 0, 6)
    grown = replay(20)
    grown.load_state_dict(small.state_dict())
    fill([grown, large], 6, 15)
    for _ in range(5):
        ours, theirs = grown.sample(2, 3), large.sample(2, 3)
        for mine, other in zip(
            leaves(vars_of(ours)).values(), leaves(vars_of(theirs)).values(), strict=True
        ):
            assert mine.equal(other)


def vars_of(batch):
    return {name: getattr(batch, name) for name in batch.__slots__}


def test_the_command_extends_and_names_what_stays(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from slm_lab.cli.main import app

    monkeypatch.chdir(tmp_path)
    spec = small_spec("PPO", env__max_frame=100)
    (tmp_path / "mine.json").write_text(json.dumps({"tiny": spec.to_dict()}))
    run_it = ["run", "mine.json", "tiny"]
    assert CliRunner().invoke(app, [*run_it, "train"]).exit_code == 0
    done = CliRunner().invoke(app, [*run_it, "train@latest", "-s", "env.max_frame=200"])
    assert done.exit_code == 0, done.output
    (log,) = tmp_path.glob("data/*/log/tiny_t0.log")
    note = "From 100 to 200 frames; schedules stay as they were: "
    assert note in log.read_text()
