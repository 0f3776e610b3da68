"""Build the dstack task of a run from a file of `.dstack/`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slm_lab.cloud.code import Code
from slm_lab.cloud.error import CloudError
from slm_lab.spec.run_folder import run_place

RUN_NAME = r"[a-z][a-z0-9-]{1,40}"  # what dstack accepts
MODES = ("train", "search", "dev")


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """The run that the command line asked for."""

    name: str
    spec_name: str
    run_name: str  # begins the run folder's name: SPEC_NAME, perhaps with an env
    mode: str
    timestamp: str
    sets: Sequence[str] = ()
    gpu: bool = False
    profile: bool = False
    max_hours: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(RUN_NAME, self.name):
            raise CloudError(
                f"--name: found `{self.name}`; expected small letters, digits and hyphens, a "
                "letter first, 2 to 41 of them. Give one with -n NAME."
            )
        if self.mode not in MODES:
            raise CloudError(
                f"MODE: found `{self.mode}`; expected {', '.join(MODES)}. A remote run that is "
                "interrupted goes on by itself."
            )
        if self.max_hours is not None and self.max_hours * 60 < 1:
            raise CloudError(
                f"--max-duration: found {self.max_hours:g} hours; expected a minute or more."
            )

    @property
    def folder(self) -> str:
        """Name of the run folder, chosen before the start: after an interruption the next machine
        resumes that folder of the hub, and the user knows which one to pull."""
        return f"{self.run_name}_{self.timestamp}"

    @property
    def file_name(self) -> str:
        machine = "gpu" if self.gpu else "cpu"
        return f"run-{machine}-{'search' if self.mode == 'search' else 'train'}.yml"


def find_configuration(file_name: str) -> Path:
    """Path of a file of `.dstack/`: the user's, else the repository's, else the package's."""
    package = Path(__file__).resolve().parents[1]
    own = Path(".dstack")
    folders = [own] * (run_place(own) is None)  # never one that came with a run folder
    for folder in (*folders, package.parent / ".dstack", package / "dstack_files"):
        if (folder / file_name).is_file():
            return folder / file_name
    raise CloudError(f".dstack/{file_name}: not found, neither here nor with slm_lab.")


def build_task(run: RemoteRun, code: Code, environ: Mapping[str, str]) -> dict[str, Any]:
    """Configuration for dstack.

    Only variables that describe the run have values in it. Others stand there by name, and dstack
    reads their values from the environment when it submits, so a token is never written down.
    """
    path = find_configuration(run.file_name)
    try:
        task = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CloudError(f"{path}: cannot be read. {error}") from None
    if not isinstance(task, dict) or task.get("type") != "task":
        raise CloudError(f"{path}: expected a dstack configuration with `type: task`.")
    task = {"type": "task", "name": run.name, **task}
    task["env"] = _env(task.get("env", []), path, _described(run, code), environ)
    files = [_absolute(entry, path.parent) for entry in task.get("files", [])]
    task["files"] = files + [
        {"local_path": here, "path": there} for here, there in code.files.items()
    ]
    if code.repo:
        task["repos"] = [code.repo]
    if run.max_hours is not None:
        task["max_duration"] = f"{round(run.max_hours * 60)}m"
    return task


def to_yaml(task: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(task), sort_keys=False, width=1000, allow_unicode=True))


def missing_token(task: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Reason why the results would be lost with the machine; empty if they reach the hub."""
    is_folder = environ.get("HF_REPO", "").startswith("file:")
    if is_folder or environ.get("HF_TOKEN") or "HF_TOKEN" not in task["env"]:
        return ""
    return (
        "HF_TOKEN: not set, and without it the results cannot leave the machine. Put a line "
        "HF_TOKEN=... into .env, or `export HF_TOKEN=...`."
    )


def _described(run: RemoteRun, code: Code) -> dict[str, str]:
    flags = [word for assignment in run.sets for word in ("-s", assignment)]
    values = {
        "SPEC_FILE": code.spec_file,
        "SPEC_NAME": run.spec_name,
        "LAB_MODE": "dev" if run.profile else run.mode,
        "SPEC_VARS": shlex.join(flags).replace("\n", "'$'\\n''"),  # dstack wants one line
        "RUN_FOLDER": run.folder,
        "RUN_TIMESTAMP": run.timestamp,
        "SLM_LAB_PACKAGE": code.package,
        "SLM_LAB_GIT_SHA": code.git_sha,
        "PROFILE": "true" if run.profile else "",
    }
    # dstack replaces ${{ secrets.NAME }} in values, and reads $$ as a dollar.
    return {name: value.replace("$", "$$") for name, value in values.items()}


def _env(
    listed: Any, path: Path, described: Mapping[str, str], environ: Mapping[str, str]
) -> list[str]:
    """Variables of the file: those of the run with values, others by name if they are set."""
    if isinstance(listed, Mapping):
        listed = [f"{name}={value}" for name, value in listed.items()]
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise CloudError(f"{path}: env: expected a list of NAME or NAME=VALUE.")
    names = {entry.partition("=")[0] for entry in listed}
    lacking = [name for name in described if name not in names]
    env = []
    for entry in [*listed, *lacking]:
        if "=" in entry:
            env.append(entry)
        elif entry in described:
            if described[entry]:
                env.append(f"{entry}={described[entry]}")
        elif entry in environ or entry == "HF_TOKEN":
            env.append(entry)
    return env


def _absolute(entry: Any, folder: Path) -> Any:
    """A file mapping whose local path no longer depends on where the configuration lies."""
    if isinstance(entry, str):
        here, colon, there = entry.partition(":")
        return f"{(folder / Path(here).expanduser()).resolve()}{colon}{there}"
    if isinstance(entry, Mapping) and "local_path" in entry:
        path = (folder / Path(entry["local_path"]).expanduser()).resolve()
        return {**entry, "local_path": str(path)}
    return entry
