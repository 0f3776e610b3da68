"""Draw the pictures of docs/concepts/metrics.md: each metric on curves of real runs.

    python -m perf.metric_pictures [--data data/docs]

The runs are those of perf/docs_images.py (four sessions each), and DQN's of
perf/learning_pictures.py; one that is not there yet is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from perf.docs_images import COMPARED, DATA, IMAGES, train
from perf.learning_pictures import keep, training_of
from slm_lab.analysis.metrics import Metrics, consistency, moving_average
from slm_lab.analysis.plot import new_grid
from slm_lab.analysis.style import GREY, MEAN_COLOR, SESSION_COLOR, VERMILLION, line_styles
from slm_lab.analysis.tables import read_facts, read_sessions
from slm_lab.runs.layout import RunLayout

Run = tuple[str, list[Metrics], float]  # label, sessions, return of a random policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    data = parser.parse_args().data
    trainings = (*COMPARED, training_of("dqn"))
    for training in trainings:
        train(training, data)
    *compared, dqn = (read(training.folder(data)) for training in trainings)
    reinforce, _, ppo = compared
    keep(returns(reinforce), picture("returns"))
    keep(strength(dqn), picture("strength"))
    keep(efficiency(compared, "frames", "sample_efficiency"), picture("sample_efficiency"))
    keep(efficiency(compared, "opt_steps", "training_efficiency"), picture("training_efficiency"))
    keep(stability(dqn), picture("stability"))
    keep(spread([reinforce, ppo]), picture("consistency"))


def picture(metric: str) -> Path:
    return IMAGES / f"metric_{metric}.png"


def read(folder: Path) -> Run:
    facts = read_facts(folder, 0)
    assert facts.random_mean is not None
    sessions = [session.scored for session in read_sessions(RunLayout.open(folder), 0)]
    return facts.algorithm, sessions, facts.random_mean


def returns(run: Run) -> Figure:
    label, sessions, _ = run
    frames, found = (sessions[0].local[key] for key in ("frames", "mean_returns"))
    figure, (axes,) = graphs(1, f"{label} on CartPole-v1, one session")
    axes.plot(frames, found, color=SESSION_COLOR, label="total_reward")
    axes.plot(frames, moving_average(found), color=MEAN_COLOR, label="total_reward_ma, which lags")
    axes.legend(frameon=False, fontsize=8)
    return figure


def strength(run: Run) -> Figure:
    label, sessions, random = run
    frames, found = (sessions[0].local[key] for key in ("frames", "mean_returns"))
    scalar = sessions[0].scalar
    figure, (axes,) = graphs(1, f"{label} on CartPole-v1, one session")
    axes.fill_between(frames, random, found, color=MEAN_COLOR, alpha=0.15, linewidth=0)
    axes.plot(frames, found, color=MEAN_COLOR, label="return; S is its height above random")
    dashed: dict[str, Any] = {"linestyle": "--", "linewidth": 1}
    axes.axhline(random, color=GREY, label=f"a random policy, {random:.0f}", **dashed)
    mean = scalar["strength"]
    axes.axhline(random + mean, color=VERMILLION, label=f"strength {mean:.0f}", **dashed)
    highest = int(np.nanargmax(found))
    for at, name in ((highest, "max_strength"), (len(found) - 1, "final_strength")):
        marker = "^" if name == "max_strength" else "o"
        axes.plot(frames[at], found[at], marker, label=f"{name} {scalar[name]:.0f}", clip_on=False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def efficiency(runs: Sequence[Run], cost: str, metric: str) -> Figure:
    figure, (axes,) = graphs(1, "S on CartPole-v1, one session each")
    for (label, sessions, _), style in zip(
        runs, line_styles([label for label, *_ in runs]), strict=True
    ):
        session = sessions[0]
        value = session.scalar[metric]
        axes.plot(
            session.local[cost],
            session.local["strengths"],
            color=style.color,
            label=f"{label}: {metric} {value:.2g}",
        )
    axes.set_xlabel("frames" if cost == "frames" else "gradient steps", fontsize=8)
    if cost == "opt_steps":
        axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)
    return figure


def stability(run: Run) -> Figure:
    label, sessions, _ = run
    figure, panels = graphs(2, f"{label} on CartPole-v1, two sessions", columns=2)
    for axes, session in zip(panels, sessions, strict=False):
        frames, found = session.local["frames"], session.local["strengths"]
        axes.plot(frames, found, color=MEAN_COLOR, linewidth=1.2)
        falls = np.append(np.diff(found) < 0, False)
        for i in np.flatnonzero(falls):
            axes.plot(frames[i : i + 2], found[i : i + 2], color=VERMILLION, linewidth=2.2)
        axes.set_title(f"stability {session.scalar['stability']:.4f}", loc="left", fontsize=9)
    return figure


def spread(runs: Sequence[Run]) -> Figure:
    figure, panels = graphs(len(runs), "S on CartPole-v1, four sessions each", columns=2)
    for axes, (label, sessions, _) in zip(panels, runs, strict=True):
        found = [session.local["strengths"] for session in sessions]
        frames, table = sessions[0].local["frames"], np.stack(found)
        mean, std = table.mean(0), table.std(0, ddof=1)
        for line in found:
            axes.plot(frames, line, color=SESSION_COLOR, linewidth=0.7)
        band: dict[str, Any] = {"color": MEAN_COLOR, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(frames, mean - std, mean + std, **band)
        axes.plot(frames, mean, color=MEAN_COLOR, linewidth=1.6)
        title = f"{label}: consistency {consistency(found):.2f}"
        axes.set_title(title, loc="left", fontsize=9)
    return figure


def graphs(count: int, title: str, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure, panels = new_grid(count, columns, (6.8, 2.8))
    figure.suptitle(title, fontsize=9)
    for axes in panels:
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("frames", fontsize=8)
    return figure, panels


if __name__ == "__main__":
    main()
