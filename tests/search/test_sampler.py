"""Which trials a search tries: repeatable, and the same after an interruption."""

from __future__ import annotations

import pytest

from slm_lab.search.space import (
    Dimension,
    GridSampler,
    OptunaSampler,
    PointSampler,
    RandomSampler,
    values_at,
)

GAMMA = Dimension("gamma", "uniform", (0.0, 1.0))
LAYERS = Dimension("layers", "choice", ([4], [8], [8, 8]))
SPACE = (GAMMA, LAYERS)


def new(kind: str, seed: int = 0) -> PointSampler:
    return OptunaSampler(SPACE, seed, 12) if kind == "optuna" else RandomSampler(SPACE, seed)


@pytest.mark.parametrize("kind", ["optuna", "random"])
def test_a_seed_gives_the_same_points_and_another_gives_others(kind):
    first = [new(kind).ask(0), new(kind).ask(0)]
    assert first[0] == first[1] != new(kind, seed=1).ask(0)


@pytest.mark.parametrize("kind", ["optuna", "random"])
def test_a_point_is_inside_the_space(kind):
    sampler = new(kind)
    for trial in range(12):
        point = sampler.ask(trial)
        sampler.tell(trial, point["gamma"])
        assert 0 <= point["gamma"] <= 1
        assert point["layers"] in (0, 1, 2)


@pytest.mark.parametrize("kind", ["optuna", "random"])
def test_a_sampler_rebuilt_from_its_past_goes_on_as_the_first_one_does(kind):
    """Trials 0 to 7 have ended but 5, which was running when the search was killed."""
    first, points = new(kind), {}
    for trial in range(8):
        points[trial] = first.ask(trial)
        if trial != 5:
            first.tell(trial, points[trial]["gamma"])
    rebuilt = new(kind)
    for trial, point in points.items():
        rebuilt.replay(trial, point)
        if trial != 5:
            rebuilt.tell(trial, point["gamma"])
    assert rebuilt.ask(8) == first.ask(8)
    for sampler in (first, rebuilt):
        sampler.tell(5, 0.0)
    assert rebuilt.ask(9) == first.ask(9)


def test_optuna_looks_more_where_scores_were_high():
    """The score is highest at gamma 0.8; uniform draws are 0.34 away from it on average."""
    sampler = OptunaSampler(SPACE, 0, 40)
    distances = []
    for trial in range(40):
        gamma = sampler.ask(trial)["gamma"]
        sampler.tell(trial, -abs(gamma - 0.8))
        distances.append(abs(gamma - 0.8))
    assert sum(distances[20:]) / 20 < 0.17


def test_a_grid_has_every_combination_once():
    steps = Dimension("steps", "qrandint", (16, 48, 16))
    share = Dimension("share", "quniform", (0.0, 1.0, 0.5))
    space = (LAYERS, steps, share)
    grid = GridSampler(space)
    values = [tuple(values_at(space, grid.ask(i)).values()) for i in range(27)]
    assert values[:4] == [([4], 16, 0.0), ([4], 16, 0.5), ([4], 16, 1.0), ([4], 32, 0.0)]
    assert len({str(value) for value in values}) == 27
