"""Run folders as the original SLM Lab lays them out, written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COLUMNS = "total_reward,total_reward_ma,loss,fps,frame,wall_t,t,epi,opt_step,lr"
WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path) -> WriteRun:
    return lambda name, **options: write_original(tmp_path / "data", name, **options)


def write_original(
    root: Path,
    name: str,
    *,
    algorithm: str = "PPO",
    memory: str = "OnPolicyBatchReplay",
    env: str = "CartPole-v1",
    returns: Sequence[Sequence[float]] = ((10, 20, 30), (20, 30, 40)),
    every: int = 100,
    seed: int | None = None,
    tables: bool = True,
    metrics: bool = True,
) -> Path:
    """One trial: returns per session and checkpoint. Trained nets are pickles there, and stay
    unread: theirs would run `exit` here."""
    folder = root / f"{name}_2026_01_13_094433"
    for part in ("info", "graph", "model", "log"):
        (folder / part).mkdir(parents=True)
    spec = spec_tree(name, algorithm, memory, env, seed)
    for stem in (name, f"{name}_t0"):
        (folder / f"{stem}_spec.json").write_text(json.dumps(spec, indent=2))
    unit = f"{name}_t0"
    if tables:
        for session, values in enumerate(returns):
            for mode in ("train", "eval"):
                path = folder / "info" / f"{unit}_s{session}_session_df_{mode}.csv"
                path.write_text(session_csv(values, every))
    if metrics:
        frames = [every * (i + 1) for i in range(len(returns[0]))]
        local = {"mean_returns": [list(v) for v in returns], "frames": frames, "opt_steps": frames}
        # The original writes NaN as a bare token.
        text = json.dumps({"scalar": {"total_reward_ma": float("nan")}, "local": local})
        (folder / "info" / f"{unit}_trial_metrics.json").write_text(text)
    (folder / "model" / f"{unit}_s0_net_model.pt").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    return folder


def session_csv(values: Sequence[float], every: int) -> str:
    rows = [COLUMNS]
    for i, value in enumerate(values):
        frame, average = every * (i + 1), float(np.mean(values[max(0, i - 99) : i + 1]))
        rows.append(f"{value},{average},{0.5},{50.0 * every},{frame},{i},{frame},,{frame},0.001")
    return "\n".join(rows) + "\n"


def spec_tree(name: str, algorithm: str, memory: str, env: str, seed: int | None) -> dict[str, Any]:
    return {
        "name": name,
        "agent": {
            "name": algorithm,
            "algorithm": {"name": algorithm, "a_key_of_another_version": 1},
            "memory": {"name": memory},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": env, "num_envs": 4, "max_frame": 200000},
        "meta": {"max_session": 4, "random_seed": seed, "git_sha": "abc", "eval_frequency": 500},
    }
