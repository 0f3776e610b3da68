"""`slm-lab benchmark` at the command line: what it prints, and how it says no."""

from __future__ import annotations

import re
from pathlib import Path


def test_status_lists_the_rows_in_plain_columns_when_piped(slm_lab):
    code, out, _ = slm_lab("benchmark", "status", "--phase", "1", "--env", "CartPole")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == [
        "ENV",
        "ALGORITHM",
        "STATUS",
        "SCORE",
        "GOAL",
        "ATTEMPTS",
        "FOLDER",
        "OR",
        "REASON",
    ]
    assert lines[7].split() == ["CartPole-v1", "PPO", "missing", "499", "0"]
    assert lines[-1] == "10 missing"


def test_a_dry_run_shows_commands_and_hours_and_runs_nothing(slm_lab):
    code, out, _ = slm_lab("benchmark", "run", "--algo", "PPO", "--env", "Pong", "--dry-run")
    assert code == 0
    assert len(re.findall(r"train -s env=ALE/Pong-v5 --seed \d{6,}$", out, re.MULTILINE)) == 4
    assert out.splitlines()[-1].startswith("4 row(s), about ")
    assert list(Path().iterdir()) == []


def test_rows_that_do_not_exist_are_refused(slm_lab):
    code, _, err = slm_lab("benchmark", "run", "--algo", "TRPO")
    assert (code, "--algo TRPO: no row of the manifest fits" in err) == (2, True)


def test_a_manifest_that_is_not_there_is_refused(slm_lab):
    code, _, err = slm_lab("benchmark", "status", "--manifest", "nowhere")
    assert (code, "--manifest nowhere: found no phase*.yaml there" in err) == (2, True)


def test_a_folder_that_is_no_run_is_refused(slm_lab):
    Path("empty").mkdir()
    code, _, err = slm_lab("benchmark", "collect", "empty")
    assert (code, "not a run folder" in err) == (2, True)
    code, out, err = slm_lab("benchmark", "audit", "empty")
    assert (code, "not a run folder" in out, "1 offence(s)" in err) == (1, True, True)


def test_without_results_the_page_shows_every_row_as_missing(slm_lab):
    code, out, _ = slm_lab("benchmark", "table")
    assert (code, out) == (0, "docs/BENCHMARKS.md  496 rows, 0 with a result\n")
    text = Path("docs/BENCHMARKS.md").read_text()
    assert "### Phase 5: MuJoCo Playground" in text
    assert "✅ 1" not in text
    assert slm_lab("benchmark", "audit")[:2] == (0, "ok\n")
