"""What is committed: small, whole, and the page is what it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from slm_lab.benchmark import PAGE, PLOTS_DIR, RESULTS_DIR
from slm_lab.benchmark.audit import NOTE, audit_results
from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.result import POLICY_BYTES, read_results

ROOT = Path(__file__).parents[2]
MAX_BYTES = POLICY_BYTES + 100_000


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_results_of_a_row_are_small():
    kept = read_results(RESULTS_DIR)
    assert kept
    for name in kept:
        size = sum(path.stat().st_size for path in (RESULTS_DIR / name).rglob("*"))
        assert size < MAX_BYTES, name


def test_every_result_and_the_page_pass_the_audit():
    """After a change of a spec write the page: a result of another spec leaves the table."""
    manifest = load_manifest()
    offences = audit_results(manifest, RESULTS_DIR, page=PAGE, plots_dir=PLOTS_DIR)
    assert [text for text in offences if not text.startswith(NOTE)] == []


def test_no_result_holds_a_path_of_the_machine_it_was_made_on():
    for path in RESULTS_DIR.rglob("*.json"):
        assert '"/' not in path.read_text(), path
