"""Make the pictures of docs/DASHBOARD.md: the page on made-up runs, in headless chromium.

python -m perf.dashboard_screenshots [--out docs/images]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.server import open_server
from slm_lab.runs.lock import locked

if TYPE_CHECKING:
    from playwright.sync_api import Page

HEIGHT, WIDTH = 860, 1440
PPO = {"agent.algorithm.training_epoch": 4}
SLOW = {"agent.net.optim_spec.lr": 0.0003, "agent.algorithm.training_epoch": 8}
WIDE = {"agent.net.hid_layers": [256, 256], "agent.algorithm.gamma": 0.995}
RUNS = (
    SyntheticRun("ppo_cartpole", "2026_05_04_091500", level=478, seed=1, values=PPO),
    SyntheticRun("ppo_cartpole_slow", "2026_05_04_101200", level=452, pace=3, seed=2, values=SLOW),
    SyntheticRun("ppo_cartpole_wide", "2026_05_04_110300", level=491, pace=9, seed=3, values=WIDE),
    SyntheticRun("dqn_cartpole", "2026_05_05_084000", "DQN", level=405, pace=4, seed=4),
    SyntheticRun("a2c_cartpole", "2026_05_05_093100", "ActorCritic", level=330, pace=3, seed=5),
    SyntheticRun(
        *("sac_pendulum", "2026_05_05_131000", "SoftActorCritic", "Pendulum-v1", -150.0, -1400.0),
        seed=6,
    ),
    SyntheticRun(
        *("crossq_pendulum", "2026_05_05_142000", "CrossQ", "Pendulum-v1", -160.0, -1400.0),
        pace=12,
        seed=7,
    ),
    SyntheticRun(
        *("ppo_lunar", "2026_05_06_090000", "PPO", "LunarLander-v3", 235.0, -200.0),
        max_frame=300_000,
        seed=8,
    ),
    SyntheticRun(
        *("ddqn_lunar", "2026_05_06_101500", "DoubleDQN", "LunarLander-v3", 190.0, -200.0),
        max_frame=300_000,
        share=0.72,
        seed=9,
    ),
    SyntheticRun(
        *("ppo_hopper", "2026_05_06_120000", "PPO", "Hopper-v5", 2_300.0, 20.0),
        max_frame=3_000_000,
        share=0.35,
        failure="MemoryError: replay does not fit",
        seed=10,
    ),
    SyntheticRun(
        *("a2c_acrobot", "2026_05_06_154500", "ActorCritic", "Acrobot-v1", -84.0, -500.0),
        pace=10,
        seed=11,
    ),
    SyntheticRun(
        *(
            "sac_halfcheetah",
            "2026_05_07_080000",
            "SoftActorCritic",
            "HalfCheetah-v5",
            6_100.0,
            -280.0,
        ),
        max_frame=2_000_000,
        share=0.44,
        seed=12,
    ),
)
RUNNING = "sac_halfcheetah"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with made_up_page() as address:
        shoot(address, out)
    for path in sorted(out.glob("dashboard_*.png")):
        print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


@contextmanager
def made_up_page() -> Iterator[str]:
    """Address of a page on the runs above; one of them is locked, so that it counts as running."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "my_lab" / "data"
        for run in RUNS:
            layout = write_run(root, run)
            if run.name == RUNNING:
                stack.enter_context(locked(layout.run_lock(), run.name))
        server = open_server(root, port=0)
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
            page.set_default_timeout(120_000)
            page.goto(address)
            page.wait_for_selector("#grid .ag-row")
            wait_for_curves(page, 1)
            page.screenshot(path=out / f"dashboard_{scheme}.png")
            if scheme == "light":
                for name in (
                    "a2c_cartpole",
                    "dqn_cartpole",
                    "ppo_cartpole_slow",
                    "ppo_cartpole_wide",
                ):
                    tick(page, name)
                wait_for_curves(page, 4)
                page.screenshot(path=out / "dashboard_comparison.png")
                for name in ("a2c_cartpole", "dqn_cartpole"):
                    tick(page, name)
                wait_for_curves(page, 2)
                page.locator("#tab input[value=spec]").check()
                page.wait_for_selector("#panel table")
                page.screenshot(path=out / "dashboard_spec_diff.png")
                page.locator("#view input[value=benchmark]").check()
                page.wait_for_selector("#benchmark .ag-row")
                page.screenshot(path=out / "dashboard_benchmark.png")
            page.close()
        browser.close()


def wait_for_curves(page: Page, count: int) -> None:
    plot = "document.querySelector('#graph .js-plotly-plot')"
    page.wait_for_function(f"n => {plot}?.data.filter(t => t.name).length == n", arg=count)
    page.wait_for_timeout(700)  # for plotly to be done with drawing


def tick(page: Page, name: str) -> None:
    """Select a run, or unselect it."""
    row = page.locator(f"#grid .ag-row[row-id^='{name}_2026']").first
    index = row.get_attribute("row-index")
    page.locator(f"#grid .ag-row[row-index='{index}'] input[type=checkbox]").click()


if __name__ == "__main__":
    main()
