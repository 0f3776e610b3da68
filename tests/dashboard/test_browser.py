"""The page in a real browser: it opens, lives, filters, compares, and asks nobody else.

Needs Debian's chromium (`make test` installs it where it can); without one these are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("dash", reason="the extra `dashboard` is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000  # ms: a busy machine is no failure
SMALL = SyntheticRun(sessions=2, rows=20, max_frame=1_000)
HOSTILE = "<img src=x onerror=window.pwned=1></script><script>window.pwned=2</script>"
TRAIN = ["run", "benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "train", "--compile", "off"]
TRAIN += ["-s", "meta.max_session=1", "-s", "meta.log_frequency=500", "-s", "env.max_frame=1e8"]
PLOT = "document.querySelector('#graph .js-plotly-plot').data"
# Texts of a grid that do not fit their cell, and the grid itself if it scrolls sideways. The name
# that is markup is left out: it is long on purpose.
CUT_OFF = """(grid) => {
  const root = document.querySelector(grid);
  const places = ".ag-header-cell-text, .ag-cell, .two-lines > *, .progress > *";
  const cells = root.querySelectorAll(places + ", .ag-center-cols-viewport");
  return [...cells]
    .filter((cell) => !cell.textContent.includes("onerror") || cell.matches("[class*=viewport]"))
    .filter((cell) => cell.scrollWidth > cell.clientWidth + 1 && cell.clientWidth > 0)
    .map((cell) => cell.className + ": " + cell.textContent.slice(0, 80));
}"""
ROWS = "[...document.querySelectorAll('#grid .ag-row')]"
LABELS = "document.querySelectorAll('#grid .ag-row [col-id=label]')"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root: Path = tmp_path_factory.mktemp("page") / "data"
    write_run(root, replace(SMALL, ts="2026_01_01_000000"))
    lower = {"agent.net.optim_spec.lr": 0.0003}
    write_run(root, replace(SMALL, ts="2026_01_02_000000", values=lower))
    pendulum = replace(
        SMALL, algorithm="SoftActorCritic", env="Pendulum-v1", level=-200, start=-900
    )
    write_run(root, replace(pendulum, name="sac_pendulum", ts="2026_01_03_000000", share=0.5))
    hostile = replace(SMALL, name="evil<img src=x onerror=window.pwned=3>", env=HOSTILE)
    layout = write_run(root, replace(hostile, values={"agent.note": HOSTILE}))
    layout.log_path(0).write_text(f"{HOSTILE}\n")
    return root


def slm_lab(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slm_lab.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def address(data) -> Iterator[str]:
    process = slm_lab("dashboard", "data", "--port", "0", cwd=data.parent)
    assert process.stdout is not None
    match = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert match
    yield match.group()
    process.terminate()
    process.communicate()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1480, "height": 900},
        )
        context.set_default_timeout(PATIENCE)
        yield context
        context.close()


@pytest.fixture
def page(browser, address) -> Iterator[Page]:
    """The opened page. Whatever a test does there: nothing is asked elsewhere, nothing breaks."""
    page = browser.new_page()
    asked: list[str] = []
    broken: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda m: broken.append(m.text) if m.type == "error" else None)
    page.goto(address)
    page.wait_for_selector("#grid .ag-center-cols-container .ag-row")
    page.wait_for_selector("#graph .scatterlayer .trace", state="attached")
    yield page
    page.close()
    elsewhere = [url for url in asked if not url.startswith((f"{address}/", "data:", "blob:"))]
    assert asked
    assert elsewhere == []
    assert broken == []


def rows(page: Page) -> list[str]:
    """Names of the runs that the grid shows."""
    names = page.locator("#grid .ag-row [col-id=label] .two-lines > span")
    texts: list[str] = names.all_inner_texts()
    return sorted(texts)


def tick(page: Page, name: str, number: int = 0) -> None:
    row = page.locator("#grid .ag-row").filter(has_text=name).nth(number)
    index = row.get_attribute("row-index")
    page.locator(f"#grid .ag-row[row-index='{index}'] input[type=checkbox]").check()


def legend(page: Page, count: int) -> list[str]:
    """Labels of the curves, once there are so many."""
    page.wait_for_function(f"n => {PLOT}.filter(trace => trace.name).length == n", arg=count)
    names: list[str] = page.evaluate(f"() => {PLOT}.map(trace => trace.name).filter(name => name)")
    return names


def test_a_running_training_appears_and_its_curve_grows_without_a_reload(page, data):
    page.evaluate("() => { window.sameDocument = true }")
    training = slm_lab(*TRAIN, cwd=data.parent)
    last_x = f"() => {PLOT}.at(-1)?.x.at(-1) ?? 0"
    try:
        page.wait_for_selector("#grid .ag-row .dot.running")
        # With nothing selected, the page shows the run that is running.
        page.wait_for_function(
            "() => document.querySelector('#graph-note').textContent.includes('ppo_cartpole_20')"
            " && !document.querySelector('#graph-note').textContent.includes('2026_01_0')"
        )
        before = page.evaluate(last_x)
        page.wait_for_function(f"before => ({last_x})() > before", arg=before)
        # Selected beside another run it goes on growing, and stays selected.
        tick(page, "sac_pendulum")
        tick(page, "running")
        legend(page, 2)
        longest = f"() => Math.max(...{PLOT}.filter(t => t.name).map(t => t.x.at(-1)))"
        grown = page.evaluate(longest)
        page.wait_for_function(f"before => ({longest})() > before", arg=grown)
        assert page.locator("#grid .ag-row-selected").count() >= 2
    finally:
        training.send_signal(signal.SIGINT)
        training.communicate()
    page.wait_for_selector("#grid .ag-row .dot.running", state="detached")
    assert page.evaluate("() => window.sameDocument") is True


@pytest.mark.parametrize("width", [1280, 1440, 1920])
def test_nothing_is_cut_off_at_the_widths_of_usual_screens(page, width):
    """No text of the grids or the controls is wider than its place, no grid scrolls sideways."""
    page.set_viewport_size({"width": width, "height": 860})
    page.wait_for_timeout(500)  # the grid shares out the width anew
    for view, grid in (("runs", "grid"), ("benchmark", "benchmark")):
        page.locator(f"#view input[value={view}]").check()
        page.wait_for_selector(f"#{grid} .ag-row")
        assert page.evaluate(CUT_OFF, f"#{grid}") == []
    page.locator("#view input[value=runs]").check()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    toolbar, curves = (page.locator(f"#graph {part}").first for part in (".modebar", ".nsewdrag"))
    above, below = toolbar.bounding_box(), curves.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"]


def test_filters_keep_what_fits(page):
    everything = rows(page)
    assert {"sac_pendulum", "ppo_cartpole"} <= set(everything)
    page.locator("#text-filter").fill("pendulum")
    page.wait_for_function(f"() => {LABELS}.length == 1")
    assert rows(page) == ["sac_pendulum"]
    page.locator("#text-filter").fill("")
    page.locator("#status-filter input[value=done]").check()
    page.wait_for_function(f"() => !{ROWS}.some(row => row.innerText.includes('resumable'))")
    assert "sac_pendulum" not in rows(page)
    page.locator("#status-filter input[value=done]").uncheck()
    page.wait_for_function(
        f"n => {LABELS}.length == n",
        arg=len(everything),
    )


def test_runs_are_compared_by_curve_and_by_spec(page):
    page.locator("#text-filter").fill("ppo_cartpole_2026_01")
    page.wait_for_function(f"() => {LABELS}.length == 2")
    tick(page, "ppo_cartpole", 0)
    tick(page, "ppo_cartpole", 1)
    names = legend(page, 2)
    assert names == ["ppo_cartpole_2026_01_02_000000", "ppo_cartpole_2026_01_01_000000"]
    page.locator("input[value=wall_t]").check()
    page.wait_for_function(
        "() => document.querySelector('#graph .xtitle')?.textContent == 'wall time (s)'"
    )
    page.locator("input[value=spec]").check()
    page.wait_for_selector("#panel table")
    keys = page.locator("#panel tbody th").all_inner_texts()
    assert keys == ["agent.net.optim_spec.lr"]
    assert page.locator("#panel tbody td").all_inner_texts() == ["0.0003", "0.001"]
    page.locator("input[value=benchmark]").check()
    page.wait_for_selector("#benchmark .ag-row")
    assert "CartPole-v1" in page.locator("#benchmark .ag-row").first.inner_text()


def test_hostile_names_values_and_log_lines_are_only_text(page):
    page.locator("#text-filter").fill("evil")
    page.wait_for_function(f"() => {LABELS}.length == 1")
    tick(page, "evil")
    for tab, expected in (
        ("spec", HOSTILE),
        ("log", HOSTILE),
        ("details", HOSTILE),
        ("curves", ""),
    ):
        page.locator(f"#tab input[value={tab}]").check()
        page.wait_for_function(
            "t => document.querySelector('#panel').innerText.includes(t)", arg=expected
        )
    page.wait_for_function(
        "() => document.querySelector('#graph-note').textContent.includes('evil<img')"
    )
    assert page.evaluate("() => window.pwned") is None
    assert page.locator("#runs-view img").count() == 0


def test_light_and_dark_and_the_keyboard(page):
    theme = "() => document.documentElement.dataset.theme"
    first = page.evaluate(theme)
    page.locator("#theme-button").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"first => ({theme})() != first", arg=first)
    page.locator("#tab input[value=curves]").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#panel table")
    assert page.locator("#tab input[value=details]").is_checked()


def test_a_report_opens_from_a_file_alone_and_runs_nothing_of_the_run(browser, data, tmp_path):
    (folder,) = data.glob("evil*")
    path = write_report(folder, tmp_path / "report.html")
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(".figure .scatterlayer .trace", state="attached")
    assert page.evaluate("() => window.pwned") is None
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    page.close()
