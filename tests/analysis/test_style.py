"""Colours that everyone can tell apart, on a white page and on a dark one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from slm_lab.analysis.style import PALETTE, legend_rank, line_styles
from slm_lab.spec.algorithm import algorithm_label

ALGORITHMS = ("REINFORCE", "SARSA", "DQN", "DDQN+PER", "A2C", "PPO", "SAC", "CrossQ")
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
# What is left of linear RGB at full severity (Machado, Oliveira and Fernandes 2009, table 1).
EYES = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "deuteranopia": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "tritanopia": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]
    ),
}


def linear(color: str) -> np.ndarray:
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(color: str, eye: str) -> np.ndarray:
    """CIE L*a*b* of a colour as that eye sees it; a distance of 2.3 is just noticed."""
    xyz = TO_XYZ @ np.clip(EYES[eye] @ linear(color), 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    light, dark = sorted(((TO_XYZ @ linear(c))[1] for c in (a, b)), reverse=True)
    return float((light + 0.05) / (dark + 0.05))


@pytest.mark.parametrize("eye", EYES)
def test_any_two_colours_are_far_apart_to_every_eye(eye):
    distance = {
        pair: np.linalg.norm(lab(pair[0], eye) - lab(pair[1], eye))
        for pair in combinations(PALETTE, 2)
    }
    assert min(distance.values()) > 15, min(distance, key=lambda pair: distance[pair])


def test_red_and_green_of_the_same_brightness_would_not_pass():
    assert np.linalg.norm(lab("#B22222", "deuteranopia") - lab("#6B6B00", "deuteranopia")) < 15


@pytest.mark.parametrize("page", ["#ffffff", "#16191d"])
def test_every_colour_stands_out_from_a_light_and_from_a_dark_page(page):
    assert min(contrast(color, page) for color in PALETTE) > 2.2


def test_the_eight_algorithms_have_a_colour_each_and_no_two_lines_share_colour_and_marker():
    styles = line_styles(ALGORITHMS)
    assert len({style.color for style in styles}) == 8
    assert len({(style.marker, style.color) for style in styles}) == 8


def test_a_second_line_of_an_algorithm_keeps_its_colour_and_is_dashed():
    first, other, second = line_styles(["PPO", "SAC", "PPO"])
    assert first.color == second.color != other.color
    assert (first.dash, other.dash, second.dash) == ("solid", "solid", "dash")


def test_an_unknown_algorithm_is_grey_and_two_of_them_differ():
    mine, yours = line_styles(["Mine", "Yours"])
    assert mine.color == yours.color
    assert mine.dash != yours.dash


def test_a_legend_has_the_order_of_the_benchmark():
    labels = ["CrossQ", "Zeta", "PPO", "DQN", "Alpha", "REINFORCE", "DDQN+PER"]
    ordered = ["REINFORCE", "DQN", "DDQN+PER", "PPO", "CrossQ", "Alpha", "Zeta"]
    assert sorted(labels, key=legend_rank) == ordered


@pytest.mark.parametrize(
    ("algorithm", "memory", "label"),
    [
        ("Reinforce", "OnPolicyReplay", "REINFORCE"),
        ("SARSA", "OnPolicyBatchReplay", "SARSA"),
        ("VanillaDQN", "Replay", "DQN"),
        ("DQN", "PrioritizedReplay", "DQN+PER"),
        ("DoubleDQN", "PrioritizedReplay", "DDQN+PER"),
        ("DoubleDQN", "Replay", "DDQN"),
        ("ActorCritic", "OnPolicyBatchReplay", "A2C"),
        ("PPO", "OnPolicyBatchReplay", "PPO"),
        ("SoftActorCritic", "Replay", "SAC"),
        ("CrossQ", "Replay", "CrossQ"),
        ("Mine", "", "Mine"),
    ],
)
def test_an_algorithm_is_called_what_the_benchmark_calls_it(algorithm, memory, label):
    assert algorithm_label(algorithm, memory) == label
