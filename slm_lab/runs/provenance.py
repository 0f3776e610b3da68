"""Provenance of a run: its saved spec, and which processes and code worked on its folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import yaml
from loguru import logger

from slm_lab.runs.files import read_json, write_atomic
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.trust import find_module, named_modules

PACKAGES = ("slm-lab", "torch", "numpy", "gymnasium")
ENV_PACKAGES = ("envpool", "mujoco", "ale-py", "Box2D")
PACKAGE_FOLDER = "slm_lab"
MAX_RECORD_BYTES = 1_000_000
PACKAGE_ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package slm_lab


def save_spec(
    spec: Spec, path: Path, layout: RunLayout, trial: int, timestamp: str, cuda_offset: int
) -> None:
    tree = spec.to_dict()
    tree["name"] = spec.name
    tree["meta"] |= {
        "experiment": 0,
        "trial": trial,
        "session": -1,
        "cuda_offset": cuda_offset,
        "resume": False,
        "experiment_ts": timestamp,
        "git_sha": git_sha(),
        "predir": layout.predir.as_posix(),
    }
    copy = path.with_suffix(".yaml")
    try:
        write_atomic(layout.predir, path, json.dumps(tree, indent=2) + "\n")
        if spec.is_yaml or copy.exists():
            note = f"# Copy of {path.name}, to be read by people; commands read that file.\n"
            write_atomic(layout.predir, copy, note + yaml.safe_dump(tree, sort_keys=False))
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}). A run needs a folder that can be "
            "written to, on a disk with space."
        ) from None


@dataclass(slots=True)
class RunRecord:
    """Record of one process that worked on a trial, from its start or resume to its end.

    `end` is "finished", "stopped" or "failed: ..."; a process that was killed leaves "died" and no
    times. `cpu_seconds` are those of the sessions: far fewer than `seconds` on every core means
    that the machine did other work. `git_dirty` is None where there is no checkout. `modules` are
    those that the spec names, each with file and SHA-256. `precision` is what the machine computed
    in, which may be less than the spec asks for.
    """

    mode: str
    git_sha: str | None = None
    git_dirty: bool | None = None
    versions: dict[str, str] = field(default_factory=dict)
    cores: int = 1
    machine: str = ""
    started: str = ""
    seconds: float | None = None
    cpu_seconds: float | None = None
    end: str = "died"
    modules: dict[str, dict[str, str]] = field(default_factory=dict)
    init_from: dict[str, Any] | None = None  # folder, and by session what was taken from it
    extended_from: int | None = None  # frames, where this one gave the run more
    stop_reasons: dict[str, str] = field(default_factory=dict)  # of callbacks, by session
    precision: str | None = None


@contextmanager
def recorded_run(
    path: Path,
    mode: str,
    cores: int,
    *,
    folder: Path,
    spec: Spec | None = None,
    precision: str | None = None,
) -> Iterator[RunRecord]:
    """Add a record to the file `path` in a run folder; the caller sets its `end`."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    known = versions(*PACKAGES, *ENV_PACKAGES)
    this = RunRecord(mode, git_sha(), git_dirty(), known, cores, platform.machine(), started)
    this.modules = {} if spec is None else module_hashes(spec)
    this.precision = precision
    before = read_run_records(path, folder=folder)
    if before:
        warn_of_changed_modules(before[-1], this)
    _write_records(folder, path, [*before, this])
    start, cpu_start = time.monotonic(), _cpu_seconds()
    try:
        yield this
    finally:
        this.seconds = round(time.monotonic() - start, 1)
        this.cpu_seconds = round(_cpu_seconds() - cpu_start, 1)
        _write_records(folder, path, [*before, this])


def read_run_records(path: Path, *, folder: Path | None = None) -> list[RunRecord]:
    """Records of a trial, oldest first; none if the file is missing or not ours."""
    try:
        content = read_json(folder or path.parent, path, MAX_RECORD_BYTES)
        entries: list[dict[str, Any]] = content["sittings"]
        known = {each.name for each in fields(RunRecord)}
        records = [RunRecord(**{k: v for k, v in entry.items() if k in known}) for entry in entries]
        for record in records:
            record.modules = dict(record.modules)  # whatever the file holds
        return records
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _write_records(folder: Path, path: Path, records: list[RunRecord]) -> None:
    text = json.dumps({"sittings": [asdict(each) for each in records]}, indent=2)
    with suppress(OSError):  # a full disk costs the record, never the run
        write_atomic(folder, path, text + "\n")


def _cpu_seconds() -> float:
    """CPU time of this process and of the processes it has waited for."""
    used = psutil.Process().cpu_times()
    return float(used.user + used.system + used.children_user + used.children_system)


@cache
def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the installed packages; by default those that shape results."""
    found = {"python": platform.python_version()}
    for package in packages or PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout
            continue
    return found


def git_sha() -> str | None:
    """Commit of the running code, if it runs from a checkout."""
    top, _, sha = (git("rev-parse", "--show-toplevel", "HEAD") or "").partition("\n")
    # An installed copy may lie in somebody else's repository, inside its virtual environment.
    return sha if Path(top) == PACKAGE_ROOT else os.environ.get("SLM_LAB_GIT_SHA")


def git_dirty() -> bool | None:
    """Whether the package differs from its commit; other files of the repository may."""
    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top) != PACKAGE_ROOT:
        return None
    changes = git("status", "--porcelain", "--", PACKAGE_FOLDER)
    return None if changes is None else bool(changes)


def is_same_code(*shas: str) -> bool:
    """Whether these commits hold the same Python code of the package; one that is not in this
    repository is different. Specs are no code: a run keeps its own."""
    code = f"{PACKAGE_FOLDER}/*.py"
    return all(git("diff", "--quiet", shas[0], sha, "--", code) is not None for sha in shas)


def git(*arguments: str, root: Path | None = None) -> str | None:
    """Output of a git command in `root`, by default that of the package; None if it fails."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=root or PACKAGE_ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def module_hashes(spec: Spec) -> dict[str, dict[str, str]]:
    """File and SHA-256 of every module that a spec names, by its name."""
    hashes = {}
    for module in named_modules(spec):
        found = find_module(module)
        if found is None or found.file is None:
            continue
        with suppress(OSError):
            code = found.file.read_bytes()
            # No path beyond the working directory: a run folder may be shared.
            inside = found.file.is_relative_to(Path.cwd())
            name = found.file.relative_to(Path.cwd()).as_posix() if inside else found.file.name
            hashes[module] = {"file": name, "sha256": hashlib.sha256(code).hexdigest()}
    return hashes


def warn_of_changed_modules(before: RunRecord, now: RunRecord) -> None:
    """Warn of code of the user's own that has changed since a run was last trained."""
    for module, entry in now.modules.items():
        then = before.modules.get(module)
        if isinstance(then, dict) and then.get("sha256") != entry["sha256"]:
            logger.warning(
                f"{entry['file']}: the module `{module}` has changed since this run was last "
                "trained, so that its parts come from different code. To go on with the code as it "
                "was, stop, restore the file and resume again."
            )
