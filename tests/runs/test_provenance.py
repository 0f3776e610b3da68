"""A run keeps on record which code worked on it, how long, and how it ended."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.runs import provenance
from slm_lab.runs.provenance import (
    RunRecord,
    git_dirty,
    git_sha,
    is_same_code,
    module_hashes,
    read_run_records,
    recorded_run,
    warn_of_changed_modules,
)
from tests.tiny import tiny


def test_a_sitting_is_on_record_from_its_start_and_says_how_it_ended(tmp_path):
    path = tmp_path / "provenance.json"
    with recorded_run(path, "train", cores=2, folder=tmp_path) as this:
        (so_far,) = read_run_records(path)
        assert (so_far.end, so_far.seconds) == ("died", None)  # what a kill would leave
        this.end = "stopped"
    with recorded_run(path, "train", cores=4, folder=tmp_path) as this:
        this.end = "finished"
    first, second = read_run_records(path)
    assert (first.end, second.end) == ("stopped", "finished")
    assert (first.cores, second.cores) == (2, 4)
    assert first.seconds is not None
    assert first.cpu_seconds is not None
    assert first.versions.keys() >= {"python", "torch", "numpy"}
    assert (first.git_sha, first.git_dirty) == (git_sha(), git_dirty())


def test_a_sitting_that_raises_is_still_timed(tmp_path):
    path = tmp_path / "provenance.json"
    with pytest.raises(RuntimeError), recorded_run(path, "train", cores=1, folder=tmp_path):
        raise RuntimeError("broken")
    (this,) = read_run_records(path)
    assert (this.end, this.seconds is None) == ("died", False)


@pytest.mark.parametrize("text", ["", "[]", '{"sittings": 3}', '{"sittings": [{"cores": 1}]}'])
def test_a_record_that_is_not_ours_counts_as_none(tmp_path, text):
    path = tmp_path / "provenance.json"
    path.write_text(text)
    assert read_run_records(path) == []
    assert read_run_records(tmp_path / "absent.json") == []


def test_keys_of_later_versions_are_passed_over(tmp_path):
    path = tmp_path / "provenance.json"
    path.write_text(json.dumps({"sittings": [{"mode": "train", "weather": "fine"}]}))
    assert read_run_records(path)[0].mode == "train"


def test_a_run_that_cannot_write_its_record_goes_on(tmp_path):
    with recorded_run(
        tmp_path / "no" / "such" / "folder.json", "train", 1, folder=tmp_path
    ) as this:
        this.end = "finished"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """A repository that the code seems to run from."""
    package = tmp_path / "slm_lab"
    package.mkdir()
    (package / "code.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    monkeypatch.setattr(provenance, "PACKAGE_ROOT", tmp_path)
    return tmp_path


def commit(repository: Path) -> str:
    """Everything there; its sha."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["add", "."], [*identity, "commit", "-qm", "work"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    found = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        found, cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_package_is_dirty_when_it_differs_from_its_commit(checkout):
    assert git_dirty() is False
    (checkout / "slm_lab" / "code.py").write_text("x = 2\n")
    assert git_dirty() is True


def test_a_new_module_makes_the_package_dirty_and_new_results_do_not(checkout):
    (checkout / "benchmark").mkdir()
    (checkout / "benchmark" / "result.json").write_text("{}")
    assert git_dirty() is False
    (checkout / "slm_lab" / "more.py").write_text("")
    assert git_dirty() is True


def test_code_in_a_repository_of_somebody_else_has_no_known_state(checkout, monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGE_ROOT", checkout / "slm_lab")
    monkeypatch.delenv("SLM_LAB_GIT_SHA", raising=False)
    assert git_dirty() is None
    assert git_sha() is None


def test_commits_are_of_the_same_code_until_a_module_of_the_package_changes(checkout):
    (checkout / "script.py").write_text("")
    first = commit(checkout)
    (checkout / "slm_lab" / "spec.json").write_text("{}")
    (checkout / "script.py").write_text("x = 1\n")
    second = commit(checkout)
    (checkout / "slm_lab" / "agent").mkdir()
    (checkout / "slm_lab" / "agent" / "net.py").write_text("")
    third = commit(checkout)
    assert is_same_code(first, second)
    assert not is_same_code(first, second, third)


def test_a_commit_that_nobody_knows_is_other_code(checkout):
    (checkout / "script.py").write_text("")
    assert not is_same_code(commit(checkout), "f" * 40)


# Modules of the user's own


def test_the_modules_that_a_spec_names_are_known_by_file_and_hash(tmp_path, monkeypatch):
    (tmp_path / "here" / "pack").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    Path("own.py").write_text("x = 1\n")
    Path("pack/wrap.py").write_text("x = 2\n")
    (tmp_path / "lib" / "installed.py").write_text("x = 3\n")
    wrappers = ["pack.wrap:Wrap", "installed:Other", "gone:Away"]
    spec = tiny(env__name="own:Own-v0", env__wrappers=wrappers)
    hashes = module_hashes(spec)
    assert {module: entry["file"] for module, entry in hashes.items()} == {
        "own": "own.py",
        "pack.wrap": "pack/wrap.py",
        "installed": "installed.py",  # no path of this machine
    }
    assert hashes["own"]["sha256"] == hashlib.sha256(b"x = 1\n").hexdigest()


def test_code_that_has_changed_between_two_processes_is_warned_of(tmp_path):
    def record(sha: str) -> RunRecord:
        return RunRecord("train", modules={"own": {"file": "own.py", "sha256": sha}})

    with warnings_of() as said:
        warn_of_changed_modules(record("a"), record("a"))
        warn_of_changed_modules(RunRecord("train"), record("a"))
    assert said == []
    with warnings_of() as said:
        warn_of_changed_modules(record("a"), record("b"))
        damaged = tmp_path / "provenance.json"
        entry = {"mode": "train", "modules": {"own": ["no", "mapping"]}}
        damaged.write_text(json.dumps({"sittings": [entry]}))
        (then,) = read_run_records(damaged)
        warn_of_changed_modules(then, record("b"))
    assert len(said) == 1
    assert "own.py: the module `own` has changed" in said[0]


@contextmanager
def warnings_of() -> Iterator[list[str]]:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    yield said
    logger.remove(sink)
