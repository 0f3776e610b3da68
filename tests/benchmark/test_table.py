"""The page is a function of manifest and results, the same bytes each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.result import CollectedResult, read_results, write_result
from slm_lab.benchmark.table import BenchmarkPage, mark

PLACES = {"page": Path("docs/B.md"), "plots_dir": Path("docs/plots"), "results_dir": Path("res")}


def line_of(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_shows_score_spread_evaluation_spec_folder_and_run_time(manifest, kept):
    text = BenchmarkPage(manifest, {kept.result.row: kept}, **PLACES).text()
    assert line_of(text, "PPO") == [
        "PPO",
        "✅",
        "0.62 ± 0.18 (2 sessions)",  # std of 0.5 and 0.75
        "0.90 ± 0.14",
        "0.5",
        "0.9 D12",
        "1 @100 ZOO",
        "[tiny.json](../tiny.json)",
        "tiny `-s env=probe/ActionMatters-v0`",
        "[tiny_actionmatters_2026_01_01_000000](../res/probe-actionmatters-v0_ppo) at `012345678`, "
        "[plot](../res/probe-actionmatters-v0_ppo/plot.png)",
        "1.5 min on 2 cores (CPU 2.0 min)",
    ]
    assert "**Settings**: max_frame 200 | num_envs 2 | max_session 2 | log_frequency 50" in text
    assert "![probe/ActionMatters-v0](plots/probe_ActionMatters-v0.png)" in text


def test_a_row_without_a_result_stands_as_missing(manifest):
    text = BenchmarkPage(manifest, {}, **PLACES).text()
    assert line_of(text, "PPO")[1:4] == ["🔄", "–", "–"]
    assert line_of(text, "probe/ActionMatters-v0") == ["probe/ActionMatters-v0", "🔄"]
    assert line_of(text, "1")[-2:] == ["🔄 1", "🔄 1"]
    assert "plots/" not in text


def test_a_result_of_another_spec_does_not_count(manifest, kept):
    other = CollectedResult(
        kept.result, kept.spec.with_values({"agent.algorithm.gamma": 0.5}), kept.curve
    )
    text = BenchmarkPage(manifest, {kept.result.row: other}, **PLACES).text()
    assert line_of(text, "PPO")[1:4] == ["🔄", "–", "–"]


@pytest.mark.parametrize(
    ("env", "bar", "score", "expected"),
    [
        ("CartPole-v1", 400, 400, "✅"),
        ("CartPole-v1", 400, 350, "⚠️"),  # a random policy has about 22
        ("CartPole-v1", 400, 300, "❌"),
        ("Pendulum-v1", -200, -300, "⚠️"),  # a random policy has about -1200
        ("Pendulum-v1", -200, -500, "❌"),
        ("Unheard-of-v0", None, 3, "📊"),
    ],
)
def test_marks(manifest, env, bar, score, expected):
    row = manifest.rows[0].model_copy(update={"env": env, "bar": bar, "best": None})
    assert mark(row, score) == expected


def test_writing_twice_changes_not_a_byte(manifest, kept):
    write_result(kept, PLACES["results_dir"] / kept.result.row)
    written = []
    for _ in range(2):
        BenchmarkPage(manifest, read_results(PLACES["results_dir"]), **PLACES).write()
        files = sorted(path for path in Path("docs").rglob("*") if path.is_file())
        written.append({path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files})
    assert list(written[0]) == ["B.md", "probe_ActionMatters-v0.png"]
    assert written[0]["B.md"][0] == written[1]["B.md"][0]
    plot = "probe_ActionMatters-v0.png"
    assert written[0][plot] == written[1][plot]  # not even drawn again


def test_new_curves_are_drawn_again(manifest, kept):
    plot = PLACES["plots_dir"] / "probe_ActionMatters-v0.png"
    BenchmarkPage(manifest, {kept.result.row: kept}, **PLACES).write()
    before = plot.read_bytes()
    doubled = CollectedResult(kept.result, kept.spec, kept.curve * 2)
    BenchmarkPage(manifest, {kept.result.row: doubled}, **PLACES).write()
    assert plot.read_bytes() != before


def test_a_skipped_row_tells_why(write_manifest):
    skipped = load_manifest(write_manifest(skip="hard exploration"))
    text = BenchmarkPage(skipped, {}, **PLACES).text()
    assert line_of(text, "PPO")[1] == "Skip"
    assert "- PPO: hard exploration." in text


def test_settings_of_single_rows_are_told_beside_those_of_all(write_manifest):
    path = write_manifest()
    phase = yaml.safe_load(path.read_text())
    rows = phase["tables"][0]["rows"]
    rows += [
        {**rows[0], "algorithm": name, "settings": {"max_frame": 3_000_000}}
        for name in ("SAC", "CrossQ")
    ]
    path.write_text(yaml.safe_dump(phase))
    text = BenchmarkPage(load_manifest(path), {}, **PLACES).text()
    assert "max_frame 200 (PPO), 3e6 (SAC, CrossQ) | num_envs 2 | max_session 2" in text
