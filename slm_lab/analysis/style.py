"""Style of graphs: colours for every kind of colour vision, names and order of algorithms.

Six colours are Okabe and Ito's; violet and brown were added so that all eight stay apart in
simulated protanopia and deuteranopia, and against white and dark pages (tests/analysis/
test_style.py). Lines of algorithms also differ in their markers: no graph rests on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, VIOLET, BROWN = "#E69F00", "#56B4E9", "#7A50F0", "#A03A20"
PALETTE = (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, VIOLET, BROWN)
LIGHT_GREEN, GREY = "#5AC369", "#707070"
MEAN_COLOR = BLUE
SESSION_COLOR = "#8A8A8A"
SCORE_COLORS = "viridis"  # even in grey, and to most eyes

# The order of a legend, and each algorithm's colour and marker, whatever else is in the graph.
_ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "REINFORCE": (SKY, "o"),
    "SARSA": (BROWN, "s"),
    "DQN": (ORANGE, "^"),
    "DDQN": (LIGHT_GREEN, "<"),
    "DDQN+PER": (VERMILLION, "v"),
    "A2C": (GREEN, "D"),
    "SIL": (GREY, "P"),
    "PPO": (BLUE, "o"),
    "PPO+SIL": (GREY, "X"),
    "SAC": (PINK, "s"),
    "CrossQ": (VIOLET, "^"),
    "Random": (GREY, "."),
}
_LABELS = {
    "Reinforce": "REINFORCE",
    "VanillaDQN": "DQN",
    "DQNBase": "DQN",
    "DoubleDQN": "DDQN",
    "ActorCritic": "A2C",
    "SoftActorCritic": "SAC",
    "PPOSIL": "PPO+SIL",
}
_DASHES = ("solid", "dash", "dot", "dashdot")  # for a second line of the same colour


@dataclass(frozen=True, slots=True)
class LineStyle:
    color: str
    dash: str  # as plotly calls it
    marker: str  # as matplotlib calls it


def algorithm_label(algorithm: str, memory: str = "") -> str:
    """Label of an algorithm in plots: `DoubleDQN` with a prioritised replay is DDQN+PER."""
    label = _LABELS.get(algorithm, algorithm)
    return "DDQN+PER" if label == "DDQN" and memory.startswith("Prioritized") else label


def legend_rank(label: str) -> tuple[int, str]:
    """Sort key of labels: known algorithms in their fixed order, then the others by name."""
    known = list(_ALGORITHMS)
    return (known.index(label) if label in known else len(known), label)


def line_styles(algorithms: Sequence[str]) -> list[LineStyle]:
    """One style per line. An algorithm always has its colour; its second line is dashed."""
    seen: dict[str, int] = {}
    styles = []
    for label in algorithms:
        color, marker = _ALGORITHMS.get(label, (GREY, "."))
        count = seen.get(color, 0)
        seen[color] = count + 1
        styles.append(LineStyle(color, _DASHES[count % len(_DASHES)], marker))
    return styles
