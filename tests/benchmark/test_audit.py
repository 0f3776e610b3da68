"""Each way in which a result can be wrong has its own line; a good one has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slm_lab.benchmark import collect
from slm_lab.benchmark.collect import audit_result, audit_results
from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.result import read_results, write_result
from slm_lab.benchmark.table import BenchmarkPage

PAGE, PLOTS, RESULTS = Path("docs/B.md"), Path("docs/plots"), Path("res")
OLD_SHA = "f" * 40


@pytest.fixture
def folder(kept) -> Path:
    path: Path = RESULTS / kept.result.row
    write_result(kept, path)
    return path


def offences(folder: Path, manifest) -> str:
    return "\n".join(audit_result(folder, manifest))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def test_a_good_result_has_no_offence(folder, manifest):
    assert offences(folder, manifest) == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: r["provenance"].update(git_dirty=True), "code: the package differed"),
        (lambda r: r["provenance"].update(git_shas=[None]), "expected the commit that ran"),
        (lambda r: r["provenance"]["git_shas"].append(OLD_SHA), "code: 2 commits worked on it"),
        (lambda r: r["provenance"]["versions"].update({"slm-lab": "0.0.9"}), "slm-lab 0.0.9, the"),
        (lambda r: r["provenance"].update(mode="search"), "mode: is of `search`, expected train"),
        (lambda r: r.update(seed=4), "seed: the result has 4, the row 3"),
        (lambda r: r["sessions"].pop("1"), "sessions: found [0], expected [0, 1]"),
        (lambda r: r.update(total_reward_ma=0.7), "0.7 is not the mean of its sessions, 0.625"),
        (lambda r: r["sessions"].update({"0": 0.6}), "session 0: score 0.6, but its curve ends"),
        (lambda r: r.update(evaluation=None), "evaluation: missing"),
        (lambda r: r["evaluation"].update(episodes=10), "evaluation: of ('last', 'deterministic',"),
        (lambda r: r["evaluation"].update(agent="best"), "evaluation: of ('best'"),
        (lambda r: r.update(row="cartpole-v1_ppo"), "is the result of cartpole-v1_ppo"),
        (lambda r: r.update(typed_by_hand=1), "result.json: cannot be read"),
    ],
)
def test_a_tampered_result_is_caught(folder, manifest, change, told):
    edit(folder / "result.json", change)
    assert told in offences(folder, manifest)


def test_two_commits_of_the_same_code_are_one_version(folder, manifest, monkeypatch):
    edit(folder / "result.json", lambda r: r["provenance"]["git_shas"].append(OLD_SHA))
    monkeypatch.setattr(collect, "is_same_code", lambda *shas: OLD_SHA in shas)
    assert offences(folder, manifest) == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s["agent"]["algorithm"].update(gamma=0.5), "spec: agent.algorithm.gamma"),
        (lambda s: s["env"].update(max_frame=100), "max_frame: the spec has 100, the row 200"),
        (lambda s: s["meta"].update(max_session=1), "max_session: the spec has 1, the row 2"),
        (lambda s: s["meta"].update(random_seed=9), "spec: meta.random_seed: found 3, but the run"),
        (lambda s: s["env"].update(num_envs="many"), "spec.json: cannot be read"),
    ],
)
def test_a_spec_that_is_not_the_rows_is_caught(folder, manifest, change, told):
    edit(folder / "spec.json", change)
    assert told in offences(folder, manifest)


@pytest.mark.parametrize("name", ["plot.png", "curve.csv", "spec.json", "result.json"])
def test_a_missing_file_is_caught(folder, manifest, name):
    (folder / name).unlink()
    assert f"{name}: missing" in offences(folder, manifest)


def test_a_session_that_stopped_early_is_caught(folder, manifest):
    lines = (folder / "curve.csv").read_text().splitlines()
    lines[-1] = "200,,0.75"
    (folder / "curve.csv").write_text("\n".join(lines))
    assert "session 0 ends at frame 150 of 200" in offences(folder, manifest)


def test_two_sessions_are_enough_only_where_the_row_says_so(folder, write_manifest):
    strict = load_manifest(write_manifest(settings={"max_session": 4}))
    assert "sessions: found [0, 1], expected [0, 1, 2, 3]" in offences(folder, strict)


def test_a_folder_that_belongs_to_no_row_is_caught(folder, manifest):
    stray = folder.rename(RESULTS / "humanoid-v5_trpo")
    assert offences(stray, manifest) == "humanoid-v5_trpo: no row of the manifest has this name"


def test_the_page_and_its_plots_are_audited(folder, manifest):
    def page_offences() -> list[str]:
        return list(audit_results(manifest, RESULTS, page=PAGE, plots_dir=PLOTS))

    assert len(page_offences()) == 2  # neither page nor plot
    BenchmarkPage(manifest, read_results(RESULTS), PAGE, PLOTS, RESULTS).write()
    assert page_offences() == []
    PAGE.write_text(PAGE.read_text().replace("0.62", "0.99"))
    (by_hand,) = page_offences()
    assert "is not what the results give" in by_hand
    (PLOTS / "probe_ActionMatters-v0.png").unlink()
    assert "missing, or drawn from other curves" in page_offences()[0]
