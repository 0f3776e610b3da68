"""The memory of a search: what is written is what is read again."""

from __future__ import annotations

import pytest

from slm_lab.runs.search_journal import Journal, TrialReport, best_first


@pytest.fixture
def journal(tmp_path) -> Journal:
    journal = Journal(tmp_path / "ray_tune" / "journal.jsonl")
    for trial, score in enumerate((10.0, 30.0, 20.0, 5.0)):
        journal.start(trial, {"gamma": 0.5}, {"gamma": 0.95})
        journal.report(trial, TrialReport(100, score, 1.5, "node"))
    journal.end(0, "completed", 10.0)
    journal.end(1, "stopped", 30.0)
    journal.end(2, "diverged", 5.0, "loss = inf")
    return journal


def test_a_journal_read_again_has_the_same_records(journal):
    again = Journal(journal.path)
    assert again.records == journal.records
    assert again.records[0].values == {"gamma": 0.95}
    assert again.records[2].reason == "loss = inf"
    assert [again.records[trial].is_running for trial in range(4)] == [False, False, False, True]


def test_a_line_that_a_kill_cut_short_is_dropped_and_writing_goes_on(journal):
    with journal.path.open("a") as file:
        file.write('{"event": "end", "tri')
    again = Journal(journal.path)
    assert again.records[3].is_running
    again.end(3, "completed", 6.0)
    assert Journal(journal.path).records[3].score == 6.0


def test_a_report_that_a_resumed_trial_repeats_counts_once(journal):
    journal.report(3, TrialReport(100, 5.0, 9.0))
    journal.report(3, TrialReport(200, 8.0, 9.5))
    assert [report.frame for report in journal.records[3].reports] == [100, 200]
    assert journal.records[3].score == 8.0


def test_the_ranking_has_the_trials_that_can_be_run_again(journal):
    assert [record.trial for record in best_first(journal.records)] == [1, 0]


def test_a_score_that_is_not_finite_is_never_written(journal):
    with pytest.raises(AssertionError, match="finite"):
        journal.end(3, "diverged", float("nan"))
