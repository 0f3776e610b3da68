"""Measure the dashboard on a full data folder: 300 synthetic runs of 4 sessions x 1,000 rows.

    python -m perf.dashboard_load [--runs 300] [--rows 1000] [--sessions 4] [--no-browser]

Prints the time of the first start, when nothing has been read, and then what a visitor waits for:
the page with all runs, the curves of one run and of 21, an update while one run grows, and the same
in a browser.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.server import open_server
from slm_lab.runs.catalog import RunCatalog

KINDS = (
    ("ppo_cartpole", "PPO", "CartPole-v1", 450.0, 20.0),
    ("dqn_cartpole", "DQN", "CartPole-v1", 380.0, 20.0),
    ("sac_pendulum", "SoftActorCritic", "Pendulum-v1", -180.0, -1_400.0),
    ("a2c_acrobot", "ActorCritic", "Acrobot-v1", -85.0, -500.0),
    ("ppo_lunar", "PPO", "LunarLander-v3", 230.0, -180.0),
)
TARGET_SECONDS = 2.0
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--no-browser", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_runs(root, arguments.runs, arguments.rows, arguments.sessions)
        load = os.getloadavg()[0]
        print(f"{arguments.runs} runs, {arguments.sessions} sessions x {arguments.rows:,} rows")
        print(f"{os.cpu_count()} cores, load average {load:.1f}\n")
        measure(root, with_browser=not arguments.no_browser)


def write_runs(root: Path, runs: int, rows: int, sessions: int) -> None:
    for i in range(runs):
        name, algorithm, env, level, start = KINDS[i % len(KINDS)]
        ts = f"2026_{1 + i // 28 % 12:02d}_{1 + i % 28:02d}_{i % 24:02d}{i % 60:02d}00"
        share, failure = (
            (0.6, "") if i % 17 == 3 else (0.4, "RuntimeError") if i % 29 == 5 else (1, "")
        )
        run = SyntheticRun(
            name=name,
            ts=ts,
            algorithm=algorithm,
            env=env,
            level=level,
            start=start,
            sessions=sessions,
            rows=rows,
            share=share,
            failure=failure,
            seed=i,
        )
        write_run(root, run)


def measure(root: Path, *, with_browser: bool) -> None:
    catalog = RunCatalog(root)
    report("first scan of the folder", timed(catalog.scan))
    report("scan again", usual(catalog.scan))
    server = open_server(root, port=0)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        client = Client(address)
        report("first page of a new server", timed(client.page))
        total = usual(client.page)
        report("page with all runs in it", total)
        keys = [run.key for run in catalog.scan()]
        report("curve of one run, first time", timed(lambda: client.curves(keys[:1])))
        one = usual(lambda: client.curves(keys[:1]))
        report("curve of one run", one)
        report("curves of 21 runs, first time", timed(lambda: client.curves(keys[:21])))
        report("curves of 21 runs", usual(lambda: client.curves(keys[:21])))
        report("is there news? (every two seconds)", usual(client.news))
        loaded = total + one
        report("page and curve together", loaded)
        print(f"{'ok' if loaded < TARGET_SECONDS else 'TOO SLOW'}: the aim is {TARGET_SECONDS:g} s")
        if with_browser:
            measure_in_browser(address)
    finally:
        server.shutdown()
        server.server_close()


class Client:
    """An HTTP client that sends the requests of a browser over one connection."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = requests.Session()
        self._callbacks: list[dict[str, Any]] = []

    def page(self) -> None:
        for path in ("/", "/_dash-layout"):
            self._session.get(self._address + path).raise_for_status()
        self._callbacks = self._session.get(f"{self._address}/_dash-dependencies").json()

    def curves(self, keys: list[str]) -> None:
        shown = {"keys": keys, "stamps": [], "places": {key: i for i, key in enumerate(keys)}}
        values = {"shown": shown, "y": "total_reward_ma", "x": "frame", "theme": "light"}
        answer = self._ask("graph.figure", values)
        assert answer["response"]["graph"]["figure"]["data"], "no curve came"

    def news(self) -> None:
        self._ask("grid.rowData", {"version": 1, "shown": {"keys": [], "places": {}}, "grid": []})

    def _ask(self, output: str, values: dict[str, Any]) -> dict[str, Any]:
        entry = next(item for item in self._callbacks if output in item["output"])
        outputs = entry["output"].strip(".").split("...")
        body = {
            "output": entry["output"],
            "outputs": [
                dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in outputs
            ],
            "inputs": [{**item, "value": values.get(item["id"])} for item in entry["inputs"]],
            "state": [{**item, "value": values.get(item["id"])} for item in entry["state"]],
            "changedPropIds": [],
        }
        answer = self._session.post(f"{self._address}/_dash-update-component", json=body)
        answer.raise_for_status()
        content: dict[str, Any] = answer.json() if answer.content else {}
        return content


def measure_in_browser(address: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium here: not measured in a browser")
        return
    from playwright.sync_api import sync_playwright

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, args=flags
        )
        context.set_default_timeout(120_000)

        def visit() -> tuple[float, float, float]:
            """(until the runs are there, until the curve is, time that the page's thread worked)"""
            page = context.new_page()
            tools = context.new_cdp_session(page)
            tools.send("Performance.enable", {"timeDomain": "threadTicks"})
            began = time.perf_counter()
            page.goto(address)
            page.wait_for_selector("#grid .ag-row")
            rows = time.perf_counter() - began
            page.wait_for_selector("#graph .scatterlayer .trace", state="attached")
            curve = time.perf_counter() - began
            metrics = tools.send("Performance.getMetrics")["metrics"]
            busy = next(m["value"] for m in metrics if m["name"] == "TaskDuration")
            page.close()
            return rows, curve, busy

        def tell(when: str, visits: list[tuple[float, float, float]]) -> None:
            for what, seconds in zip(
                ("runs", "curve", "busy"), zip(*visits, strict=True), strict=True
            ):
                report(f"browser, {when}: {what}", statistics.median(seconds))

        print()
        tell("first visit", [visit()])
        visit()  # from here on it has the compiled scripts at hand
        tell("later visits", [visit() for _ in range(REPEATS)])
        context.close()


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def usual(action: Callable[[], object]) -> float:
    """Median of a few calls, since the machine may do other work."""
    return statistics.median(timed(action) for _ in range(REPEATS))


def report(what: str, seconds: float) -> None:
    print(f"{what:<36}{seconds:8.3f} s", flush=True)


if __name__ == "__main__":
    main()
