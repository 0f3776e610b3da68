"""Call dstack by its command line, which also works when installed apart (`uv tool`)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from slm_lab.cloud.error import CloudError
from slm_lab.cloud.task import find_configuration

SECONDS = 120  # for one command; submitting includes an upload
NO_OFFERS = "No matching instance offers"  # what dstack says
FINISHED = ("terminated", "failed", "done")
INSTALL = "pip install 'slm-lab[remote]'"
ADD_PROJECT = "dstack project add --name PROJECT --url URL --token TOKEN"


def find_dstack() -> str:
    """Path of the dstack command: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("dstack")
    found = str(beside) if beside.is_file() else shutil.which("dstack")
    if not found:
        raise CloudError(_fix("dstack is not installed.", INSTALL, ADD_PROJECT))
    return found


def check_ready(name: str, *, gpu: bool, again: str) -> None:
    """Raise CloudError unless a project answers, has a fleet, and no run of this name is active.

    `again` is the command that the user gave, to be repeated after the fix.
    """
    fleets = _run("fleet")
    if fleets.returncode:
        problem = f"no dstack project answers ({_last_line(fleets)})."
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
    """Submit the YAML detached, and return dstack's output.

    dstack takes the values of bare variables from this process's environment.
    """
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
    try:
        return subprocess.run(
            [find_dstack(), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},  # one line per row, no colours
        )
    except subprocess.TimeoutExpired:
        command = " ".join(("dstack", *arguments))
        raise CloudError(f"`{command}` has not answered for {SECONDS} seconds.") from None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def _fix(problem: str, *commands: str) -> str:
    return "\n".join([problem[0].upper() + problem[1:], *(f"  {command}" for command in commands)])
