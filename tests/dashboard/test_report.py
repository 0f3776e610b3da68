"""One file to send: complete, offline, and harmless whatever the run is called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.report import MOST_VIDEO_BYTES, ReportError, report_page, write_report
from slm_lab.runs.catalog import read_run
from slm_lab.runs.glossary import meaning
from slm_lab.runs.search_journal import Journal, TrialReport

SMALL = SyntheticRun(sessions=2, rows=10, max_frame=100)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>' onload='alert(3)"


class Elements(HTMLParser):
    """What a browser would make of the file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)
        self.text += data


def test_a_report_has_summary_curves_sessions_spec_versions_and_video(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text('{"total_reward_ma": 123.5, "strength": 0.25}')
    folder = layout.predir / "video"
    folder.mkdir()
    (folder / "best.mp4").write_bytes(b"video")
    (folder / "best.gif").write_bytes(b"image")
    page = Elements(report_page(read_run(layout.predir)))
    for expected in ("123.50", "target", "agent.algorithm.gamma", "2.13.0", "session", "learn"):
        assert expected in page.text
    assert (
        "video",
        {"src": "data:video/mp4;base64,dmlkZW8=", "controls": None, "muted": None},
    ) in page.tags
    assert any(
        tag == "img" and a["src"] == "data:image/gif;base64,aW1hZ2U=" for tag, a in page.tags
    )
    (data,) = [script for script in page.scripts if script.startswith("[{")]
    figures = json.loads(data)
    assert len(figures) == len([a for _, a in page.tags if "data-figure" in a])
    assert figures[0]["data"][-1]["x"] == [10.0 * i for i in range(1, 11)]


def test_a_report_names_no_other_place(tmp_path):
    text = report_page(read_run(write_run(tmp_path, SMALL).predir))
    page = Elements(text)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster"):
            assert not (attributes.get(name) or "").startswith(("http", "//", "/")), (
                tag,
                attributes,
            )
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_hostile_names_values_and_files_are_only_text(tmp_path):
    name = "<b>evil' \"<script>"
    values = {"agent.note": HOSTILE, f"agent.{HOSTILE.replace('.', '')}": 1}
    layout = write_run(
        tmp_path, replace(SMALL, name=name, algorithm=HOSTILE, env=HOSTILE, values=values)
    )
    folder = layout.predir / "video"
    folder.mkdir()
    (folder / "' onerror='alert(4).gif").write_bytes(b"image")
    table = layout.session_csv(0, 0, "train")
    table.write_text(table.read_text().replace("entropy", "<img src=x onerror=alert(5)>"))
    text = report_page(read_run(layout.predir))
    page = Elements(text)
    ours = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "dl",
        "div",
        "dt",
        "dd",
    }
    ours |= {"section", "table", "thead", "tbody", "tr", "th", "td", "script", "figure", "img"}
    ours |= {"figcaption", "a"}
    assert {tag for tag, _ in page.tags} <= ours
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 3
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 1
    (data,) = re.findall(r'type="application/json">(.*?)</script>', text, re.S)
    assert "<" not in data
    assert json.loads(data)
    assert "alert(1)" in page.text  # it is there, as text


def test_a_search_is_reported_with_its_trials(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, values={"meta.max_trial": 2}))
    journal = Journal(layout.journal_path())
    for trial in range(2):
        journal.start(trial, {"x": 0.5}, {"agent.algorithm.gamma": 0.9 + trial / 100})
        journal.report(trial, TrialReport(100, 5.0 + trial, 1.0))
        journal.end(trial, "completed", 5.0 + trial)
    page = Elements(report_page(read_run(layout.predir)))
    for expected in ("Trials", "6.00", "0.91", "best is 1", "Returns of the 1 best trials"):
        assert expected in page.text


def test_a_report_explains_what_it_shows_and_has_the_score_a_person_expects(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text('{"total_reward_ma": 315, "last_100_return": 500}')
    layout.trial_evaluation(0, best=True, sampled=False).write_text('{"mean": 499.5}')
    text = report_page(read_run(layout.predir))
    page = Elements(text)
    for score in ("500.00", "315.00", "499.50"):
        assert score in page.text
    assert ("a", {"href": "#glossary"}) in page.tags
    assert ("div", {"id": "glossary"}) in page.tags
    assert meaning("total_reward_ma") in page.text
    assert meaning("entropy") in page.text


def test_a_run_that_has_just_begun_has_a_report_too(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.1))
    for path in (layout.predir / "info").iterdir():
        path.unlink()
    page = Elements(report_page(read_run(layout.predir)))
    assert "none yet" in page.text


def test_videos_beyond_what_can_be_mailed_are_named_and_left_out(tmp_path):
    layout = write_run(tmp_path, SMALL)
    folder = layout.predir / "video"
    folder.mkdir()
    with (folder / "long.mp4").open("wb") as file:
        file.truncate(MOST_VIDEO_BYTES + 1)
    text = report_page(read_run(layout.predir))
    assert "long.mp4 is too large" in text
    assert "<video" not in text


def test_the_file_goes_where_it_shall_and_trouble_is_told(tmp_path):
    layout = write_run(tmp_path, SMALL)
    assert write_report(layout.predir) == layout.predir / "ppo_cartpole_report.html"
    out = tmp_path / "report.html"
    assert write_report(layout.predir, out) == out
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(ReportError, match=r"-o: .* cannot be written"):
        write_report(layout.predir, tmp_path / "no" / "such" / "report.html")
