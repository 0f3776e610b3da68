"""Which row comes next, how long it may take, and where each row stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slm_lab.benchmark.manifest import Row, load_manifest
from slm_lab.benchmark.result import CollectedResult, write_result
from slm_lab.benchmark.runner import GUESSED_FRAMES_PER_SECOND, Step, estimated_hours, next_step
from slm_lab.benchmark.state import RowState, RowStatus, TrialState, row_state
from slm_lab.runs.lock import locked

RESULTS, DATA = Path("res"), Path("data")
SHIPPED = load_manifest()


def step(name: str, hours: float, status: RowStatus = RowStatus.missing) -> Step:
    return Step(RowState(SHIPPED.by_id[name], status), hours)


SHORT, LONG = step("cartpole-v1_ppo", 0.1), step("hopper-v5_ppo", 2.0)
LONGER = step("humanoid-v5_ppo", 9.0)


@pytest.mark.parametrize(
    ("waiting", "hours_left", "expected"),
    [
        ([SHORT, LONG, LONGER], None, SHORT),  # no budget: the manifest's order
        ([SHORT, LONG, LONGER], 10.0, LONGER),
        ([SHORT, LONG, LONGER], 5.0, LONG),  # the longest that fits
        ([SHORT, LONG, LONGER], 1.0, SHORT),
        ([LONG, LONGER], 1.0, None),
        ([], 1.0, None),
    ],
)
def test_the_longest_row_that_fits_the_budget_comes_first(waiting, hours_left, expected):
    assert next_step(waiting, hours_left) == expected


def test_what_is_trained_already_is_collected_before_anything_runs():
    trained = step("cartpole-v1_sac", 0.0, RowStatus.trained)
    assert next_step([SHORT, LONGER, trained], 10.0) == trained
    assert next_step([SHORT, trained], None) == trained


def with_seconds(kept: CollectedResult, seconds: float | None) -> CollectedResult:
    (trial,) = kept.result.trials
    provenance = trial.provenance.model_copy(update={"seconds": seconds})
    trial = trial.model_copy(update={"provenance": provenance})
    return replace(kept, result=kept.result.model_copy(update={"trials": (trial,)}))


def hours(row: Row, kept: dict[str, CollectedResult], progress: float = 0.0) -> float:
    trials = (TrialState(RowStatus.interrupted, progress=progress),) * row.trials
    return estimated_hours(RowState(row, RowStatus.missing, trials=trials), SHIPPED, kept)


def test_an_estimate_takes_the_speed_of_the_nearest_rows_that_were_measured(kept):
    # 2 sessions of 200 frames in 4 s and in 40 s: 100 and 10 frames per second.
    fast, slow = with_seconds(kept, 4.0), with_seconds(kept, 40.0)
    ppo, sac = SHIPPED.by_id["acrobot-v1_ppo"], SHIPPED.by_id["acrobot-v1_sac"]
    frames = 8 * 300_000
    measured = {"cartpole-v1_ppo": fast, "hopper-v5_ppo": slow}
    assert hours(ppo, measured) == pytest.approx(frames / 100 / 3600)  # as many envs
    assert hours(ppo, {"hopper-v5_ppo": slow}) == pytest.approx(frames / 10 / 3600)
    assert hours(sac, measured) == pytest.approx(frames / 55 / 3600)  # the median of all
    assert hours(sac, {}) == pytest.approx(frames / GUESSED_FRAMES_PER_SECOND / 3600)
    assert hours(ppo, {**measured, ppo.id: slow}) == pytest.approx(frames / 10 / 3600)  # its own
    assert hours(ppo, {ppo.id: with_seconds(kept, None)}) == hours(ppo, {})


def test_an_interrupted_row_takes_what_is_left_of_it():
    row = SHIPPED.by_id["acrobot-v1_ppo"]
    assert hours(row, {}, progress=0.75) == pytest.approx(hours(row, {}) / 4)


# Where a row stands


def run_folder(spec: Any, time: str = "2026_01_01_000000", **sitting: Any) -> Path:
    """A folder as a run leaves it when it is killed at frame 100 of session 0."""
    folder = DATA / f"{spec.name}_{time}"
    for name in ("info", "model", "graph", "log", "checkpoint"):
        (folder / name).mkdir(parents=True)
    tree = spec.to_dict() | {"name": spec.name}
    for name in ("", "_t0"):
        (folder / f"{spec.name}{name}_spec.json").write_text(json.dumps(tree))
    table = "total_reward,frame\n0.5,50\n0.5,100\n"
    (folder / "info" / f"{spec.name}_t0_s0_session_df_train.csv").write_text(table)
    record = {"sittings": [{"mode": "train", "end": "died", **sitting}]}
    (folder / "info" / f"{spec.name}_t0_provenance.json").write_text(json.dumps(record))
    return folder


def test_a_row_without_result_and_folder_is_missing_or_skipped(manifest, write_manifest):
    assert row_state(manifest.rows[0], RESULTS, DATA).status is RowStatus.missing
    (skipped,) = load_manifest(write_manifest(skip="too hard")).rows
    state = row_state(skipped, RESULTS, DATA)
    assert (state.status, state.reason) == (RowStatus.skipped, "too hard")


def test_a_row_with_a_result_of_todays_spec_is_done(manifest, kept):
    write_result(kept, RESULTS / kept.result.row)
    assert row_state(manifest.rows[0], RESULTS, DATA).status is RowStatus.done


def test_a_result_of_another_spec_is_stale_and_says_what_changed(kept, write_manifest):
    write_result(kept, RESULTS / kept.result.row)
    (row,) = load_manifest(write_manifest(variables={"agent.algorithm.gamma": 0.5})).rows
    state = row_state(row, RESULTS, DATA)
    assert (state.status, state.reason) == (RowStatus.stale, "other agent.algorithm.gamma today")


def test_a_result_of_a_seed_picked_by_hand_or_of_few_sessions_is_run_again(kept, write_manifest):
    write_result(kept, RESULTS / kept.result.row)
    (more,) = load_manifest(write_manifest(trials=2)).rows
    state = row_state(more, RESULTS, DATA)
    assert (state.status, state.reason) == (RowStatus.partial, "2 of 4 sessions")
    assert row_state(more.limited(None, 1), RESULTS, DATA).status is RowStatus.done
    (trial,) = kept.result.trials
    result = kept.result.model_copy(update={"trials": (trial.model_copy(update={"seed": 0}),)})
    write_result(replace(kept, result=result), RESULTS / kept.result.row)
    state = row_state(more.limited(None, 1), RESULTS, DATA)
    assert (state.status, state.reason) == (RowStatus.stale, "seed 0 was picked by hand")


def test_a_row_whose_second_trial_is_not_begun_goes_on_with_it(write_manifest):
    (row,) = load_manifest(write_manifest(trials=2)).rows
    folder = run_folder(row.spec(0))
    state = row_state(row, RESULTS, DATA)
    assert [trial.status.value for trial in state.trials] == ["interrupted", "missing"]
    assert (state.status, state.folders) == (RowStatus.interrupted, [folder])
    assert state.progress == 100 / (2 * 200) / 2


def test_a_killed_run_is_interrupted_and_knows_how_far_it_came(manifest):
    row = manifest.rows[0]
    folder = run_folder(row.spec())
    state = row_state(row, RESULTS, DATA)
    assert (state.status, state.folders) == (RowStatus.interrupted, [folder])
    assert state.progress == 100 / (2 * 200)


def test_the_newest_run_of_the_same_spec_counts(manifest):
    row = manifest.rows[0]
    run_folder(row.spec(), "2026_01_01_000000")
    newest = run_folder(row.spec(), "2026_01_02_000000", end="failed: the pole broke")
    other = row.spec().with_values({"meta.random_seed": 77})
    run_folder(other, "2026_01_03_000000")
    state = row_state(row, RESULTS, DATA)
    assert (state.status, state.folders) == (RowStatus.failed, [newest])
    assert state.reason == "the pole broke"


def test_a_run_that_diverged_has_failed(manifest):
    row = manifest.rows[0]
    folder = run_folder(row.spec())
    report = folder / "checkpoint" / f"{row.spec().name}_t0_s1" / "diverged.json"
    report.parent.mkdir()
    report.write_text("{}")
    assert row_state(row, RESULTS, DATA).reason == "session 1 diverged"


def test_a_folder_that_a_process_holds_is_running_even_beside_a_result(manifest, kept):
    write_result(kept, RESULTS / kept.result.row)
    row = manifest.rows[0]
    folder = run_folder(row.spec())
    with locked(folder / "checkpoint" / "run.lock", "the folder"):
        assert row_state(row, RESULTS, DATA).status is RowStatus.running
    assert row_state(row, RESULTS, DATA).status is RowStatus.done


def test_a_search_is_no_run(manifest):
    row = manifest.rows[0]
    (run_folder(row.spec()) / "ray_tune").mkdir()
    assert row_state(row, RESULTS, DATA).status is RowStatus.missing
