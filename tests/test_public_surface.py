"""The names a script may rely on, and what importing them costs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import slm_lab

ROOT = Path(__file__).parents[1]

NAMES = [
    "Agent",
    "DivergenceError",
    "EnvError",
    "Evaluation",
    "LabError",
    "Metrics",
    "Result",
    "RunFolderError",
    "RunOptions",
    "RunStopped",
    "SearchMetrics",
    "SessionsFailed",
    "Spaces",
    "Spec",
    "SpecError",
    "SpecWarning",
    "Transition",
    "TrialMetrics",
    "VectorEnv",
    "evaluate",
    "load_agent",
    "load_result",
    "load_spec",
    "make_agent",
    "make_env",
    "run",
    "train",
]


def test_the_public_names_are_these_and_each_exists():
    assert slm_lab.__all__ == NAMES
    assert dir(slm_lab) == sorted(NAMES)
    for name in NAMES:
        assert getattr(slm_lab, name).__name__ == name


def test_the_version_is_that_of_the_installed_package():
    assert slm_lab.__version__ == importlib.metadata.version("slm-lab")


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Runn'"):
        _ = slm_lab.Runn  # type: ignore[attr-defined]


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded once the code has run."""
    code += "\nimport sys; sys.stdout.write(' '.join({name.split('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_the_package_and_loading_a_spec_imports_no_heavy_library():
    code = "import slm_lab; slm_lab.load_spec('benchmark/ppo/ppo_cartpole.json', 'ppo_cartpole')"
    heavy = {"torch", "gymnasium", "numpy", "pandas", "matplotlib"}
    assert heavy.isdisjoint(modules_after(code))
