"""The names a script may rely on, and what importing them costs."""

from __future__ import annotations

import importlib.metadata
import json
import re
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


def readme_examples() -> list[str]:
    text = (ROOT / "README.md").read_text()
    return [str(code) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


def run_example(code: str, folder: Path) -> str:
    (folder / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_run_example_of_the_readme_works_as_printed_from_any_folder(tmp_path):
    code = readme_examples()[0].replace("50_000", "2_048")
    assert "2_048" in code, "the example's budget, cut short here"
    assert run_example(code, tmp_path).startswith("PPO on CartPole-v1\n  score")
    (saved,) = tmp_path.glob("data/*/ppo_cartpole_spec.json")
    assert json.loads(saved.read_text())["env"]["max_frame"] == 2048


@pytest.mark.slow
def test_the_loop_example_of_the_readme_trains_and_prints_a_score(tmp_path):
    code = readme_examples()[1]
    assert "10_000" in code, "the example's budget, cut short here"
    sets = 'sets=["meta.compile=off"])'
    code = code.replace("10_000", "2_000").replace('"ppo_cartpole")', f'"ppo_cartpole", {sets}')
    assert 8 < float(run_example(code, tmp_path)) < 500


@pytest.mark.slow
def test_the_replay_example_of_the_readme_works_on_what_the_first_one_trained(tmp_path):
    train, _, replay = readme_examples()
    run_example(train.replace("50_000", "2_048"), tmp_path)
    low, high = json.loads(
        run_example(replay, tmp_path).strip().replace("(", "[").replace(")", "]")
    )
    assert 8 < low <= high <= 500
