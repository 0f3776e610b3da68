"""The package as people install it: built, installed alone, and run from another folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_release_files import PROJECT, ROOT

VERSION = PROJECT["version"]
TINY = [
    "-s",
    "env.max_frame=512",
    "-s",
    "agent.algorithm.time_horizon=64",
    "--compile",
    "off",
    "--seed",
    "1",
]
BUILD = """
import sys
from hatchling import build
for make in (build.build_wheel, build.build_sdist):
    print(make(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution of this checkout."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_wheel_and_source_hold_what_they_should_and_no_more(built: Path) -> None:
    wheel, source = (
        built / f"slm_lab-{VERSION}-py3-none-any.whl",
        built / f"slm_lab-{VERSION}.tar.gz",
    )
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if not name.startswith("slm_lab/")}
    assert {name.partition("/")[0] for name in inside} == {f"slm_lab-{VERSION}.dist-info"}
    files = ROOT.glob("slm_lab/**/*")
    kept = {path for path in files if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(ROOT).as_posix() for path in kept} <= names, "specs, pages, styles"
    assert "slm_lab/dstack_files/start.sh" in names
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|/data/|/tests/", name)]

    with tarfile.open(source) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"slm_lab", "tests", "docs", "perf", "pyproject.toml", "LICENSE", "README.md"} <= tops
    assert not tops & {"data", "site", ".venv", "uv.lock", "results"}
    assert wheel.stat().st_size < 2_000_000
    assert source.stat().st_size < 10_000_000


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and its dependencies from this one.

    They are found through a .pth file; slm_lab itself comes from the wheel alone.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=os.name != "nt")
    base = {"base": str(environment), "platbase": str(environment)}
    site = Path(sysconfig.get_path("purelib", "venv", base))
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return Path(sysconfig.get_path("scripts", "venv", base)) / Path(sys.executable).name


def run(python: Path, code: str, folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


# The command as its entry point has it, several times in one process, which imports torch once.
COMMANDS = f"""
import sys
from importlib.metadata import entry_points, version

(entry,) = entry_points(group="console_scripts", name="slm-lab")


def slm_lab(*words):
    sys.argv = ["slm-lab", *words]
    try:
        entry.load()()
    except SystemExit as end:
        assert not end.code, (words, end.code)


import slm_lab as package

print(package.__file__, version("slm-lab"))
slm_lab("--version")
slm_lab("specs", "ppo_cartpole")
slm_lab("run", "ppo_cartpole", "dev", *{TINY!r})
slm_lab("enjoy", "latest", "--video", "--output", "play.mp4")  # the extra `video`
"""


@pytest.mark.slow
def test_an_installed_wheel_trains_and_replays_from_another_folder(
    installed: Path, tmp_path: Path
) -> None:
    out = run(installed, COMMANDS, tmp_path)
    place, version = out.splitlines()[0].rsplit(" ", 1)
    assert Path(place).is_relative_to(installed.parents[1]), "not the checkout"
    assert version == VERSION
    assert f"slm-lab {VERSION}" in out
    assert "benchmark/ppo/ppo_cartpole.json" in out
    assert "Score   last 100 episodes" in out
    assert len(list(tmp_path.glob("data/ppo_cartpole_*/model/*_net_model.pt"))) > 0
    assert (tmp_path / "play.mp4").stat().st_size > 1000


@pytest.mark.empty_install
def test_an_empty_environment_gets_all_that_it_needs_from_pypi(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    scripts = tmp_path / "environment" / ("Scripts" if os.name == "nt" else "bin")
    wheel = next(built.glob("*.whl"))
    constraints = ["-c", str(ROOT / "constraints.txt")]
    install = [str(scripts / "python"), "-m", "pip", "install", "-q", *constraints]
    subprocess.run([*install, f"{wheel}[video]"], check=True)
    out = run(scripts / "python", COMMANDS, tmp_path)
    assert "Score   last 100 episodes" in out
    said = subprocess.run([str(scripts / "slm-lab"), "--version"], capture_output=True, text=True)
    assert said.stdout == f"slm-lab {VERSION}\n"
