"""Pages opened in headless Chromium: they draw, switch, follow the colour scheme, stay offline."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from slm_lab.analysis.plot import Panel, View, curves_view, write_page

api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install Debian's package `chromium`"),
]


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page_path(tmp_path):
    """Two sessions against two axes, in a folder that was moved after it was written."""
    rng = np.random.default_rng(0)
    views: dict[tuple[str, ...], View] = {
        (label,): curves_view(
            {f"session {s}": pd.Series(rng.normal(size=50), index=range(50)) for s in (0, 1)},
            x_label=label,
            y_label="return",
        )
        for label in ("frames", "wall time (s)")
    }
    (tmp_path / "run" / "graph").mkdir(parents=True)
    panel = Panel(views, {"against": ["frames", "wall time (s)"]})
    path = tmp_path / "run" / "graph" / "page.html"
    write_page(path, "a <b>trial</b>", [panel], home=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    return tmp_path / "moved" / "graph" / "page.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_draws_and_switches_without_leaving_the_machine(browser, page_path, scheme):
    page = browser.new_page(color_scheme=scheme)
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(page_path.as_uri())
    page.wait_for_selector(".scatterlayer .trace")
    assert page.inner_text("h1") == "a <b>trial</b>"
    assert page.text_content(".xtitle") == "frames"
    assert page.locator(".legendtext").all_text_contents() == [
        "± 1 std",
        "session 0",
        "session 1",
        "mean",
    ]
    page.get_by_role("button", name="wall time (s)").click()
    page.wait_for_function("document.querySelector('.xtitle').textContent === 'wall time (s)'")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 25, 29)"}[scheme]
    assert {url.split(":")[0] for url in requests} == {"file"}
    assert errors == []


def test_the_toolbar_of_a_page_stands_above_the_curves(browser, page_path):
    page = browser.new_page()
    page.goto(page_path.as_uri())
    page.wait_for_selector(".modebar-group", state="attached")
    bottom, top = page.evaluate(
        "() => [document.querySelector('.modebar').getBoundingClientRect().bottom,"
        " document.querySelector('.nsewdrag').getBoundingClientRect().top]"
    )
    assert bottom <= top


def test_a_page_that_lost_its_folder_says_so(browser, page_path):
    (page_path.parents[1] / "plotly.min.js").unlink()
    page = browser.new_page()
    page.goto(page_path.as_uri())
    assert "keep this page in its folder" in page.inner_text("main")
