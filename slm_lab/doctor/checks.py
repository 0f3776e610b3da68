"""The checks of `slm-lab doctor`. None needs the network or waits long for it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from slm_lab.cloud import ADD_PROJECT
from slm_lab.doctor.probes import Finding, Status
from slm_lab.training.executors.local import available_cores

NET_SECONDS = 3.0
PROBE_SECONDS = 120.0  # a bound for a machine that is busy; an idle one takes some seconds
LOW_DISK, NO_DISK = 5e9, 2e8
OLDEST_PYTHON = (3, 11)
PACKAGES = ("slm-lab", "gymnasium", "numpy", "pandas", "pydantic")
NOT_EXTRAS = ("all", "dev")


def examine(data_dir: Path = Path("data")) -> list[Finding]:
    """Run all checks at the same time."""
    checks: list[Callable[[], list[Finding]]] = [
        check_versions,
        check_cores,
        lambda: run_probe("torch"),
        check_extras,
        lambda: run_probe("envs"),
        lambda: check_data(data_dir),
        lambda: check_hub(os.environ),
        lambda: check_dstack(os.environ),
    ]
    with ThreadPoolExecutor(len(checks)) as pool:
        return [finding for found in pool.map(lambda check: check(), checks) for finding in found]


def check_versions() -> list[Finding]:
    version = platform.python_version()
    python = Finding("python", "ok", f"{version} at {sys.executable}")
    if sys.version_info < OLDEST_PYTHON:
        python = Finding("python", "fail", version, "install Python 3.11 or newer")
    versions = {package: _version(package) for package in PACKAGES}
    found = (f"{name} {v}" if v else f"{name}: not installed" for name, v in versions.items())
    return [python, Finding("packages", "ok", ", ".join(found))]


def check_cores() -> list[Finding]:
    usable, there = available_cores(), os.cpu_count() or 1
    limit = _cgroup_cores()
    found = f"{usable} of {there} usable; as many sessions run at once"
    if limit is not None and limit < usable:
        found = f"{found}, but the container may use {limit:g}"
        fix = f"start under `taskset -c 0-{max(0, int(limit) - 1)}`, or raise the container's limit"
        return [Finding("cores", "warn", found, fix)]
    return [Finding("cores", "ok", found)]


def check_extras() -> list[Finding]:
    findings = []
    for extra, packages in sorted(extras().items()):
        if missing := [package for package in packages if _version(package) is None]:
            found, fix = f"{', '.join(missing)} not installed", f"pip install 'slm-lab[{extra}]'"
            findings.append(Finding(f"extra {extra}", "warn", found, fix))
        else:
            found = ", ".join(f"{package} {_version(package)}" for package in packages)
            findings.append(Finding(f"extra {extra}", "ok", found))
    return findings


def extras() -> dict[str, list[str]]:
    """The packages of each extra, as the project declares them."""
    declared: dict[str, set[str]] = {}
    for extra, requirement in _requirements():
        if extra not in NOT_EXTRAS:
            declared.setdefault(extra, set()).update(_packages(requirement))
    return {extra: sorted(packages) for extra, packages in declared.items()}


def _packages(text: str) -> Iterator[str]:
    """Packages of a requirement: of `gymnasium[box2d]`, those that Gymnasium needs for Box2D."""
    requirement = Requirement(text)
    if not requirement.extras or _version(requirement.name) is None:
        yield requirement.name
        return
    for line in metadata.requires(requirement.name) or ():
        further, marker = Requirement(line), Requirement(line).marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue  # the package itself needs it
        if any(marker.evaluate({"extra": extra}) for extra in requirement.extras):
            yield further.name


def check_data(data_dir: Path) -> list[Finding]:
    """Disk space and write access of the folder of runs."""
    place = data_dir if data_dir.is_dir() else Path.cwd()
    shown = f"{data_dir}/" if place is data_dir else f"the working directory, for {data_dir}/"
    try:
        with tempfile.TemporaryFile(dir=place):
            access = Finding("data", "ok", f"{shown} can be written")
    except OSError as error:
        fix = f"chmod u+w {data_dir}, or work in another folder"
        access = Finding("data", "fail", f"{shown}: {error.strerror}", fix)
    free = shutil.disk_usage(place).free
    status: Status = "fail" if free < NO_DISK else "warn" if free < LOW_DISK else "ok"
    fix = "" if status == "ok" else f"remove run folders or their checkpoints from {data_dir}/"
    return [access, Finding("disk", status, f"{free / 1e9:.1f} GB free", fix)]


def check_hub(environ: Mapping[str, str]) -> list[Finding]:
    """Whether the hub answers, and whether a token is set; the token is never shown."""
    repo = environ.get("HF_REPO", "")
    if repo.startswith("file:"):
        folder = Path(repo.removeprefix("file:").removeprefix("//"))
        if folder.is_dir():
            return [Finding("hub", "ok", f"the folder {folder}")]
        return [Finding("hub", "warn", f"no folder {folder}", "create it, or set HF_REPO")]
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    has_token = "with a token" if environ.get("HF_TOKEN") else "without a token (HF_TOKEN)"
    found = f"{endpoint}, {repo or 'no HF_REPO set'}, {has_token}"
    reason = unreachable(endpoint)
    if reason:
        fix = "check HF_ENDPOINT and the network; training needs neither"
        return [Finding("hub", "warn", f"{found}: {reason}", fix)]
    return [Finding("hub", "ok", f"{found}: answers")]


def check_dstack(environ: Mapping[str, str]) -> list[Finding]:
    """Whether dstack is configured and its server answers."""
    url = environ.get("DSTACK_SERVER_URL") or _dstack_url(Path.home() / ".dstack" / "config.yml")
    if url is None:
        return [Finding("dstack", "warn", "no project is configured: no remote runs", ADD_PROJECT)]
    reason = unreachable(url)
    if reason:
        fix = f"start the server (`dstack server`), or name another: {ADD_PROJECT}"
        return [Finding("dstack", "warn", f"{url}: {reason}", fix)]
    return [Finding("dstack", "ok", f"{url}: answers")]


def unreachable(url: str) -> str:
    """Why no server answers at a URL; empty if one does, with any status."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "slm-lab"})
        with urllib.request.urlopen(request, timeout=NET_SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return f"does not answer ({getattr(error, 'reason', error)})"


def run_probe(name: str, seconds: float = PROBE_SECONDS) -> list[Finding]:
    """Run a probe in a process of its own, which may crash or hang."""
    command = [sys.executable, "-m", "slm_lab.doctor.probes", name]
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, env=environ)
        output, problem = done.stdout, ""
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "no message"
            problem = f"died with exit code {done.returncode}: {reason:.200}"
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"has not ended after {seconds:g} s"
    findings = list(_findings(output))
    if problem:
        fix = f"see what it says: {sys.executable} -m slm_lab.doctor.probes {name}"
        findings.append(Finding(f"probe of {name}", "fail", problem, fix))
    return findings


def _findings(output: bytes) -> Iterator[Finding]:
    for line in output.decode(errors="replace").splitlines():
        try:
            yield Finding(**json.loads(line))
        except (ValueError, TypeError):  # printed by a library
            continue


def _cgroup_cores() -> float | None:
    """Limit of cores of a container (cgroup v2), if there is one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _requirements() -> Iterator[tuple[str, str]]:
    """(extra, requirement) of a checkout's pyproject.toml, or else of the installed package."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        tree = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
        yield from ((extra, name) for extra, names in tree.items() for name in names)
        return
    for requirement in metadata.requires("slm-lab") or ():
        if match := re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement):
            yield match[1], requirement


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dstack_url(config: Path) -> str | None:
    """Address of the default project's server."""
    try:
        projects = yaml.safe_load(config.read_text())["projects"]
        return next((str(p["url"]) for p in projects if p.get("default")), None)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None
