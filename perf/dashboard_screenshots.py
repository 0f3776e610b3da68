"""Make the pictures of docs/DASHBOARD.md: the page on real runs, in headless chromium.

The runs are those of a data folder, such as perf/docs_images.py makes. One that was cut short goes
on meanwhile, so that the page has one that is running.

python -m perf.dashboard_screenshots [--data data/docs] [--out docs/images]
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slm_lab.dashboard.server import open_server
from slm_lab.runs.catalog import RunCatalog, read_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

HEIGHT, WIDTH = 860, 1440


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/docs"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with live_page(arguments.data) as address:
        shoot(address, arguments.out)
    for path in sorted(arguments.out.glob("dashboard_*.png")):
        print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


@contextmanager
def live_page(data: Path) -> Iterator[str]:
    """Address of a page on the runs, while one that was cut short goes on."""
    with ExitStack() as stack:
        for run in RunCatalog(data).scan():
            if run.status == "resumable":
                name = [str(run.layout.trial_spec_path(0)), run.name, f"train@{run.folder}"]
                command = [sys.executable, "-m", "slm_lab.cli.main", "run", *name]
                training = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                stack.callback(training.wait)
                stack.callback(training.send_signal, signal.SIGINT)
                while training.poll() is None and read_run(run.folder).status != "running":
                    time.sleep(1)
        server = open_server(data, port=0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        yield f"http://127.0.0.1:{server.server_port}"


def shoot(address: str, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme="dark" if scheme == "dark" else "light",
                reduced_motion="reduce",
            )
            page.set_default_timeout(240_000)
            page.goto(address)
            page.wait_for_selector("#grid .ag-row .dot")
            wait_for_rows(page, 10)
            page.screenshot(path=out / f"dashboard_{scheme}.png")
            if scheme == "light":
                shoot_selections(page, out)
            page.close()
        browser.close()


def shoot_selections(page: Page, out: Path) -> None:
    """A search, four runs compared, the specs of two, and the benchmark."""
    rows = page.locator("#grid .ag-center-cols-container .ag-row")
    kinds = {str(row.get_attribute("row-id")): "trials" in row.inner_text() for row in rows.all()}
    trials = [key for key, is_search in kinds.items() if not is_search][:4]
    for search in [key for key, is_search in kinds.items() if is_search][:1]:
        tick(page, search)
        wait_for_curves(page, 1)
        page.screenshot(path=out / "dashboard_search.png")
        tick(page, search)
    for key in trials:
        tick(page, key)
    wait_for_curves(page, len(trials))
    page.screenshot(path=out / "dashboard_comparison.png")
    for key in trials[2:]:
        tick(page, key)
    wait_for_curves(page, 2)
    page.locator("#tab input[value=spec]").check()
    page.wait_for_selector("#panel table")
    page.screenshot(path=out / "dashboard_spec_diff.png")
    page.locator("#view input[value=benchmark]").check()
    page.wait_for_selector("#benchmark .ag-row")
    page.screenshot(path=out / "dashboard_benchmark.png")


def wait_for_rows(page: Page, count: int) -> None:
    plot = "document.querySelector('#graph .js-plotly-plot')"
    page.wait_for_function(f"n => ({plot}?.data.at(-1)?.x.length ?? 0) >= n", arg=count)
    page.wait_for_timeout(700)  # for plotly to be done with drawing


def wait_for_curves(page: Page, count: int) -> None:
    plot = "document.querySelector('#graph .js-plotly-plot')"
    page.wait_for_function(f"n => {plot}?.data.filter(t => t.name).length == n", arg=count)
    page.wait_for_timeout(700)  # for plotly to be done with drawing


def tick(page: Page, name: str) -> None:
    """Select a run, or unselect it."""
    row = page.locator(f"#grid .ag-row[row-id='{name}']").first
    index = row.get_attribute("row-index")
    page.locator(f"#grid .ag-row[row-index='{index}'] input[type=checkbox]").click()


if __name__ == "__main__":
    main()
