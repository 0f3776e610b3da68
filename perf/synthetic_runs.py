"""Write synthetic run folders in milliseconds, for tests, screenshots and timings.

The curves are invented: a noisy rise towards a level. Names, columns, manifests and log lines are
those that a training leaves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.runs.checkpoint_manifest import MANIFEST, CheckpointManifest
from slm_lab.runs.layout import RunLayout
from slm_lab.training.console import format_profile

COLUMNS = (
    "total_reward,total_reward_ma,loss,fps,frame,wall_t,t,epi,opt_step,lr,clip_eps,entropy,"
    "grad_norm,last_100_return,last_100_length"
)
VERSIONS = {"slm-lab": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"}


@dataclass(frozen=True, slots=True)
class SyntheticRun:
    """Contents of a synthetic run folder. `share` is the part of the budget that was used."""

    name: str = "ppo_cartpole"
    ts: str = "2026_01_01_000000"
    algorithm: str = "PPO"
    env: str = "CartPole-v1"
    level: float = 450.0
    start: float = 20.0
    pace: float = 6.0
    sessions: int = 4
    rows: int = 1_000
    max_frame: int = 200_000
    share: float = 1.0
    failure: str = ""
    seed: int = 0
    values: dict[str, Any] = field(default_factory=dict)


def write_run(root: Path, run: SyntheticRun) -> RunLayout:
    """Write the folder, and return its layout."""
    layout = RunLayout.create(run.name, run.ts, root=root)
    spec = json.dumps(_spec(run, layout), indent=2) + "\n"
    layout.spec_path().write_text(spec)
    layout.trial_spec_path(0).write_text(spec)
    rng = np.random.default_rng(run.seed)
    scores = [write_session(layout, session, run, rng) for session in range(run.sessions)]
    layout.run_lock().write_text("{}")
    is_done = run.share >= 1.0 and not run.failure
    if is_done:
        _write_metrics(layout, run, scores)
    _write_log(layout, run, is_done=is_done)
    return layout


def write_session(
    layout: RunLayout, session: int, run: SyntheticRun, rng: np.random.Generator
) -> float:
    """The table, checkpoint and log of one session; returns its score."""
    table = session_rows(run, rng)
    lines = [",".join(f"{value:.6g}" for value in row) for row in table]
    text = "\n".join([COLUMNS, *lines]) + "\n"
    layout.session_csv(0, session, "train").write_text(text)
    is_finished = run.share >= 1.0 and not run.failure
    folder = layout.checkpoint_dir(0, session) / "last"
    folder.mkdir(parents=True)
    manifest = CheckpointManifest(
        session=layout.session_name(0, session),
        spec_sha256="",
        versions=VERSIONS,
        counters={"frame": int(table[-1, 4]), "opt_step": int(table[-1, 8]), "updates": 0},
        finished=is_finished,
        saved_at="2026-01-01T00:00:00",
        files={},
    )
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    profile = format_profile(*rng.dirichlet((3, 2, 8, 0.5)))
    log = f"2026-01-01 00:00:00 | INFO | PID:1 | session:close | {profile}\n"
    layout.log_path(0, session).write_text(log)
    return float(table[-1, 1])


def session_rows(run: SyntheticRun, rng: np.random.Generator) -> np.ndarray:
    """[rows, columns] of a session that has used `share` of its budget."""
    count = max(1, round(run.rows * run.share))
    frame = np.linspace(0, run.max_frame, run.rows + 1)[1 : count + 1].round()
    rise = 1 - np.exp(-rng.uniform(0.7, 1.3) * run.pace * frame / run.max_frame)
    level = run.start + (run.level - run.start) * rng.uniform(0.92, 1.04) * rise
    returns = level + rng.normal(0, abs(run.level - run.start) * 0.06, count)
    sums = np.concatenate([[0.0], returns.cumsum()])
    window = np.minimum(np.arange(1, count + 1), 100)
    average = (sums[1:] - sums[np.arange(1, count + 1) - window]) / window
    seconds = frame / rng.uniform(4_000, 6_000)
    loss = np.exp(-3 * frame / run.max_frame) + rng.normal(0, 0.05, count)
    blank = np.full(count, np.nan)
    lr = 1e-3 * (1 - frame / run.max_frame)
    entropy = 0.69 * np.exp(-2 * frame / run.max_frame)
    return np.column_stack(
        [
            *(returns, average, loss, frame / np.maximum(seconds, 1e-9), frame, seconds),
            *(frame / 4, blank, (frame / 10).round(), lr, np.full(count, 0.2), entropy),
            *(np.abs(loss), returns, np.abs(returns)),
        ]
    )


def _spec(run: SyntheticRun, layout: RunLayout) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "agent": {
            "name": run.algorithm,
            "algorithm": {
                "name": run.algorithm,
                "gamma": 0.99,
                "lam": 0.95,
                "time_horizon": 32,
                "minibatch_size": 64,
                "training_epoch": 4,
            },
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {
                "type": "MLPNet",
                "hid_layers": [64, 64],
                "hid_layers_activation": "tanh",
                "optim_spec": {"name": "Adam", "lr": 0.001},
            },
        },
        "env": {"name": run.env, "num_envs": 4, "max_frame": run.max_frame},
        "meta": {
            "max_session": run.sessions,
            "max_trial": 1,
            "log_frequency": run.max_frame // run.rows,
            "random_seed": run.seed,
        },
        "name": run.name,
    }
    for key, value in run.values.items():
        *blocks, last = key.split(".")
        block = tree
        for name in blocks:
            block = block.setdefault(name, {})
        block[last] = value
    tree["meta"] |= {"experiment_ts": run.ts, "git_sha": "0" * 40, "predir": str(layout.predir)}
    return tree


def _write_metrics(layout: RunLayout, run: SyntheticRun, scores: list[float]) -> None:
    strengths = [score - run.start for score in scores]
    names = ("strength", "max_strength", "final_strength")
    for session, (score, strength) in enumerate(zip(scores, strengths, strict=True)):
        scalar = {"total_reward_ma": score, **dict.fromkeys(names, strength), "stability": 0.9}
        path = layout.session_metrics_scalar(0, session, "train")
        path.write_text(json.dumps(scalar) + "\n")
    mean = float(np.mean(strengths))
    scalar = {
        "frame": float(run.max_frame),
        "total_reward_ma": float(np.mean(scores)),
        **dict.fromkeys(names, mean),
        "sample_efficiency": 0.41,
        "training_efficiency": 0.38,
        "stability": 0.9,
        "consistency": 0.93,
        "last_100_return": float(np.mean(scores)),
    }
    for path in (layout.trial_metrics_scalar(0), layout.trial_metrics_scalar_copy(0)):
        path.write_text(json.dumps(scalar) + "\n")


def _write_log(layout: RunLayout, run: SyntheticRun, *, is_done: bool) -> None:
    head = "2026-01-01 00:00:00 | INFO | PID:1 |"
    lines = [f"{head} lab:run | Running trial 0 of {run.name}, output in {layout.predir}"]
    for session in range(run.sessions):
        end = f"failed: {run.failure}" if run.failure else "done"
        if is_done or run.failure:
            told = f"Trial 0 session {session} | Session {session} {end}"
            lines.append(f"{head} console:finish | {told}")
    layout.log_path(0).write_text("\n".join(lines) + "\n")
