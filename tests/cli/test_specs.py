"""`slm-lab spec` and `slm-lab specs`: lists, schema, reference, conversion of v4 files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slm_lab.spec import load_spec, packaged_spec_dir, packaged_specs

PPO = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"


@pytest.fixture
def v4() -> Path:
    """A file in the shape of v4, with a comma too many, as many have."""
    tree: dict[str, Any] = load_spec(PPO).to_dict()
    tree |= {"agent": [tree["agent"]], "env": [tree["env"]], "body": {"product": "outer"}}
    tree["env"][0]["name"] = "CartPole-v0"
    path = Path("old.json")
    path.write_text(json.dumps({"ppo": tree}).replace('"outer"}', '"outer",}'))
    return path


def test_specs_lists_every_shipped_spec_with_budget_and_target(slm_lab):
    code, out, _ = slm_lab("specs")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["NAME", "FILE", "ALGORITHM", "ENV", "FRAMES", "TARGET"]
    assert len(lines) == 1 + len(list(packaged_specs()))
    (demo,) = [line for line in lines if line.startswith("ppo_cartpole ")]
    assert demo.split() == [
        "ppo_cartpole",
        "benchmark/ppo/ppo_cartpole.json",
        "PPO",
        "CartPole-v1",
        "200,000",
        "400",
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("ppo_hopper", {"ppo_hopper", "ppo_hopper_arc"}),
        (
            "Pendulum-v1",
            {
                f"{name}_pendulum"
                for name in ("a2c_gae", "crossq", "ddpg", "ppo", "sac", "td3", "tqc", "xqc")
            },
        ),
        ("PPOSIL", {"ppo_sil_acrobot", "ppo_sil_cartpole"}),
        ("ppo_mujoco*", {"ppo_mujoco", "ppo_mujoco_longhorizon"}),
    ],
)
def test_a_pattern_fits_names_files_algorithms_and_envs(slm_lab, pattern, names):
    code, out, _ = slm_lab("specs", pattern)
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == names


def test_a_template_says_which_flag_it_waits_for(slm_lab):
    _, out, _ = slm_lab("specs", "a2c_gae_mujoco")
    assert "-s env=…" in out
    assert "3,000,000" in out
    assert "by env" in out


def test_a_pattern_without_a_spec_is_told(slm_lab):
    code, out, err = slm_lab("specs", "no_such_thing")
    assert (code, out) == (2, "")
    assert "No shipped spec fits `no_such_thing`" in err


def test_the_schema_and_the_reference_are_printed(slm_lab):
    code, out, _ = slm_lab("spec", "--schema")
    assert (code, json.loads(out)["title"]) == (0, "SLM Lab spec file")
    code, out, _ = slm_lab("spec", "--docs")
    page = packaged_spec_dir().parents[1] / "docs" / "SPEC.md"
    assert (code, out) == (0, page.read_text())


def test_an_old_file_is_written_anew_beside_itself(slm_lab, v4):
    before = v4.read_text()
    code, out, _ = slm_lab("spec", "--upgrade", str(v4))
    assert code == 0
    assert "CartPole-v0" in out
    assert v4.read_text() == before
    assert load_spec("old_v5.json", "ppo").env.name == "CartPole-v1"


def test_nothing_that_exists_is_overwritten(slm_lab, v4):
    taken = Path("old_v5.json")
    taken.write_text("mine")
    code, _, err = slm_lab("spec", "--upgrade", str(v4))
    assert code == 2
    assert "old_v5.json: exists already" in err
    assert taken.read_text() == "mine"
    code, _, _ = slm_lab("spec", "--upgrade", str(v4), "--output", str(v4))
    assert code == 2
    assert slm_lab("spec", "--upgrade", str(v4), "-o", "other.json")[0] == 0


def test_running_an_old_file_names_the_command_that_converts_it(slm_lab, v4):
    code, _, err = slm_lab("run", str(v4), "ppo", "dev")
    assert code == 2
    assert "slm-lab spec --upgrade FILE" in err


def test_a_playground_env_without_its_package_names_the_extra(slm_lab, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *a: None if n in ("mujoco_playground", "envpool") else real(n, *a),
    )
    file = "slm_lab/spec/benchmark_arc/ppo/ppo_playground.yaml"
    flags = ["-s", "env=playground/CartpoleBalance", "-s", "env.num_envs=2"]
    code, _, err = slm_lab("run", file, "ppo_playground", "dev", *flags)
    assert code == 2
    assert "pip install 'slm-lab[playground]'" in err
    assert not Path("data").exists() or not any(Path("data").iterdir())
