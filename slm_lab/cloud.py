"""Runs on rented machines through dstack; imports no torch.

The task is built from a file in `.dstack/`; `.dstack/start.sh` runs on the machine. The package is
taken from its git repository, at the commit and with the local changes, where there is a remote
branch to clone from; else as files, where it is a checkout; else as the installed version, from the
package index. A spec file that does not ship with the package travels beside it.

dstack is called by its command line, which also works when installed apart (`uv tool`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from slm_lab.error import LabError
from slm_lab.runs.own_modules import own_modules
from slm_lab.runs.provenance import PACKAGE_ROOT, git, git_sha
from slm_lab.spec import Spec, find_spec_file, packaged_spec_dir
from slm_lab.spec.run_folder import run_place

ON_MACHINE = "/slm-lab"
# All envs except JAX and MuJoCo Playground, which are large.
EXTRAS = ("atari", "box2d", "envpool", "mujoco", "remote", "search")
# Listed one by one, because dstack takes at most 2 MB per entry.
CHECKOUT = ("slm_lab/*", ".dstack", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
# https://host/owner/name, ssh://git@host/owner/name or git@host:owner/name
SERVER_ADDRESS = re.compile(r"(https?|ssh|git)://|[\w.-]+@[\w.-]+:")
RUN_NAME = r"[a-z][a-z0-9-]{1,40}"  # what dstack accepts
MODES = ("train", "search", "dev")
SECONDS = 120  # for one command; submitting includes an upload
NO_OFFERS = "No matching instance offers"  # what dstack says
FINISHED = ("terminated", "failed", "done")
ADD_PROJECT = "dstack project add --name PROJECT --url URL --token TOKEN"


class CloudError(LabError):
    """No run was submitted; the message has the reason and commands that fix it."""


@dataclass(frozen=True, slots=True)
class Code:
    """Files and packages that the task brings along, in terms of a dstack configuration."""

    package: str  # what pip installs there
    spec_file: str
    git_sha: str = ""
    repo: str = ""  # folder of the git repository to clone there
    files: dict[str, str] = field(default_factory=dict)  # path here: path there


def pack(spec_file: str, spec: Spec) -> Code:
    """Choose the way in which the code reaches the machine, see above."""
    root, repo = PACKAGE_ROOT, ""
    large = ("playground",) if spec.env.name.startswith("playground/") else ()
    extras = ",".join((*EXTRAS, *large))
    files, path = _spec_file(spec_file)
    for module in own_modules(spec):
        files[str(module)] = f"{ON_MACHINE}/own/{module.name}"
    if not (root / "pyproject.toml").is_file():
        package = f"slm-lab[{extras}]=={version('slm-lab')}"
    elif _has_remote_branch(root):
        repo, package = str(root), f".[{extras}]"
    else:
        package = f"{ON_MACHINE}/code[{extras}]"
        files |= {
            str(path): f"{ON_MACHINE}/code/{path.relative_to(root).as_posix()}"
            for pattern in CHECKOUT
            for path in sorted(root.glob(pattern))
            if path.name != "__pycache__"
        }
    return Code(package, path, git_sha() or "", repo, files)


def _spec_file(spec_file: str) -> tuple[dict[str, str], str]:
    """(files to send, path of the spec file there)."""
    path = find_spec_file(spec_file).resolve()
    if path.is_relative_to(packaged_spec_dir()):
        return {}, path.relative_to(packaged_spec_dir()).as_posix()
    there = f"{ON_MACHINE}/own/{path.name}"
    return {str(path): there}, there


def _has_remote_branch(root: Path) -> bool:
    """Whether dstack can clone the repository: it needs a branch that tracks one on a server."""
    top = git("rev-parse", "--show-toplevel", root=root) or ""
    upstream = git("rev-parse", "--symbolic-full-name", "HEAD@{upstream}", root=root) or ""
    if Path(top) != root or not upstream.startswith("refs/remotes/"):
        return False
    remote = upstream.removeprefix("refs/remotes/").partition("/")[0]
    # A path or file:// is a folder of this machine; dstack can clone only from servers.
    address = git("remote", "get-url", remote, root=root) or ""
    return SERVER_ADDRESS.match(address) is not None


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
            found = f"found {self.max_hours:g} hours; expected a minute or more"
            raise CloudError(f"--max-duration: {found}.")

    @property
    def folder(self) -> str:
        """Name of the run folder, known before the start: the next machine can resume it."""
        return f"{self.run_name}_{self.timestamp}"

    @property
    def file_name(self) -> str:
        machine = "gpu" if self.gpu else "cpu"
        return f"run-{machine}-{'search' if self.mode == 'search' else 'train'}.yml"


def find_configuration(file_name: str) -> Path:
    """Path of a file of `.dstack/`: the user's, else the repository's, else the package's."""
    own = Path(".dstack")
    folders = [own] * (run_place(own) is None)  # never one that came with a run folder
    folders += [PACKAGE_ROOT / ".dstack", PACKAGE_ROOT / "slm_lab" / "dstack_files"]
    for folder in folders:
        if (folder / file_name).is_file():
            return folder / file_name
    raise CloudError(f".dstack/{file_name}: not found, neither here nor with slm_lab.")


