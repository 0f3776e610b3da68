"""The card of a shared run: a README.md that says what was trained, how well, and how to use it."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from slm_lab.runs.catalog import read_run
from slm_lab.runs.files import read_text, write_or_warn
from slm_lab.runs.provenance import read_run_records
from slm_lab.runs.summary import RunSummary
from slm_lab.spec.run_folder import RunFolderError

CARD = "README.md"
MARK = "<!-- Written by slm-lab push, and anew by the next one. Remove this line to keep yours. -->"
HOME = "https://github.com/kengz/SLM-Lab"
MAX_BYTES = 100_000


def write_card(folder: Path) -> None:
    """Write the card of a run folder, unless somebody's own README stands there."""
    path = folder / CARD
    if os.path.lexists(path):
        try:
            is_ours = MARK in read_text(folder, path, MAX_BYTES)
        except RunFolderError:  # a link, say
            is_ours = False
        if not is_ours:
            return
    run = read_run(folder)
    if run.algorithm and run.env:  # else its spec cannot be read
        write_or_warn(folder, path, card(run))


def card(run: RunSummary) -> str:
    """The card as Markdown, with the tags that a hub reads at its top."""
    tags = ["reinforcement-learning", "slm-lab", run.algorithm, run.env]
    head = yaml.safe_dump({"library_name": "slm-lab", "tags": tags}, sort_keys=False)
    frames = f"{run.frame:,}" + (f" of {run.max_frame:,}" if run.max_frame else "")
    scores = {
        "return of the last 100 training episodes": run.last_100,
        "`total_reward_ma`, the mean over the last 100 rows of the curve": run.score,
        "return of episodes apart from training": run.evaluated,
        "target of the benchmark": run.target,
    }
    facts = {
        "algorithm": run.algorithm,
        "env": run.env,
        "frames of each session": frames,
        "sessions, each with its own seed": f"{run.finished} of {run.max_session} finished",
        **{name: f"{score:.2f}" for name, score in scores.items() if score is not None},
        "seed": "" if run.seed is None else str(run.seed),
        "commit of SLM Lab": run.git_sha,
        **_versions(run),
    }
    if run.kind == "search":
        facts["trials of the search"] = str(run.trials)
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value)
    name = run.folder.name
    return (
        f"---\n{head}---\n{MARK}\n\n# {name}\n\n"
        f"{_cell(run.algorithm)} on {_cell(run.env)}, trained with [SLM Lab]({HOME}).\n\n"
        f"| | |\n|---|---|\n{rows}\n\n"
        "Scores are means over the sessions; those of training have exploration in them.\n\n"
        f"    slm-lab pull {name}\n    slm-lab enjoy {name}      # replay it\n"
        f"    slm-lab eval {name}       # score it over fresh episodes\n\n"
        "The spec, `*_t0_spec.json`, trains it again: `slm-lab run FILE train`.\n"
    )


def _versions(run: RunSummary) -> dict[str, str]:
    """Versions of what shaped the results, as they were when the run was last trained."""
    records = read_run_records(run.layout.trial_provenance(run.trial), folder=run.folder)
    if not records:
        return {}
    found = records[-1].versions
    return {"versions": ", ".join(f"{name} {version}" for name, version in found.items())}


def _cell(text: str) -> str:
    """A text of a spec, which may have come from anywhere, as plain words of a table."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
