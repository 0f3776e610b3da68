"""Style of graphs: colours for every kind of colour vision, names and order of algorithms.

Six colours are Okabe and Ito's; violet and brown were added so that all eight stay apart in
simulated protanopia and deuteranopia, and against white and dark pages (tests/analysis/
test_style.py). Lines of algorithms also differ in their markers: no graph rests on colour alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slm_lab.spec.algorithm import algorithm_with_label

BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, VIOLET, BROWN = "#E69F00", "#56B4E9", "#7A50F0", "#A03A20"
PALETTE = (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, VIOLET, BROWN)
LIGHT_GREEN, GREY = "#5AC369", "#707070"
MEAN_COLOR = BLUE
SESSION_COLOR = "#8A8A8A"
SCORE_COLORS = "viridis"  # even in grey, and to most eyes

# The names that records of algorithms use.
_NAMES = ("blue", "vermillion", "green", "pink", "orange", "sky", "violet", "brown")
_COLORS = dict(zip(_NAMES, PALETTE, strict=True)) | {"lightgreen": LIGHT_GREEN, "grey": GREY}
_DASHES = ("solid", "dash", "dot", "dashdot")  # for a second line of the same colour


@dataclass(frozen=True, slots=True)
class LineStyle:
    color: str
    dash: str  # as plotly calls it
    marker: str  # as matplotlib calls it


def rgba(color: str, alpha: float) -> str:
    """A colour such as #0072B2 with an opacity, as plotly takes it."""
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return f"rgba({red},{green},{blue},{alpha})"


def legend_rank(label: str) -> tuple[int, str]:
    """To sort labels by: known algorithms in the order of their records, then others by name."""
    info = algorithm_with_label(label)
    return (info.order if info else 10_000, label)


def line_styles(algorithms: Sequence[str]) -> list[LineStyle]:
    """One style per line. An algorithm always has its colour; its second line is dashed."""
    seen: Counter[str] = Counter()
    styles = []
    for label in algorithms:
        color, marker = _style_of(label)
        styles.append(LineStyle(color, _DASHES[seen[color] % len(_DASHES)], marker))
        seen[color] += 1
    return styles


def _style_of(label: str) -> tuple[str, str]:
    info = algorithm_with_label(label)
    if info is None:
        return GREY, "."
    style = info.per_style if info.per_style and label != info.label else info.style
    return _COLORS.get(style.color, style.color), style.marker
