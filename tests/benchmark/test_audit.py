"""Each way in which a result can be wrong has its own line; a good one has none."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slm_lab.benchmark import audit
from slm_lab.benchmark.audit import HAND_PICKED, audit_result, audit_results
from slm_lab.benchmark.ledger import LEDGER
from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.result import read_results, write_result
from slm_lab.benchmark.table import BenchmarkPage
from tests.benchmark.conftest import enter_attempt

PAGE, PLOTS, RESULTS = Path("docs/B.md"), Path("docs/plots"), Path("res")
OLD_SHA = "f" * 40
SPEC = "tiny_actionmatters_spec.json"


@pytest.fixture
def folder(kept) -> Path:
    path: Path = RESULTS / kept.result.row
    enter_attempt(kept, RESULTS)
    write_result(kept, path)
    return path


def offences(folder: Path, manifest) -> str:
    return "\n".join(audit_result(folder, manifest))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def edit_trial(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    edit(path, lambda result: change(result["trials"][0]))


def test_a_good_result_has_no_offence(folder, manifest):
    assert offences(folder, manifest) == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t["provenance"].update(git_dirty=True), "code: the package differed"),
        (lambda t: t["provenance"].update(git_shas=[None]), "expected the commit that ran"),
        (lambda t: t["provenance"]["git_shas"].append(OLD_SHA), "code: 2 commits worked on it"),
        (lambda t: t["provenance"]["versions"].update({"slm-lab": "0.0.9"}), "slm-lab 0.0.9, the"),
        (lambda t: t["provenance"].update(mode="search"), "mode: is of `search`, expected train"),
        (lambda t: t.update(seed=4), "seed of trial 0: found 4, but the one derived from its spec"),
        (lambda t: t["sessions"].pop("1"), "sessions: found [0], expected [0, 1]"),
        (lambda t: t["sessions"].update({"0": 0.6}), "t0_s0: score 0.6, but its returns give 0.5"),
        (lambda t: t.update(folder="another_run"), "trial 0, another_run, did not finish there"),
        (lambda t: t["sessions"].update({"0": 0.50000001}), "has other seeds or scores there"),
        (lambda t: t.update(evaluation=None), "evaluation: missing"),
        (lambda t: t["evaluation"].update(episodes=10), "evaluation: of ('last', 'deterministic',"),
        (lambda t: t["evaluation"].update(agent="best"), "evaluation: of ('best'"),
    ],
)
def test_a_tampered_trial_is_caught(folder, manifest, change, told):
    edit_trial(folder / "result.json", change)
    assert told in offences(folder, manifest)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: r.update(total_reward_ma=0.7), "0.7 is not the mean of its sessions, 0.625"),
        (lambda r: r.update(row="cartpole-v1_ppo"), "is the result of cartpole-v1_ppo"),
        (lambda r: r.update(fingerprint="0" * 64), "spec: is not the one that ran"),
        (lambda r: r.update(typed_by_hand=1), "result.json: cannot be read"),
    ],
)
def test_a_tampered_result_is_caught(folder, manifest, change, told):
    edit(folder / "result.json", change)
    assert told in offences(folder, manifest)


def test_two_commits_of_the_same_code_are_one_version(folder, manifest, monkeypatch):
    edit_trial(folder / "result.json", lambda t: t["provenance"]["git_shas"].append(OLD_SHA))
    monkeypatch.setattr(audit, "is_same_code", lambda *shas: OLD_SHA in shas)
    assert offences(folder, manifest) == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s["agent"]["algorithm"].update(gamma=0.5), "spec: is not the one that ran"),
        (lambda s: s["env"].update(max_frame=100), "spec: is not the one that ran"),
        (lambda s: s["meta"].update(max_session=1), "sessions: found [0, 1], expected [0]"),
        (lambda s: s["env"].update(num_envs="many"), f"{SPEC}: cannot be read"),
    ],
)
def test_a_spec_that_did_not_run_is_caught(folder, manifest, change, told):
    edit(folder / SPEC, change)
    assert told in offences(folder, manifest)


def test_a_spec_that_has_changed_since_is_told_and_is_no_offence(folder, write_manifest):
    changed = load_manifest(write_manifest(variables={"agent.algorithm.gamma": 0.5}))
    (told,) = audit_result(folder, changed)
    assert told.startswith("note: ")
    assert "of another spec than today's (agent.algorithm.gamma)" in told


@pytest.mark.parametrize("name", ["plot.png", "returns.csv.gz", SPEC])
def test_a_missing_file_is_caught(folder, manifest, name):
    (folder / name).unlink()
    assert "missing" in offences(folder, manifest)


def test_a_ledger_alone_is_a_row_that_was_tried_and_an_empty_folder_is_none(folder, manifest):
    (folder / "result.json").unlink()
    assert offences(folder, manifest) == ""
    (folder / LEDGER).unlink()
    assert "result.json: missing" in offences(folder, manifest)


def test_returns_that_were_edited_are_caught(folder, manifest):
    path = folder / "returns.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert lines[-1] == "200,0.5,1"
    path.write_bytes(gzip.compress("\n".join([*lines[:-1], "200,0.9,1", ""]).encode()))
    # (0.25 + 0.5 + 0.75 + 0.9) / 4
    assert "t0_s0: score 0.5, but its returns give 0.6" in offences(folder, manifest)
    path.write_bytes(gzip.compress("\n".join([*lines[:-1], "200,,1", ""]).encode()))
    assert "session t0_s0 ends at frame 150 of 200" in offences(folder, manifest)


def test_fewer_sessions_than_the_row_asks_for_are_no_offence(folder, write_manifest):
    """The page says so; the first sessions are the same as those of a whole result."""
    more = load_manifest(write_manifest(trials=2))
    assert offences(folder, more) == ""


def test_a_folder_that_belongs_to_no_row_is_caught(folder, manifest):
    stray = folder.rename(RESULTS / "humanoid-v5_trpo")
    assert offences(stray, manifest) == "humanoid-v5_trpo: no row of the manifest has this name"


# The ledger, and results of before there was one


def test_a_result_whose_attempt_is_missing_from_the_ledger_is_caught(folder, manifest):
    (folder / LEDGER).unlink()
    assert "did not finish there" in offences(folder, manifest)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[1:], "line 1 has the number 2"),
        (lambda lines: [lines[0].replace("2026", "2025"), lines[1]], "line 2 does not follow"),
        (lambda lines: [lines[0], "{}"], "line 2: not an entry of a ledger"),
        (lambda lines: lines[:1], "did not finish there"),
    ],
)
def test_a_ledger_with_a_gap_is_caught(folder, manifest, change, told):
    path = folder / LEDGER
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    assert told in offences(folder, manifest)


def test_a_seed_picked_by_hand_is_a_note_for_the_results_that_are_listed_and_no_others(
    folder, manifest
):
    edit_trial(folder / "result.json", lambda t: t.update(seed=0))
    assert "seed of trial 0: found 0" in offences(folder, manifest)
    digest = hashlib.sha256((folder / "result.json").read_bytes()).hexdigest()
    (RESULTS / HAND_PICKED).write_text(json.dumps({folder.name: digest}))
    assert offences(folder, manifest) == f"note: {folder.name}: seed 0 was picked by hand, " + (
        "run it again"
    )
    edit_trial(folder / "result.json", lambda t: t.update(seed=1))  # a new one is not excused
    assert "seed of trial 0: found 1" in offences(folder, manifest)


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


def test_one_result_that_cannot_be_read_hides_no_other(folder, manifest):
    damaged = RESULTS / "a_damaged_one"
    damaged.mkdir()
    (damaged / "result.json").write_text("{}")
    edit_trial(folder / "result.json", lambda t: t.update(folder="x"))
    told = "\n".join(audit_results(manifest, RESULTS, page=PAGE, plots_dir=PLOTS))
    assert "a_damaged_one" in told
    assert f"{folder.name}: ledger: trial 0, x, did not finish there" in told
