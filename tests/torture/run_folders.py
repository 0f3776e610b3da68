"""Copies of real run folders, to be damaged: a finished run, a half-done one, a search."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import save_spec
from slm_lab.runs.search_journal import Journal, TrialReport
from slm_lab.spec import spec_from_dict
from tests.torture.material import half_done, once, reference, spec_of

# A replay with priorities, and one with statistics; in the half-done one chunks of its rows.
FINISHED, HALF = "PPO", "DDQN+PER"
KINDS = ("finished", "half", "search")
OTHER = Path("data") / "other_2026_01_01_000000"


def copy_run(kind: str, scratch: Path, material: Path) -> Path:
    """Copy a run into `scratch`, with tiny.json beside data/; the path is relative to `scratch`.

    Beside it `OTHER` is a finished run, to compare with.
    """
    whole = reference(FINISHED, material).run
    source = {
        "finished": lambda: whole.parents[1],
        "half": lambda: half_done(HALF, material),
        "search": lambda: once(material / "search", _build_search),
    }[kind]()
    shutil.copy(source / "tiny.json", scratch / "tiny.json")
    shutil.copytree(source / "data", scratch / "data")
    shutil.copytree(whole, scratch / OTHER)
    (run,) = (path for path in (scratch / "data").iterdir() if path.name != OTHER.name)
    return run.relative_to(scratch)


def _build_search(folder: Path) -> None:
    """A search of three trials, as it is while it runs."""
    tree = spec_of(FINISHED).to_dict() | {
        "search": {"agent.algorithm.gamma__uniform": [0.8, 0.99]},
    }
    spec = spec_from_dict(tree, "tiny").with_values({"meta.max_trial": 3})
    (folder / "tiny.json").write_text(json.dumps({"tiny": spec.to_dict()}))
    layout = RunLayout.create("tiny", "2026_01_01_000001", folder / "data")
    save_spec(spec, layout.spec_path(), layout, -1, "2026_01_01_000001", 0)
    journal = Journal(layout.journal_path())
    for trial in range(3):
        gamma = 0.85 + 0.05 * trial
        save_spec(
            spec.with_values({"agent.algorithm.gamma": gamma}),
            layout.trial_spec_path(trial),
            layout,
            trial,
            "2026_01_01_000001",
            0,
        )
        journal.start(trial, {"agent.algorithm.gamma": trial / 3}, {"agent.algorithm.gamma": gamma})
        for frame in (100, 200):
            journal.report(trial, TrialReport(frame, 10.0 * trial, 1.5))
    for trial in range(2):
        journal.end(trial, "completed", 20.0 * trial)
