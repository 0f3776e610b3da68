"""`--profile`: measure the time of each operator.

Writes `profiler/profiler_summary.json`, `profiler/profiling_dashboard.html` and a trace for
chrome://tracing or Perfetto under `traces/`.
"""

from __future__ import annotations

import html
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from loguru import logger

from slm_lab.runs.files import check_place, make_folder, write_or_warn
from slm_lab.training.loop import Profile

SKIP_STEPS = int(os.environ.get("PROF_SKIP", 500))
ACTIVE_STEPS = int(os.environ.get("PROF_ACTIVE", 20))
ROWS_SHOWN = 30


class OperatorProfiler:
    """Skips the first steps, which warm up and compile, records the next ones, writes its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._operators: list[dict[str, Any]] = []
        make_folder(folder, folder / "profiler")
        make_folder(folder, folder / "traces")
        self._profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(
                wait=max(SKIP_STEPS - 1, 0), warmup=1, active=ACTIVE_STEPS, repeat=1
            ),
            on_trace_ready=self._keep,
        )
        self._profiler.start()

    def after_step(self) -> None:
        self._profiler.step()

    def close(self, phases: Profile) -> None:
        self._profiler.stop()
        if not self._operators:
            logger.warning(
                f"--profile: the run ended within the {SKIP_STEPS} steps that are skipped, so no "
                "operator was recorded. Set PROF_SKIP lower or env.max_frame higher."
            )
        summary = {
            "seconds": asdict(phases),
            "skipped_steps": SKIP_STEPS,
            "recorded_steps": ACTIVE_STEPS,
            "operators": self._operators,
        }
        folder = self._folder / "profiler"
        text = json.dumps(summary, indent=2) + "\n"
        write_or_warn(self._folder, folder / "profiler_summary.json", text)
        write_or_warn(self._folder, folder / "profiling_dashboard.html", _dashboard(summary))

    def _keep(self, profiler: torch.profiler.profile) -> None:
        trace = self._folder / "traces" / "trace.json"
        check_place(self._folder, trace)
        profiler.export_chrome_trace(str(trace))
        averages = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
        self._operators = [
            {"name": e.key, "calls": e.count, "self_cpu_us": e.self_cpu_time_total}
            for e in averages
        ]


def _dashboard(summary: dict[str, Any]) -> str:
    seconds: dict[str, float] = summary["seconds"]
    total = sum(seconds.values()) or 1.0
    phases = _bars([(name, s / total, f"{s:.2f} s") for name, s in seconds.items()])
    shown = summary["operators"][:ROWS_SHOWN]
    whole = sum(op["self_cpu_us"] for op in summary["operators"]) or 1.0
    operators = _bars(
        [
            (op["name"], op["self_cpu_us"] / whole, f"{op['self_cpu_us']:.0f} µs in {op['calls']}")
            for op in shown
        ]
    )
    return f"""<!doctype html>
<meta charset="utf-8"><title>Profile</title>
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
          color-scheme: light dark; }}
  td {{ padding: .1em .6em; white-space: nowrap }} td.bar {{ width: 100% }}
  td.bar div {{ background: #0072b2; height: 1em }}
</style>
<h1>Where the time went</h1>
<h2>The whole session</h2>{phases}
<h2>Operators, over {ACTIVE_STEPS} steps after the first {SKIP_STEPS}</h2>{operators}
"""


def _bars(rows: list[tuple[str, float, str]]) -> str:
    cells = "".join(
        f"<tr><td>{html.escape(name)}<td>{share:.1%}<td>{html.escape(note)}"
        f'<td class="bar"><div style="width:{share:.1%}"></div>'
        for name, share, note in rows
    )
    return f"<table>{cells}</table>"
