"""Which files of the user's own travel with a spec to another machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from slm_lab.runs.own_modules import own_modules
from slm_lab.spec.run_folder import run_place
from tests.tiny import tiny


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(folder))])
    yield folder
    for name in ("own_rate", "own_net"):  # imported when the spec was read
        sys.modules.pop(name, None)


def names(spec) -> list[str]:
    return [path.name for path in own_modules(spec)]


def test_every_module_that_a_spec_names_travels(here):
    """Those of callbacks and of a search too, which are not imported to read the spec."""
    Path("own_rate.py").write_text("class Rate:\n    def value(self, frame): return 0.1\n")
    Path("own_net.py").write_text("from slm_lab.agent.net.mlp import MLPNet as Net\n")
    for name in ("own_env", "own_call", "own_wrap"):
        Path(f"{name}.py").write_text("")
    spec = tiny(
        env__name="own_env:Mine-v0",
        env__wrappers=["own_wrap:Wrap"],
        agent__algorithm__entropy_coef_spec={"name": "own_rate:Rate"},
        meta__callbacks=["own_call:Told"],
        search={"agent.net.type__choice": ["MLPNet", "own_net:Net"]},
    )
    assert names(spec) == ["own_call.py", "own_env.py", "own_net.py", "own_rate.py", "own_wrap.py"]


def test_what_a_named_module_imports_travels_with_it(here):
    Path("own_env.py").write_text(
        "from helper import x\nimport json, missing, sys, notes, compiled\n"
    )
    Path("helper.py").write_text("def later():\n    import deep.inner\n")
    (here / "deep").mkdir()
    Path("deep/__init__.py").write_text("from . import inner\n")
    Path("deep/inner.py").write_text("import helper, other\n")  # a circle ends
    Path("other.py").write_text("this is no Python")
    Path("idle.py").write_text("")
    (here / "notes").mkdir()  # a folder that has the name of a module by chance
    Path(f"compiled{EXTENSION_SUFFIXES[0]}").touch()  # for this machine alone
    assert own_modules(tiny(env__name="own_env:Mine-v0")) == [
        here / "deep",
        here / "helper.py",
        here / "other.py",
        here / "own_env.py",
    ]


def test_a_named_package_without_init_travels_and_what_is_installed_does_not(
    here, tmp_path, monkeypatch
):
    (here / "pack").mkdir()
    Path("pack/envs.py").write_text("import beside\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    wrappers = ["pack.envs:Wrap", "gymnasium.wrappers:NormalizeReward", "gone:Away"]
    spec = tiny(env__wrappers=wrappers)
    assert own_modules(spec) == [tmp_path / "lib" / "beside.py", here / "pack"]


def test_nothing_of_a_run_folder_travels(here):
    Path("own_env.py").write_text("import tiny_2026_01_31_235959\n")
    run = here / "tiny_2026_01_31_235959"
    (run / "log").mkdir(parents=True)
    (run / "__init__.py").write_text("")
    assert run_place(run) == run
    assert names(tiny(env__name="own_env:Mine-v0")) == ["own_env.py"]
