"""Imports point down the layers of pyproject.toml, so a package can be read without those above."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=root, env=environment, text=True, capture_output=True)


def test_every_import_in_the_package_points_down():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout
    assert "2 kept, 0 broken" in result.stdout


def test_every_package_stands_in_the_layers():
    layers = (ROOT / "pyproject.toml").read_text().split('name = "packages form layers"')[1]
    packages = [p.name for p in (ROOT / "slm_lab").iterdir() if (p / "__init__.py").exists()]
    assert len(packages) > 10
    assert [name for name in packages if f"slm_lab.{name}" not in layers] == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("env/error.py", "def f():\n    from slm_lab.agent.agent import Agent"),
        ("agent/net/mlp.py", "from slm_lab.agent.algorithm.random import Random"),
    ],
)
def test_an_upward_or_sideways_import_is_caught(file: str, line: str, tmp_path: Path):
    shutil.copytree(
        ROOT / "slm_lab", tmp_path / "slm_lab", ignore=shutil.ignore_patterns("*.json", "*.yaml")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "slm_lab" / file).open("a") as source:
        source.write(f"\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert f"slm_lab.{file.removesuffix('.py').replace('/', '.')}" in result.stdout


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("slm_lab.spec", {"torch", "gymnasium", "numpy"}),
        ("slm_lab.runs.files", {"torch", "gymnasium", "numpy"}),
        ("slm_lab.analysis", {"torch", "gymnasium"}),
        ("slm_lab.hub.sync", {"torch", "gymnasium", "huggingface_hub"}),
    ],
)
def test_a_light_package_loads_no_heavy_library(package: str, heavy: set[str]):
    code = f"import sys, {package}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert heavy.isdisjoint(loaded)


def test_files_and_functions_are_short_enough_to_read():
    """A file of the package has at most 450 lines, a function 60."""
    long = []
    for path in sorted((ROOT / "slm_lab").rglob("*.py")):
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        if text.count("\n") > 450:
            long.append(name)
        functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
        long += [f"{name}: {f.name}" for f in functions if (f.end_lineno or 0) - f.lineno >= 60]
    assert long == []
