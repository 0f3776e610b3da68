"""Pages that work offline, wherever their folder is moved."""

from __future__ import annotations

import json
import math
import os
import re

import pandas as pd

from slm_lab.analysis import plot
from slm_lab.analysis.plot import (
    MAX_POINTS,
    PLOTLY_JS,
    Panel,
    View,
    curves_view,
    line_trace,
    numbers,
    provide_plotly,
    write_page,
)


def line(*values: float) -> pd.Series:
    return pd.Series(values, index=range(len(values)), dtype="float64")


def simple_page(path, title="demo", home=None):
    view = curves_view({"a": line(1, 2), "b": line(3, 4)}, x_label="frames", y_label="return")
    panel = Panel({("frames",): view}, {"against": ["frames"]})
    write_page(path, title, [panel], home=home or path.parent)
    return path.read_text()


def content(text: str):
    found = re.search(r'id="panels">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


def test_a_page_is_small_and_loads_nothing_but_the_plotly_of_its_folder(tmp_path):
    (tmp_path / "graph").mkdir()
    text = simple_page(tmp_path / "graph" / "demo.html", home=tmp_path)
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["../plotly.min.js"]
    assert "http" not in text
    assert len(text) < 10_000
    assert (tmp_path / PLOTLY_JS).read_bytes() == plot.plotly_js().read_bytes()


def test_plotly_is_copied_once_and_run_folders_beside_each_other_share_it(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        provide_plotly(tmp_path / name)
    one, other = tmp_path / "a" / PLOTLY_JS, tmp_path / "b" / PLOTLY_JS
    assert os.path.samefile(one, other)
    before = one.stat().st_mtime_ns
    provide_plotly(tmp_path / "a")
    assert one.stat().st_mtime_ns == before
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [PLOTLY_JS]


def test_a_neighbours_script_that_is_not_plotly_is_not_taken_over(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / PLOTLY_JS).write_text("alert(1)")
    provide_plotly(tmp_path / "b")
    assert (tmp_path / "b" / PLOTLY_JS).read_bytes() == plot.plotly_js().read_bytes()


def test_names_cannot_put_markup_or_script_into_a_page(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    text = simple_page(tmp_path / "demo.html", title=evil)
    trace = line_trace(line(1, 2), evil, "#0072B2")
    write_page(tmp_path / "other.html", "demo", [Panel({(): View([trace], {})})], home=tmp_path)
    for written in (text, (tmp_path / "other.html").read_text()):
        assert "<img" not in written
        assert written.count("</script>") == 3  # data, plotly, ours
    assert content((tmp_path / "other.html").read_text())[0]["views"][""]["data"][0]["name"] == evil


def test_several_curves_have_a_mean_and_a_band(tmp_path):
    view = curves_view({"a": line(1, 2), "b": line(3, 6)}, x_label="frames", y_label="return")
    traces = {trace["name"]: trace for trace in view.traces}
    assert traces["mean"]["y"] == [2, 4]
    assert traces["± 1 std"]["y"] == numbers([2 + 2**0.5, 4 + 8**0.5])
    assert view.layout["xaxis"]["title"]["text"] == "frames"
    alone = curves_view({"return": line(1, 2)}, x_label="frames", y_label="return")
    assert [trace["name"] for trace in alone.traces] == ["return"]


def test_what_is_no_number_is_a_gap_and_numbers_are_as_short_as_a_screen_needs():
    assert numbers([1.0, 0.123456789, math.nan, math.inf, 2e6]) == [
        1,
        0.123457,
        None,
        None,
        2000000,
    ]


def test_a_long_line_is_thinned_and_keeps_its_ends():
    trace = line_trace(line(*range(12_345)), "long", "#0072B2")
    assert len(trace["x"]) == MAX_POINTS
    assert (trace["x"][0], trace["x"][-1]) == (0, 12_344)


def test_a_single_point_is_a_dot():
    assert line_trace(line(1.0), "one", "#0072B2")["mode"] == "markers"


def test_the_same_numbers_give_the_same_page(tmp_path):
    assert simple_page(tmp_path / "a.html") == simple_page(tmp_path / "b.html")
