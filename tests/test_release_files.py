"""Files around a release agree with the package: versions, Pythons, extras, commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]


def test_every_python_that_is_promised_is_tested() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert ci["jobs"]["fast"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_of_the_makefile_that_exist(workflow: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    runs = "\n".join(step.get("run", "") for step in steps(workflow))
    assert set(re.findall(r"\bmake ([a-z-]+)", runs)) <= set(targets)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_cannot_write_to_the_repository(workflow: Path) -> None:
    whole = yaml.safe_load(workflow.read_text())
    assert whole["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


BY_BRANCH = "pypa/gh-action-pypi-publish@release/v1"  # the branch that its documents name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_to_a_commit_with_its_version_beside(workflow: Path) -> None:
    used = re.findall(r"uses: (.+)$", workflow.read_text(), re.MULTILINE)
    assert used
    pinned = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [use for use in used if use != BY_BRANCH and not pinned.fullmatch(use)] == []


def test_uv_has_the_tests_as_a_group_and_no_lock_file_is_kept() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert groups == {"dev": ["slm-lab[dev]"]}
    assert "/uv.lock" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_page_on_installing_lists_every_extra() -> None:
    page = (ROOT / "docs" / "reference" / "installing.md").read_text()
    listed = re.findall(r"^\| `([a-z0-9]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(PROJECT["optional-dependencies"])


def test_the_image_installs_extras_that_exist() -> None:
    found = re.search(r"^ARG EXTRAS=(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    assert set(found[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_image_gets_every_file_that_it_copies() -> None:
    let_in = (ROOT / ".dockerignore").read_text().split("\n!")[1:]
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(name.strip() for name in let_in)
