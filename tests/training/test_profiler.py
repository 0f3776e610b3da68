"""`--profile`: where the time goes."""

from __future__ import annotations

import json

import pytest
from loguru import logger

from slm_lab.training import watchers


@pytest.fixture
def warned():
    said: list[str] = []
    handler = logger.add(lambda message: said.append(str(message)), level="WARNING")
    yield said
    logger.remove(handler)


def summary(layout):
    return json.loads((layout.predir / "profiler" / "profiler_summary.json").read_text())


def test_a_profile_has_a_summary_a_dashboard_and_a_trace(
    make_spec, run_session, monkeypatch, warned
):
    monkeypatch.setattr(watchers, "SKIP_STEPS", 20)
    monkeypatch.setattr(watchers, "ACTIVE_STEPS", 16)
    layout = run_session(make_spec(), profile=True)
    found = summary(layout)
    assert set(found["seconds"]) == {"env", "act", "learn", "other"}
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert (found["skipped_steps"], found["recorded_steps"]) == (20, 16)
    # 16 recorded steps hold one rollout: acting calls the linear layers, learning their backward
    assert any("addmm" in operator["name"] for operator in found["operators"])
    times = [operator["self_cpu_us"] for operator in found["operators"]]
    assert times == sorted(times, reverse=True)
    dashboard = (layout.predir / "profiler" / "profiling_dashboard.html").read_text()
    assert "aten::addmm" in dashboard
    (trace,) = (layout.predir / "traces").iterdir()
    assert json.loads(trace.read_text())["traceEvents"]
    assert not [text for text in warned if "--profile" in text]


def test_a_run_that_ends_too_soon_says_how_to_get_a_profile(make_spec, run_session, warned):
    layout = run_session(make_spec(), profile=True)  # 100 steps, 500 are skipped
    assert summary(layout)["operators"] == []
    assert "PROF_SKIP" in "".join(warned)
