"""The page is a function of manifest and results, the same bytes each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.result import read_results, write_result
from slm_lab.benchmark.table import BenchmarkPage, differences, mark, weak_sessions
from tests.benchmark.conftest import enter_attempt

PLACES = {"page": Path("docs/B.md"), "plots_dir": Path("docs/plots"), "results_dir": Path("res")}


def line_of(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_shows_score_sessions_evaluation_what_differs_attempts_spec_and_runs(manifest, kept):
    enter_attempt(kept, PLACES["results_dir"])
    text = BenchmarkPage(manifest, {kept.result.row: kept}, **PLACES).text()
    assert line_of(text, "PPO") == [
        "PPO",
        "✅",
        "0.62 ± 0.18",  # std of 0.5 and 0.75
        "2, IQM 0.62, worst 0.50",
        "0.90 ± 0.14",
        "0.5 (J 0.7)",
        "0.9 D12",
        "max_frame 200 (1e6); sessions 2 (4)",
        "1",
        "1 @100 ZOO",
        "[tiny.json](../tiny.json)",
        "tiny `-s env=probe/ActionMatters-v0`",
        "[probe-actionmatters-v0_ppo](../res/probe-actionmatters-v0_ppo): "
        "tiny_actionmatters_2026_01_01_000000 at `012345678`, "
        "[plot](../res/probe-actionmatters-v0_ppo/plot.png)",
        "1.5 min on 2 cores (CPU 2.0 min)",
    ]
    assert "**Settings**: max_frame 200 | num_envs 2 | max_session 2 | log_frequency 50" in text
    assert "![probe/ActionMatters-v0](plots/probe_ActionMatters-v0.png)" in text


def test_a_row_without_a_result_stands_as_missing(manifest):
    text = BenchmarkPage(manifest, {}, **PLACES).text()
    assert line_of(text, "PPO")[1:4] == ["🔄", "–", "–"]
    assert line_of(text, "probe/ActionMatters-v0") == ["probe/ActionMatters-v0", "🔄"]
    assert line_of(text, "1")[-3:] == ["🔄 1", "🔄 1", "–"]
    assert "plots/" not in text


def test_a_result_of_another_spec_does_not_count(manifest, kept):
    other = replace(kept, result=kept.result.model_copy(update={"fingerprint": "0" * 64}))
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


def scored(kept, *scores: float, **change):
    """The result with these scores, of one trial."""
    (trial,) = kept.result.trials
    trial = trial.model_copy(update={"sessions": dict(enumerate(scores)), **change})
    total = sum(scores) / len(scores)
    return replace(
        kept,
        result=kept.result.model_copy(update={"trials": (trial,), "total_reward_ma": total}),
    )


def ma_cell(manifest, kept) -> str:
    return line_of(BenchmarkPage(manifest, {kept.result.row: kept}, **PLACES).text(), "PPO")[2]


def test_bold_takes_a_sure_interval_or_the_mean_of_four_sessions(manifest, kept):
    """The documents' best is 0.9."""
    assert ma_cell(manifest, scored(kept, 1.0, 1.0)) == "1.00 ± 0.00"  # two say little
    assert ma_cell(manifest, scored(kept, 0.95, 1.0, 0.8)).startswith("0.92 [0.8")  # not sure
    assert ma_cell(manifest, scored(kept, 0.95, 1.0, 0.9)).startswith("**0.95 [0.9")
    assert ma_cell(manifest, scored(kept, 1.0, 1.0, 1.0, 0.6)).startswith("**0.90 [0.")
    assert ma_cell(manifest, scored(kept, 1.0, 1.0, 1.0, 0.59)).startswith("0.90 [0.")


def test_a_seed_picked_by_hand_is_marked_never_bold_and_reaches_nothing(manifest, kept):
    by_hand = scored(kept, 1.0, 1.0, 1.0, 1.0, seed=0)
    text = BenchmarkPage(manifest, {kept.result.row: by_hand}, **PLACES).text()
    assert line_of(text, "PPO")[1:3] == ["✋", "1.00 [1.00, 1.00]"]
    assert line_of(text, "1")[-3:] == ["✋ 1", "✋ 1", "–"]


def test_sessions_below_half_of_the_way_from_random_to_the_goal_are_counted(manifest, kept):
    row = manifest.rows[0].model_copy(update={"env": "CartPole-v1", "bar": 400.0})
    # A random policy has 22.97: half of the way is 211.5.
    assert weak_sessions(row, scored(kept, 500, 212, 211, 22.97, 20).result) == 3
    unmeasured = row.model_copy(update={"env": "Unheard-of-v0", "bar": None, "best": None})
    assert weak_sessions(unmeasured, kept.result) is None
    weak = scored(kept, 0.5, 0.6, 0.7, 0.2)  # goal 0.5, from 0
    text = BenchmarkPage(manifest, {kept.result.row: weak}, **PLACES).text()
    assert line_of(text, "PPO")[3] == "4, IQM 0.55, worst 0.20, ⬇ 1 of 4"
    assert line_of(text, "1")[-1] == "0 of 1 rows"


def test_a_result_of_fewer_sessions_says_of_how_many(write_manifest, kept):
    more = load_manifest(write_manifest(trials=2))
    text = BenchmarkPage(more, {kept.result.row: kept}, **PLACES).text()
    assert line_of(text, "PPO")[3] == "2 of 4, IQM 0.62, worst 0.50"


def test_what_differs_from_the_documents_is_told_with_theirs_in_brackets(write_manifest):
    theirs = {"max_frame": 200, "num_envs": 8, "batch": 64, "updates_per_frame": 0.25}
    (row,) = load_manifest(write_manifest(documents=theirs)).rows
    # Rollouts of 2 x 16 rows in minibatches of 16, one epoch: 2 steps for 32 frames.
    expected = [
        "num_envs 2 (8)",
        "sessions 2 (4)",
        "batch 16 (64)",
        "updates_per_frame 0.0625 (0.25)",
    ]
    assert differences(row) == expected
    half = row.model_copy(update={"variables": {"meta.precision": "bfloat16"}})
    assert differences(half) == [*expected, "bf16"]


def test_variants_of_a_row_have_names_of_their_own(write_manifest):
    path = write_manifest()
    phase = yaml.safe_load(path.read_text())
    (row,) = phase["tables"][0]["rows"]
    phase["tables"][0]["rows"] = [row, {**row, "variant": "λ 0.85"}]
    path.write_text(yaml.safe_dump(phase))
    loaded = load_manifest(path)
    assert [r.id.rpartition("_")[2] for r in loaded.rows] == ["ppo", "0.85"]
    text = BenchmarkPage(loaded, {}, **PLACES).text()
    assert line_of(text, "PPO λ 0.85")[1] == "🔄"
    assert line_of(text, "probe/ActionMatters-v0")[1] == "🔄 🔄"


def test_a_best_of_a_later_document_is_marked(write_manifest, kept):
    later = load_manifest(write_manifest(best={"score": 0.9, "source": "R03"}))
    text = BenchmarkPage(later, {}, **PLACES).text()
    assert line_of(text, "PPO")[6] == "0.9 R03†"
    assert "| R03† |" in text


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
    doubled = replace(kept, returns=kept.returns * 2)
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
