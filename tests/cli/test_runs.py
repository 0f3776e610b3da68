"""`slm-lab list`: local runs as a table."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from perf.synthetic_runs import SyntheticRun, write_run

ROOT = Path(__file__).parents[2]
SMALL = SyntheticRun(sessions=1, rows=5, max_frame=100)


def test_list_prints_one_line_for_each_run_the_latest_first(slm_lab):
    write_run(Path("data"), SMALL)
    write_run(Path("data"), replace(SMALL, name="dqn", ts="2026_02_01_120000", share=0.4))
    code, out, _ = slm_lab("list")
    head, first, second = out.splitlines()
    assert code == 0
    assert head.split()[3:7] == ["STATUS", "LAST_100", "MA", "TARGET"]
    assert first.split()[:4] == ["dqn_2026_02_01_120000", "PPO", "CartPole-v1", "resumable"]
    assert first.endswith("40       0/1  2026-02-01 12:00")  # it was not finished
    assert second.split()[3] == "done"
    assert second.split()[-3] == "1/1"


def test_list_shows_an_evaluated_score_where_there_is_one(slm_lab):
    layout = write_run(Path("data"), SMALL)
    evaluation = layout.trial_evaluation(0, best=True, sampled=False)
    evaluation.write_text('{"mean": 123.456}')
    head, row = slm_lab("list")[1].splitlines()
    assert row.split()[head.split().index("EVALUATED")] == "123.46"


def test_list_keeps_what_fits_the_pattern(slm_lab):
    write_run(Path("elsewhere"), SMALL)
    write_run(Path("elsewhere"), replace(SMALL, name="dqn"))
    _, out, _ = slm_lab("list", "dqn", "-d", "elsewhere")
    assert len(out.splitlines()) == 2
    code, out, err = slm_lab("list", "nothing", "-d", "elsewhere")
    assert (code, out) == (0, "")
    assert "No run that fits `nothing` in elsewhere." in err


def test_list_counts_the_sessions_that_are_finished(slm_lab):
    write_run(Path("data"), replace(SMALL, sessions=3))
    layout = write_run(Path("data"), replace(SMALL, name="dqn", sessions=3))
    (layout.checkpoint_dir(0, 1) / "last" / "manifest.json").unlink()  # interrupted before
    _, out, _ = slm_lab("list")
    assert {line.split()[0][:3]: line.split()[-3] for line in out.splitlines()[1:]} == {
        "dqn": "2/3",
        "ppo": "3/3",
    }


def test_list_of_an_empty_folder_is_an_empty_list(slm_lab):
    for _ in range(2):
        assert slm_lab("list") == (0, "", "No run in data. `slm-lab run` makes one.\n")
        Path("data").mkdir(exist_ok=True)


def test_list_of_a_folder_that_is_not_there_says_so(slm_lab):
    code, _, err = slm_lab("list", "-d", "nowhere")
    assert code == 2
    assert "--data: no folder nowhere" in err


def test_list_sends_no_escape_sequence_of_a_run_to_the_terminal(slm_lab):
    write_run(Path("data"), replace(SMALL, env="\x1b[31mred\x1b]0;title\x07"))
    _, out, _ = slm_lab("list")
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "red" in out


def test_list_needs_neither_torch_nor_dash():
    write_run(Path("data"), SMALL)
    code = "import sys; from slm_lab.cli.runs import list_runs; list_runs()"
    code += "; assert not {'torch', 'dash', 'pandas'} & sys.modules.keys()"
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ppo_cartpole_2026_01_01_000000" in done.stdout
