"""A module that a spec names is found without being run, and refused below folders of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slm_lab.spec import SpecError
from slm_lab.spec.run_folder import is_run_folder, run_place
from slm_lab.spec.trust import (
    SpecOrigin,
    check_named_module,
    find_module,
    import_named_module,
)

RUN = "ppo_2026_01_31_235959"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, whose modules can be imported and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path_importer_cache", {})
    yield tmp_path
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def write(path: str, mark: str = "executed") -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"open({mark!r}, 'a').close()\n")
    return file


def run_folder(path: str) -> Path:
    folder = Path(path)
    (folder / "info").mkdir(parents=True)
    (folder / "ppo_t0_spec.json").write_text("{}")
    return folder


def executed() -> bool:
    return Path("executed").exists()


def refusal(module: str, origin: SpecOrigin | None = None) -> str:
    """What importing says, after which nothing may have run."""
    with pytest.raises(SpecError) as error:
        import_named_module(module, "env.name", origin)
    assert not executed()
    return str(error.value)


# Finding


def test_a_module_is_found_with_its_packages_and_none_of_them_runs(here):
    write("mine/__init__.py")
    write("mine/part/__init__.py")
    write("mine/part/envs.py")
    found = find_module("mine.part.envs")
    assert found is not None
    assert found.file == here / "mine/part/envs.py"
    assert here / "mine/__init__.py" in found.places
    assert here / "mine/part" in found.places
    assert not executed()
    assert "mine" not in sys.modules


def test_a_module_in_nested_namespace_packages_is_found(here):
    file = write("mine/part/envs.py")
    found = find_module("mine.part.envs")
    assert found is not None
    assert found.file == here / file
    assert not executed()


def test_what_is_not_there_is_not_found_and_a_built_in_module_has_no_file():
    assert find_module("mine.envs") is None
    assert find_module("mine") is None
    built_in = find_module("sys")
    assert built_in is not None
    assert built_in.file is None


def test_an_installed_module_comes_before_one_of_the_working_directory(here):
    write("json.py")
    found = find_module("json")
    assert found is not None
    assert found.file is not None
    assert found.file.parent != here


# Importing


def test_a_module_of_the_users_own_spec_is_imported(here):
    write("mine/envs.py")
    import_named_module("mine.envs", "env.name", None)
    assert executed()


def test_a_package_may_lead_to_its_modules_by_a_path_of_its_own(here):
    write("elsewhere/envs.py")
    write("mine/__init__.py", "package").write_text(f"__path__ = [{str(here / 'elsewhere')!r}]\n")
    import_named_module("mine.envs", "env.name", None)
    assert executed()


def test_a_package_whose_own_path_leads_into_a_run_is_refused(here):
    folder = run_folder(f"data/{RUN}")
    write(f"{folder}/envs.py")
    write("mine/__init__.py", "package").write_text(f"__path__ = [{str(here / folder)!r}]\n")
    assert "no code is ever imported from there" in refusal("mine.envs")


def test_a_missing_module_is_an_import_error():
    with pytest.raises(ModuleNotFoundError, match="mine"):
        import_named_module("mine.envs", "env.name", None)


@pytest.mark.parametrize("module", [".mine", "mine..envs", "mine envs", "a/b", "mine:part", "1x"])
def test_a_name_that_can_be_no_module_is_refused(module):
    assert "env.name: found" in refusal(module)


def test_a_spec_of_a_run_folder_has_only_trusted_modules_imported(here):
    file = write("mine/envs.py")
    origin = SpecOrigin(Path("data/x/x_spec.json"), frozenset({"mine.other"}))
    message = refusal("mine.envs", origin)
    assert "data/x/x_spec.json" in message
    assert (
        f"env.name: the spec of a run folder asks for code of the module `mine.envs` ({here}"
        in (message)
    )
    assert str(file) in message
    assert "--trust mine.envs" in message
    import_named_module("mine.envs", "env.name", SpecOrigin(origin.file, frozenset({"mine.envs"})))
    assert executed()


# Places


TRUSTING = SpecOrigin(Path("x_spec.json"), frozenset({"helper", "mine", "mine.helper"}))


@pytest.mark.parametrize(
    ("file", "module"),
    [
        (f"data/{RUN}/info/helper.py", f"data.{RUN}.info.helper"),
        (f"data/{RUN}/__init__.py", f"data.{RUN}"),
        (f"runs/{RUN}/info/helper.py", f"runs.{RUN}.info.helper"),
        ("data/loose/helper.py", "data.loose.helper"),
        ("data/helper.py", "data.helper"),
    ],
)
def test_nothing_below_a_run_or_a_data_folder_is_imported(file, module):
    run_folder(f"{file.partition('/')[0]}/{RUN}")
    write(file)
    assert "no code is ever imported from there" in refusal(module)
    trusting = SpecOrigin(Path("x_spec.json"), frozenset({module}))
    assert "no code is ever imported from there" in refusal(module, trusting)


def test_a_package_outside_does_not_open_the_way_to_a_namespace_inside(here, monkeypatch):
    """`mine` lies here and, as a part of the same namespace package, in a run."""
    run_folder(f"data/{RUN}")
    write("mine/envs.py")
    write(f"data/{RUN}/mine/other.py")
    monkeypatch.syspath_prepend(str(here / "data" / RUN))
    assert f"{RUN}/mine" in refusal("mine.envs")


@pytest.mark.parametrize("place", ["{run}", "{run}/info"])
def test_the_working_directory_may_be_inside_a_run(here, monkeypatch, place):
    folder = here / run_folder(f"data/{RUN}")
    there = Path(place.format(run=folder))
    write(str(there / "helper.py"))
    monkeypatch.chdir(there)
    assert "no code is ever imported from there" in refusal("helper", TRUSTING)


def test_the_search_path_may_lead_into_a_run(here, monkeypatch):
    folder = here / run_folder(f"data/{RUN}")
    write(f"{folder}/helper.py")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert "no code is ever imported from there" in refusal("helper", TRUSTING)
    write("mine.py").write_text("import helper\n")
    with pytest.raises(ModuleNotFoundError, match="helper"):
        import_named_module("mine", "env.name", None)
    assert not executed()


def test_links_into_a_run_are_followed_and_refused(here):
    folder = run_folder(f"data/{RUN}")
    write(f"{folder}/info/helper.py")
    os.symlink(here / folder / "info" / "helper.py", "helper.py")
    os.symlink(here / folder / "info", "mine")
    assert "no code is ever imported from there" in refusal("helper", TRUSTING)
    assert "no code is ever imported from there" in refusal("mine.helper", TRUSTING)


def test_a_data_folder_may_be_a_link(here):
    run_folder(f"disk/{RUN}")
    write("disk/loose/helper.py")
    os.symlink(here / "disk", "data")
    assert "no code is ever imported from there" in refusal("data.loose.helper")


def test_checking_alone_imports_nothing():
    write("mine/__init__.py")
    check_named_module("mine", "env.name", None)
    assert not executed()


# What a run folder looks like


def test_a_folder_of_ones_own_code_and_specs_is_no_run_folder(here):
    """Even with a folder for logs, and a spec that was copied out of a run."""
    for name in ("my_spec.json", "ppo_t0_spec.json", "mine.py"):
        Path(name).touch()
    Path("log").mkdir()
    Path("model").mkdir()
    assert not is_run_folder(here)
    assert run_place(here / "mine.py") is None
    (here / "data" / RUN).mkdir(parents=True)
    assert run_place(here / "mine.py") is None


def test_a_renamed_run_folder_is_known_by_the_files_of_its_sessions(here):
    (here / "renamed" / "model").mkdir(parents=True)
    (here / "renamed" / "ppo_spec.yaml").touch()
    assert not is_run_folder(here / "renamed")
    (here / "renamed" / "model" / "ppo_t0_s0_net_model.pt").touch()
    assert is_run_folder(here / "renamed")


def test_a_pulled_folder_is_known_by_its_manifest_whatever_its_name_and_files(here):
    folder = here / "loose"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "a web page"}')
    assert not is_run_folder(folder)
    (folder / "manifest.json").write_text('{\n "schema": "run-folder-1",\n "files": {}}')
    assert is_run_folder(folder)
    assert run_place(folder / "deep" / "down.py") == folder


def test_what_a_pull_has_fetched_so_far_is_a_place_of_runs(here):
    assert run_place(here / ".hub" / "pull" / "x" / "files" / "helper.py") == here / ".hub"


def test_a_manifest_that_is_a_pipe_is_not_opened(here):
    os.mkfifo("manifest.json")
    assert not is_run_folder(here)