def build_task(run: RemoteRun, code: Code, environ: Mapping[str, str]) -> dict[str, Any]:
    """Configuration for dstack. Only variables that describe the run have values in it: dstack
    reads the others from the environment when it submits, so a token is never written down."""
    path = find_configuration(run.file_name)
    try:
        task = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CloudError(f"{path}: cannot be read. {error}") from None
    if not isinstance(task, dict) or task.get("type") != "task":
        raise CloudError(f"{path}: expected a dstack configuration with `type: task`.")
    task = {"type": "task", "name": run.name, **task}
    task["env"] = _env(task.get("env", []), path, _described(run, code), environ)
    own = [{"local_path": here, "path": there} for here, there in code.files.items()]
    task["files"] = [_absolute(entry, path.parent) for entry in task.get("files", [])] + own
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


def check_ready(name: str, *, gpu: bool, again: str) -> None:
    """Raise CloudError unless a project answers, has a fleet, and no run of this name is active.
    `again` is the user's command, to be repeated after the fix."""
    fleets = _run("fleet")
    if fleets.returncode:
        said = (fleets.stdout + fleets.stderr).strip() or f"exit code {fleets.returncode}"
        problem = f"no dstack project answers ({said.splitlines()[-1].strip()})."
        raise CloudError(_fix(problem, ADD_PROJECT, "dstack project list"))
    if len(fleets.stdout.strip().splitlines()) <= 1:  # the head of the table alone
        file = find_configuration(f"fleet-{'gpu' if gpu else 'cpu'}.dstack.yml")
        # dstack reads no file outside the working directory by its name.
        source = f"- < {shlex.quote(str(file))}" if file.is_absolute() else str(file)
        problem = "the dstack project has no fleet, so no machine to run on."
        raise CloudError(_fix(problem, f"dstack apply -y -f {source}", again))
    status = _status(name)
    if status and status not in FINISHED:
        problem = f"a run `{name}` is {status} already. Choose another name with -n, or stop it:"
        raise CloudError(_fix(problem, f"dstack stop {name} -y", again))


def submit(configuration: str) -> str:
    """Submit the YAML detached; dstack takes the values of bare variables from this environment."""
    done = _run("apply", "-f", "-", "-y", "-d", stdin=configuration)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise CloudError(f"dstack refused the run:\n{said}")
    return done.stdout.strip()


def _status(name: str) -> str:
    """Status of the run of that name; empty if there is none."""
    done = _run("run", "get", name, "--json")
    if done.returncode:
        return ""
    try:
        return str(json.loads(done.stdout)["status"])
    except (ValueError, KeyError, TypeError):
        return ""


def _run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).with_name("dstack")
    dstack = str(beside) if beside.is_file() else shutil.which("dstack")
    if not dstack:
        install = "pip install 'slm-lab[remote]'"
        raise CloudError(_fix("dstack is not installed.", install, ADD_PROJECT))
    try:
        return subprocess.run(
            [dstack, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},  # one line per row, no colours
        )
    except subprocess.TimeoutExpired:
        command = " ".join(("dstack", *arguments))
        raise CloudError(f"`{command}` has not answered for {SECONDS} seconds.") from None


def _fix(problem: str, *commands: str) -> str:
    return "\n".join([problem[0].upper() + problem[1:], *(f"  {command}" for command in commands)])
