"""Pack the code and the spec file for the remote machine.

The package: from its git repository, at the commit and with the local changes, where there is a
remote branch to clone from; else as files, where it is a checkout; else as the installed version,
from the package index. A spec file that does not ship with the package travels beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from slm_lab.runs.provenance import git, git_sha
from slm_lab.spec import Spec, find_spec_file, packaged_spec_dir

ON_MACHINE = "/slm-lab"
# All envs except JAX and MuJoCo Playground, which are large.
EXTRAS = ("atari", "box2d", "envpool", "mujoco", "remote", "search")
# Listed one by one, because dstack takes at most 2 MB per entry.
CHECKOUT = ("slm_lab/*", ".dstack", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
# https://host/owner/name, ssh://git@host/owner/name or git@host:owner/name
SERVER_ADDRESS = re.compile(r"(https?|ssh|git)://|[\w.-]+@[\w.-]+:")


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
    root = Path(__file__).resolve().parents[2]
    extras = ",".join((*EXTRAS, *_large_extras(spec)))
    files, path = _spec_file(spec_file)
    files |= _env_module(spec)
    repo = ""
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


def _large_extras(spec: Spec) -> tuple[str, ...]:
    return ("playground",) if spec.env.name.startswith("playground/") else ()


def _spec_file(spec_file: str) -> tuple[dict[str, str], str]:
    """(files to send, path of the spec file there)."""
    path = find_spec_file(spec_file).resolve()
    if path.is_relative_to(packaged_spec_dir()):
        return {}, path.relative_to(packaged_spec_dir()).as_posix()
    there = f"{ON_MACHINE}/own/{path.name}"
    return {str(path): there}, there


def _env_module(spec: Spec) -> dict[str, str]:
    """The module in the working directory that `env.name: my_module:MyEnv-v0` imports, if any."""
    module, colon, _ = spec.env.name.partition(":")
    if not colon or not re.fullmatch(r"\w+(\.\w+)*", module):
        return {}
    top = module.partition(".")[0]
    found = [path for path in (Path(f"{top}.py"), Path(top)) if path.exists()]
    return {str(path.resolve()): f"{ON_MACHINE}/own/{path.name}" for path in found[:1]}


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
