"""The spec that a run saves: what it was given, and what tells this run from others."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.options import RunOptions
from slm_lab.spec import Spec


def save_spec(
    spec: Spec, path: Path, layout: RunLayout, trial: int, timestamp: str, options: RunOptions
) -> None:
    tree = spec.to_dict()
    tree["name"] = spec.name
    tree["meta"] |= {
        "experiment": 0,
        "trial": trial,
        "session": -1,
        "cuda_offset": options.cuda_offset,
        "resume": False,
        "experiment_ts": timestamp,
        "git_sha": git_sha(),
        "predir": layout.predir.as_posix(),
    }
    path.write_text(json.dumps(tree, indent=2) + "\n")


def git_sha() -> str | None:
    """Commit of the code that runs, if it runs from a checkout."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SLM_LAB_GIT_SHA")
    top, sha = done.stdout.splitlines()
    # An installed copy may lie in the repository of somebody else, inside its virtual environment.
    return sha if Path(top) == root else os.environ.get("SLM_LAB_GIT_SHA")
