"""Draw the pictures of docs/algorithms/: what the curves of a run that learns look like.

    python -m perf.learning_pictures [--data data/docs] [--only ppo sac]

Each is a shipped spec with two sessions, trained if it is not there yet; all of them take most
of an hour on one core. A line is a session, over frames.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from perf.docs_images import DATA, IMAGES, Training, shrink, train
from slm_lab.analysis.plot import new_grid, save
from slm_lab.analysis.style import line_styles
from slm_lab.analysis.tables import read_facts, read_session
from slm_lab.runs.glossary import label
from slm_lab.runs.layout import RunLayout

COLUMNS = 3
TWO_SEEDS = ("meta.max_session=2", "meta.random_seed=1")
SHORT = (*TWO_SEEDS, "env.max_frame=40000")  # off-policy specs are made for many more
BRIEF = (*TWO_SEEDS, "env.max_frame=12000")  # of wide nets, one update a frame

OF_Q_VALUES = ("last_100_return", "explore_var", "q_value")
OF_DISTRIBUTIONS = ("last_100_return", "loss", "q_value")
OF_SOFT_POLICIES = ("last_100_return", "alpha", "entropy", "q_value", "loss", "policy_loss")
OF_POLICIES = ("entropy", "explained_variance", "policy_loss", "value_loss", "grad_norm")

# Page -> (file below slm_lab/spec/benchmark/, spec, what is set, columns).
PICTURES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "reinforce": (
        *("reinforce/reinforce_cartpole.json", "reinforce_cartpole"),
        *(TWO_SEEDS, ("last_100_return", "entropy", "grad_norm")),
    ),
    "sarsa": ("sarsa/sarsa_cartpole.json", "sarsa_boltzmann_cartpole", TWO_SEEDS, OF_Q_VALUES),
    "dqn": ("dqn/dqn_cartpole.json", "dqn_boltzmann_cartpole", TWO_SEEDS, OF_Q_VALUES),
    "qrdqn": ("qrdqn/qrdqn_cartpole.json", "qrdqn_cartpole", TWO_SEEDS, OF_DISTRIBUTIONS),
    "c51": ("c51/c51_cartpole.json", "c51_cartpole", TWO_SEEDS, OF_DISTRIBUTIONS),
    "rainbow": ("rainbow/rainbow_cartpole.json", "rainbow_cartpole", TWO_SEEDS, OF_DISTRIBUTIONS),
    "a2c": (
        *("a2c/a2c_gae_cartpole.json", "a2c_gae_cartpole"),
        *(TWO_SEEDS, ("last_100_return", *OF_POLICIES)),
    ),
    "ppo": (
        *("ppo/ppo_cartpole.json", "ppo_cartpole", TWO_SEEDS),
        (
            *("last_100_return", "entropy", "explained_variance"),
            *("approx_kl", "clip_frac", "value_loss"),
        ),
    ),
    "sil": (
        *("sil/ppo_sil_cartpole.json", "ppo_sil_cartpole", TWO_SEEDS),
        (
            *("last_100_return", "entropy", "explained_variance"),
            *("sil_policy_loss", "sil_value_loss", "approx_kl"),
        ),
    ),
    "sac": ("sac/sac_pendulum.json", "sac_pendulum", SHORT, OF_SOFT_POLICIES),
    "crossq": ("crossq/crossq_pendulum.json", "crossq_pendulum", SHORT, OF_SOFT_POLICIES),
    "td3": (
        *("td3/td3.yaml", "td3_pendulum"),
        *(TWO_SEEDS, ("last_100_return", "q_value", "policy_loss")),
    ),
    "tqc": ("tqc/tqc.yaml", "tqc_pendulum", BRIEF, OF_SOFT_POLICIES),
    "xqc": ("xqc/xqc_pendulum.yaml", "xqc_pendulum", BRIEF, OF_SOFT_POLICIES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    arguments = parser.parse_args()
    for page in arguments.only:
        training = training_of(page)
        train(training, arguments.data)
        columns = PICTURES[page][-1]
        draw(training.folder(arguments.data), columns, IMAGES / f"learning_{page}.png")


def training_of(page: str) -> Training:
    """The run that the picture of a page shows."""
    file, name, sets, _ = PICTURES[page]
    return Training(file, name, "2026_11_19_230000", sets)


def draw(folder: Path, columns: tuple[str, ...], path: Path) -> None:
    """One small graph for each column, with a line for each session."""
    layout, facts = RunLayout.open(folder), read_facts(folder, 0)
    tables = [read_session(layout.session_csv(0, s, "train")) for s in layout.sessions(0)]
    color = line_styles([facts.algorithm])[0].color
    figure, graphs = new_grid(len(columns), COLUMNS, (8.4, 2.3 * -(-len(columns) // COLUMNS)))
    for axes, column in zip(graphs, columns, strict=True):
        for table, dash in zip(tables, ("-", "--"), strict=True):
            known: pd.DataFrame = table[["frame", column]].dropna()
            axes.plot(known["frame"], known[column], color=color, linestyle=dash, linewidth=1.2)
        axes.set_title(label(column), loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(f"{facts.algorithm}, {facts.env}, 2 sessions, over frames", fontsize=9)
    keep(figure, path)


def keep(figure: Figure, path: Path) -> None:
    """Write a figure as a small picture."""
    with tempfile.TemporaryDirectory() as scratch:
        drawn = Path(scratch) / path.name
        save(figure, drawn)
        shrink(drawn, path)


if __name__ == "__main__":
    main()
