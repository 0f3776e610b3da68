"""Write the tables and curves of docs/PERFORMANCE.md from results/*.json.

    python -m perf.performance_page

The prose of the page is written by hand. The parts between `<!-- NAME -->` and `<!-- end -->` are
written by this script from what the benchmarks measured, and are never edited.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from perf.workloads import WORKLOADS

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "PERFORMANCE.md"
IMAGES = PAGE.parent / "images"


def main() -> None:
    sections = {
        "side by side": side_by_side(reports()),
        "side by side in bfloat16": side_by_side(in_bfloat16(reports()), "slm_lab_bfloat16"),
        "parts": parts(),
        "start-up": start_up(),
        "playground": playground(),
    }
    IMAGES.mkdir(parents=True, exist_ok=True)
    if scaling := saved("scaling"):
        draw_scaling(scaling)
    if speeds := saved("playground_speed"):
        draw_playground(speeds["points"])
    PAGE.write_text(filled(PAGE.read_text(), sections))
    print(f"Written: {PAGE.name}")


def filled(text: str, sections: dict[str, str]) -> str:
    for name, content in sections.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        place = pattern.search(text)
        if place is None:
            raise SystemExit(
                f"{PAGE.name} has no place for '{name}': <!-- {name} --> … <!-- end -->"
            )
        text = f"{text[: place.end(1)]}{content}\n{text[place.start(2) :]}"
    return text


def saved(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def reports() -> dict[str, dict[str, Any]]:
    """Results in the order of the workloads, without those that were never run."""
    paths = {name: RESULTS / f"{name}.json" for name in WORKLOADS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def in_bfloat16(all_reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Reports of the workloads measured in bfloat16, with those numbers as our own."""
    return {name: r | r["bfloat16"] for name, r in all_reports.items() if "bfloat16" in r}


def side_by_side(found: dict[str, dict[str, Any]], our: str = "slm_lab") -> str:
    if not found:
        return "Not measured yet."
    lines = [
        "| workload | cores | frames/s, steady | / SB3 | / SBX | of the limit "
        "| to target: ours · SB3 · SBX | peak MB: ours · SB3 · SBX |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, report in found.items():
        cells = [
            name,
            str(report["settings"].get("cores", 1)),
            f"{of(report, our, 'steady_fps'):,.0f}",
            ratio(report, "sb3"),
            ratio(report, "sbx"),
            f"{statistics.median(shares):.0%}" if (shares := report.get("share_of_limit")) else "",
            per_library(report, our, "target_seconds", "{:.0f} s"),
            per_library(report, our, "peak_mb", "{:,.0f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def of(report: dict[str, Any], contestant: str, key: str) -> float | None:
    """Median over rounds; None if a round lacks the value."""
    values = [r.get(key) for r in report["results"] if r["contestant"] == contestant]
    return statistics.median(values) if values and None not in values else None


def ratio(report: dict[str, Any], peer: str) -> str:
    rounds = report["ratios"].get(peer, {}).get("steady_fps")
    if not rounds:
        return ""
    return f"{statistics.median(rounds):.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def per_library(report: dict[str, Any], our: str, key: str, form: str) -> str:
    values = [of(report, contestant, key) for contestant in (our, "sb3", "sbx")]
    if values[0] is None:
        return ""
    return " · ".join("-" if value is None else form.format(value) for value in values)


def parts() -> str:
    """Table of time per frame: of the machine's limit and of our own loop, part by part."""
    lines = ["| workload | env | acting | learning | limit, frames/s |", "|---|---|---|---|---|"]
    for name, report in reports().items():
        if not report.get("limits"):  # measured before limits were
            continue
        middle = {
            key: statistics.median(limit[key] for limit in report["limits"])
            for key in ("env_ms", "act_ms", "learn_ms", "fps")
        }
        ours = report.get("profile", {})
        times = " | ".join(
            f"{_us(middle[key])} · {_us(ours.get(key))}" for key in ("env_ms", "act_ms", "learn_ms")
        )
        lines.append(f"| {name} | {times} | {middle['fps']:,.0f} |")
    return "\n".join(lines)


def _us(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{1e3 * milliseconds:,.1f} us"


def start_up() -> str:
    if not (measured := saved("start_up")):
        return "Not measured yet."
    seconds = measured["seconds"]
    what = {
        "help": "`slm-lab --help`",
        "spec_error": "a spec error, reported",
        "dev_run": "a dev run of 2,000 frames of PPO CartPole",
        "first_learned": "first learned frame of PPO CartPole, nothing cached",
        "first_learned_on": "the same with `--compile on`",
        "trial_cold": "4 sessions of PPO CartPole, 200,000 frames each, empty compile cache",
        "trial_warm": "the same again, warm cache",
    }
    rows = [f"| {text} | {seconds[key]:.2f} |" for key, text in what.items() if key in seconds]
    return "\n".join(["| command | seconds |", "|---|---|", *rows])


def playground() -> str:
    if not (measured := saved("playground_speed")):
        return "Not measured yet."
    rows = ["| env | back-end | envs | collector, frames/s | training, frames/s |"]
    rows.append("|---|---|---|---|---|")
    for p in measured["points"]:
        train = f"{p['train']:,.0f}" if "train" in p else ""
        rows.append(
            f"| {p['env']} | {_backend(p)} | {p['num_envs']:,} | {p['collect']:,.0f} | {train} |"
        )
    return "\n".join(rows)


def _backend(point: dict[str, Any]) -> str:
    if point["backend"] == "playground":
        return "JAX"
    return f"envpool, {point['threads']} thread{'s' * (point['threads'] > 1)}"


def draw_playground(points: list[dict[str, Any]]) -> None:
    plt = _pyplot()
    names = sorted({p["env"] for p in points})
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.2), layout="constrained")
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        of_env = [p for p in points if p["env"] == name]
        for backend in sorted({_backend(p) for p in of_env}):
            for key, style in (("collect", "-"), ("train", "--")):
                line = [p for p in of_env if _backend(p) == backend and key in p]
                if line:
                    x, y = [p["num_envs"] for p in line], [p[key] for p in line]
                    axis.plot(x, y, style, marker="o", label=f"{key}, {backend}")
        axis.set(title=name, xlabel="parallel envs", ylabel="frames/s", yscale="log")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(IMAGES / "playground_speed.png", dpi=90)


def draw_scaling(scaling: dict[str, Any]) -> None:
    plt = _pyplot()
    panels = {
        "envs": ("parallel envs", "frames/s, PPO CartPole", ("collect", "train")),
        "batch": ("batch size", "ms per SAC update, 256x256", ("ms",)),
        "sessions": ("sessions at once", "frames/s of all", ("fps",)),
        "replay": ("rows in the replay", "peak MB", ("mb",)),
    }
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.2), layout="constrained")
    for axis, (name, (x_label, y_label, keys)) in zip(axes, panels.items(), strict=True):
        points = scaling.get(name, [])
        for key in keys:
            axis.plot([p["x"] for p in points], [p[key] for p in points], marker="o", label=key)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.grid(alpha=0.3)
        if name in ("envs", "batch"):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
        if len(keys) > 1:
            axis.legend()
    figure.savefig(IMAGES / "scaling.png", dpi=90)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


if __name__ == "__main__":
    main()
