import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from slm_lab.analysis.plot import plot_curves, plot_session, plot_trial, plot_trial_html


def session(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = 100.0 * np.arange(1, rows + 1)
    return pd.DataFrame({"frame": frame, "total_reward": frame / 10 + rng.normal(size=rows)})


def ink(path) -> float:
    """Share of pixels that are not white."""
    image = imread(path)[..., :3]
    assert image.shape[0] > 300
    assert image.shape[1] > 500
    return float((image < 0.99).any(axis=-1).mean())


def blue(path) -> int:
    """Pixels in the colour of the mean line."""
    image = np.round(imread(path)[..., :3] * 255).astype(int)
    return int((np.abs(image - (0x00, 0x72, 0xB2)).max(axis=-1) < 8).sum())


@pytest.mark.parametrize("smooth", [False, True])
def test_a_session_graph_shows_a_curve(tmp_path, smooth):
    path = tmp_path / "session.png"
    plot_session(session(50), "total_reward", path, title="demo_t0_s0 train", smooth=smooth)
    assert ink(path) > 0.01
    assert blue(path) > 500


def test_a_single_checkpoint_shows_as_a_dot(tmp_path):
    plot_session(session(1), "total_reward", tmp_path / "one.png", title="one")
    empty = session(1).assign(total_reward=math.nan)
    plot_session(empty, "total_reward", tmp_path / "none.png", title="none")
    assert blue(tmp_path / "one.png") > 10
    assert blue(tmp_path / "none.png") == 0


@pytest.mark.parametrize("smooth", [False, True])
def test_a_trial_graph_shows_sessions_that_differ_in_length(tmp_path, smooth):
    path = tmp_path / "trial.png"
    plot_trial([session(50, 1), session(20, 2)], path, title="demo_t0", smooth=smooth)
    assert blue(path) > 500


def test_curves_may_stand_still_in_x_as_gradient_steps_do_before_learning(tmp_path):
    curves = [pd.Series([1.0, 2.0, 3.0], index=[0, 0, 10 + session]) for session in (0, 1)]
    plot_curves(curves, tmp_path / "trial.png", title="demo_t0", y_label="y", x_label="opt_steps")
    assert blue(tmp_path / "trial.png") > 100


def test_a_diverged_session_leaves_a_gap_instead_of_an_error(tmp_path):
    broken = session(20)
    broken.loc[10:, "total_reward"] = math.inf
    plot_trial([session(20), broken], tmp_path / "trial.png", title="demo_t0", smooth=True)
    plot_trial_html([session(20), broken], tmp_path / "trial.html", title="demo_t0")


def test_the_interactive_graph_is_one_page_that_needs_no_network(tmp_path):
    path = tmp_path / "trial.html"
    plot_trial_html([session(50, 1), session(50, 2)], path, title="demo_t0")
    page = path.read_text()
    assert len(page) > 3_000_000  # plotly.js itself
    head, _, data = page.rpartition("<script")
    assert "session 1" in data
    assert "moving average" in data
    assert "http" not in data
    for loaded_from_elsewhere in ("<script src", '<script type="text/javascript" src', "<link"):
        assert loaded_from_elsewhere not in head + data


def test_the_same_tables_give_the_same_page(tmp_path):
    tables = [session(5)]
    plot_trial_html(tables, tmp_path / "a.html", title="demo")
    plot_trial_html(tables, tmp_path / "b.html", title="demo")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
