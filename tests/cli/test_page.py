"""`slm-lab dashboard` and `slm-lab report`, as far as they need no browser."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perf.synthetic_runs import SyntheticRun, write_run

SMALL = SyntheticRun(sessions=1, rows=5, max_frame=100)


def test_without_the_extra_the_page_says_how_to_get_it(slm_lab, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("slm_lab.dashboard.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dash", None)
    code, _, err = slm_lab("dashboard")
    assert code == 2
    assert "pip install 'slm-lab[dashboard]'" in err
    assert "Traceback" not in err


def test_a_page_on_a_folder_that_is_not_there_is_refused(slm_lab):
    pytest.importorskip("dash")
    code, _, err = slm_lab("dashboard", "nowhere")
    assert code == 2
    assert "DashboardError: DIR: no folder nowhere" in err


def test_a_report_is_written_and_its_place_told(slm_lab):
    folder = write_run(Path("data"), SMALL).predir
    code, out, _ = slm_lab("report", str(folder), "-o", "mine.html")
    assert code == 0
    assert out.startswith("mine.html  (")
    assert Path("mine.html").read_text().startswith("<!doctype html>")


def test_a_report_of_something_else_is_refused(slm_lab):
    code, _, err = slm_lab("report", "nowhere")
    assert code == 2
    assert "RunFolderError: nowhere: no such run folder" in err


def test_a_report_needs_no_dash(slm_lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "dash", None)
    for name in [name for name in sys.modules if name.startswith("slm_lab.dashboard.")]:
        monkeypatch.delitem(sys.modules, name)
    folder = write_run(Path("data"), SMALL).predir
    assert slm_lab("report", str(folder))[0] == 0
