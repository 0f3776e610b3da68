"""What docs/how-to/slow-envs.md shows works as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from tests.shown_files import write_shown_files

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "slow-envs.md"


@pytest.mark.slow
def test_the_example_is_checked_and_trained_in_workers(slm_lab, tmp_path, monkeypatch):
    page = PAGE.read_text()
    assert len(write_shown_files(page, tmp_path)) == 2
    commands = re.findall(r"^slm-lab (.*)", page, re.MULTILINE)
    check, run = (command.split() for command in commands)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        code, out, _ = slm_lab(*check)
        assert code == 0, out
        assert "Simulator-v0 x 4 (subprocess)" in out
        assert "exact resume: yes" in out
        code, out, err = slm_lab(*run, "--compile", "off")
        assert code == 0, err
    finally:
        sys.modules.pop("simulator", None)
        gym.registry.pop("Simulator-v0", None)
    (log,) = tmp_path.glob("data/slow_*/log/*_s0.log")
    assert "PPO on simulator:Simulator-v0 x8 (subprocess)" in log.read_text()
