"""Plots of a row and of the page: small PNG files for the repository."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from slm_lab.analysis.curves import SMOOTH_LABEL
from slm_lab.analysis.plot import draw_mean, dress
from slm_lab.analysis.style import MEAN_COLOR, SESSION_COLOR, line_styles

COLORS = 64  # lines on white need no more, and the file shrinks to a third
SOURCE_KEY = "slm-lab-curves"  # PNG text: the digest of the numbers that are drawn


def plot_sessions(curve: pd.DataFrame, path: Path, *, title: str) -> None:
    """Draw the sessions of one row as thin lines under their mean."""
    figure, axes = _figure(title)
    for name in curve:
        axes.plot(curve.index, curve[name], color=SESSION_COLOR, linewidth=0.7, alpha=0.6)
    axes.plot(curve.index, curve.mean(axis=1), color=MEAN_COLOR, linewidth=2)
    _save(figure, path, curves_digest({title: curve}))


def plot_algorithms(curves: Mapping[str, pd.DataFrame], path: Path, *, title: str) -> None:
    """Draw the mean of each algorithm with a band of one standard deviation over its sessions.

    A file that shows these numbers already is not drawn again, because another version of
    matplotlib would draw other bytes.
    """
    digest = curves_digest(curves)
    if drawn_from(path) == digest:
        return
    figure, axes = _figure(title)
    styles = line_styles(list(curves))
    for (algorithm, curve), style in zip(curves.items(), styles, strict=True):
        mean, std = curve.mean(axis=1), curve.std(axis=1).fillna(0.0)
        draw_mean(axes, mean, std, style, label=algorithm, linewidth=1.8, markersize=4)
    axes.legend(loc="best", frameon=False, fontsize=8)
    _save(figure, path, digest)


def drawn_from(path: Path) -> str | None:
    """The digest in the metadata of a plot, or None where there is no such plot."""
    try:
        with Image.open(path) as image:
            found = image.info.get(SOURCE_KEY)
            return found if isinstance(found, str) else None
    except (OSError, SyntaxError):
        return None


def curves_digest(curves: Mapping[str, pd.DataFrame]) -> str:
    """Digest of the numbers of a plot."""
    text = "".join(f"{name}\n{curve.to_csv(float_format='%.6g')}" for name, curve in curves.items())
    return hashlib.sha256(text.encode()).hexdigest()


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.6), dpi=90, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("frames", fontsize=8)
    axes.set_ylabel(SMOOTH_LABEL, fontsize=7)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    dress(axes)
    axes.margins(x=0.05)
    return figure, axes


def _save(figure: Figure, path: Path, digest: str) -> None:
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    text = PngInfo()
    text.add_text(SOURCE_KEY, digest)
    small = Image.open(drawn).convert("RGB").quantize(COLORS)
    path.parent.mkdir(parents=True, exist_ok=True)
    small.save(path, optimize=True, pnginfo=text)
