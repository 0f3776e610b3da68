"""The page that sets our lines beside those of Stable-Baselines3."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/how-to/beside-stable-baselines3.md").read_text()
OURS, THEIRS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def lines(code: str) -> int:
    assert max(map(len, code.splitlines())) <= 100
    return sum(bool(line.strip()) for line in code.splitlines())


def test_the_counts_are_those_of_the_blocks_and_ours_is_smaller():
    counted = dict(re.findall(r"\| (SLM Lab|Stable-Baselines3) \| (\d+) \|", PAGE))
    assert counted == {"SLM Lab": str(lines(OURS)), "Stable-Baselines3": str(lines(THEIRS))}
    assert lines(OURS) < lines(THEIRS)


@pytest.mark.slow
def test_our_lines_train_evaluate_plot_and_save(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "frames=50_000" in OURS
    assert "episodes=100" in OURS
    code = OURS.replace("frames=50_000", "frames=2_048, compile='off'")
    exec(compile(code.replace("episodes=100", "episodes=2"), "page", "exec"), {})
    assert float(capsys.readouterr().out) > 8
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    assert [*Path("agents/cartpole").glob("*_spec.json")]
