import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from slm_lab.analysis.curves import FRAMES
from slm_lab.analysis.plot import Heading, Line, curves_view, plot_curves, plot_lines, plot_tables
from slm_lab.analysis.style import BLUE, GREY, line_styles


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
    plot_tables([session(50)], path, title="demo_t0_s0 train", smooth=smooth)
    assert ink(path) > 0.01
    assert blue(path) > 500


def test_a_single_checkpoint_shows_as_a_dot(tmp_path):
    plot_tables([session(1)], tmp_path / "one.png", title="one")
    empty = session(1).assign(total_reward=math.nan)
    plot_tables([empty], tmp_path / "none.png", title="none")
    assert blue(tmp_path / "one.png") > 10
    assert blue(tmp_path / "none.png") == 0


@pytest.mark.parametrize("smooth", [False, True])
def test_a_trial_graph_shows_sessions_that_differ_in_length(tmp_path, smooth):
    path = tmp_path / "trial.png"
    plot_tables([session(50, 1), session(20, 2)], path, title="demo_t0", smooth=smooth)
    assert blue(path) > 500


def test_curves_may_stand_still_in_x_as_gradient_steps_do_before_learning(tmp_path):
    curves = [pd.Series([1.0, 2.0, 3.0], index=[0, 0, 10 + session]) for session in (0, 1)]
    plot_curves(curves, tmp_path / "trial.png", title="demo_t0", y_label="y", x_label="opt_steps")
    assert blue(tmp_path / "trial.png") > 100


def test_a_diverged_session_leaves_a_gap_instead_of_an_error(tmp_path):
    broken = session(20)
    broken.loc[10:, "total_reward"] = math.inf
    plot_tables([session(20), broken], tmp_path / "trial.png", title="demo_t0", smooth=True)
    assert blue(tmp_path / "trial.png") > 100


def test_a_graph_is_replaced_in_one_step_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "trial.png"
    path.write_text("an older graph")
    plot_tables([session(5)], path, title="demo_t0")
    assert [file.name for file in tmp_path.iterdir()] == ["trial.png"]
    assert path.read_bytes().startswith(b"\x89PNG")


def lines(*names: str) -> list[Line]:
    curves = [pd.Series([1.0, 2.0, 4.0], index=[100, 200, 300])]
    return [Line(n, curves, s) for n, s in zip(names, line_styles(names), strict=True)]


def near(path, color: str) -> int:
    """Pixels in a colour."""
    wanted = tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
    image = np.round(imread(path)[..., :3] * 255).astype(int)
    return int((np.abs(image - wanted).max(axis=-1) < 8).sum())


def test_an_algorithm_has_its_colour_whatever_else_is_in_the_graph(tmp_path):
    for i, names in enumerate([("PPO",), ("DQN", "PPO"), ("A2C", "SAC", "PPO")]):
        path = tmp_path / f"{i}.png"
        plot_lines(lines(*names), path, title="CartPole-v1", x=FRAMES, y_label="mean return")
        assert near(path, BLUE) > 500


def test_the_target_is_a_line_of_its_own(tmp_path):
    for name, target in (("without", None), ("with", 3.0)):
        plot_lines(
            lines("PPO"),
            tmp_path / name,
            title="CartPole-v1",
            x=FRAMES,
            y_label="mean return",
            target=target,
        )
    assert near(tmp_path / "with", GREY) > near(tmp_path / "without", GREY) + 300


def test_the_curve_without_smoothing_stands_faint_behind_the_moving_average(tmp_path):
    for name, smooth in (("raw", False), ("smooth", True)):
        plot_tables([session(150)], tmp_path / name, title="demo", smooth=smooth)
    # BLUE at an opacity of 0.35 on white
    assert near(tmp_path / "smooth", "#A6CEE4") > near(tmp_path / "raw", "#A6CEE4") + 200
    lines = [pd.Series([1.0, 2.0], index=[1, 2])]
    assert len(curves_view({"a": lines[0]}, x_label="x", y_label="y").traces) == 1
    raw, line = curves_view({"a": lines[0]}, x_label="x", y_label="y", raw=lines).traces
    assert raw["opacity"] < 0.5 < line["opacity"]


def test_a_heading_has_two_lines_and_its_target_is_drawn(tmp_path):
    plot_tables([session(50)], tmp_path / "plain", title="demo_t0")
    heading = Heading("PPO on CartPole-v1: last 100 episodes 500.00", "demo_t0", target=3.0)
    plot_tables([session(50)], tmp_path / "headed", title=heading)
    top = slice(0, 60)
    inked = [(imread(tmp_path / name)[top, :, :3] < 0.99).any() for name in ("plain", "headed")]
    assert inked == [True, True]
    assert near(tmp_path / "headed", GREY) > near(tmp_path / "plain", GREY) + 300
    view = curves_view({"a": session(5)["total_reward"]}, x_label="x", y_label="y", target=3.0)
    assert view.layout["annotations"][0]["text"] == "target 3"
