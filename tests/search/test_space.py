"""Each distribution of a `search` block, at coordinates whose values can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from slm_lab.search.space import Dimension, dimensions, values_at
from slm_lab.spec import spec_from_dict


def dim(distribution: str, *arguments: Any) -> Dimension:
    return Dimension("agent.algorithm.gamma", distribution, arguments)


@pytest.mark.parametrize(
    ("dimension", "coordinate", "value"),
    [
        (dim("uniform", 2, 4), 0.0, 2.0),
        (dim("uniform", 2, 4), 0.25, 2.5),
        (dim("quniform", 0, 1, 0.1), 0.32, 0.3),
        (dim("quniform", 0.05, 0.2, 0.1), 0.0, 0.1),  # 0.0 lies outside, so the nearest inside
        (dim("loguniform", 1e-4, 1e-2), 0.5, pytest.approx(1e-3)),
        (dim("qloguniform", 1, 100, 5), 0.5, 10.0),
        (dim("randn", 3, 2), 0.5, pytest.approx(3.0)),
        (dim("randn", 0, 1), 0.8413447, pytest.approx(1.0, abs=1e-5)),  # one sd up
        (dim("qrandn", 3, 2, 1), 0.69146, 4.0),  # half a sd up
        (dim("randint", 5, 8), 0.0, 5),
        (dim("randint", 5, 8), 0.999, 7),  # the upper end is not included
        (dim("randint", 5, 8), 1.0, 7),
        (dim("qrandint", 10, 40, 10), 0.999, 40),  # the upper end is included
        (dim("qrandint", 10, 40, 10), 0.3, 20),
        (dim("lograndint", 1, 100), 0.5, 10),
        (dim("lograndint", 1, 100), 1.0, 99),
        (dim("qlograndint", 8, 512, 8), 0.5, 64),
        (dim("choice", [64], [64, 64]), 1, [64, 64]),
    ],
    ids=str,
)
def test_a_coordinate_becomes_the_value_of_its_distribution(dimension, coordinate, value):
    found = dimension.value(coordinate)
    assert found == value
    assert isinstance(found, int) == isinstance(value, int)


@pytest.mark.parametrize("kind", ["randn", "qrandn"])
def test_the_ends_of_the_unit_interval_give_a_finite_normal_value(kind):
    arguments = (0, 1) if kind == "randn" else (0, 1, 0.1)
    assert -10 < dim(kind, *arguments).value(0.0) < dim(kind, *arguments).value(1.0) < 10


@pytest.mark.parametrize(
    ("dimension", "points"),
    [
        (dim("choice", "a", "b"), ("a", "b")),
        (dim("randint", 2, 5), (2, 3, 4)),
        (dim("qrandint", 16, 64, 16), (16, 32, 48, 64)),
        (dim("quniform", 0.1, 0.4, 0.1), (0.1, 0.2, 0.3, 0.4)),
        (dim("uniform", 0, 1), None),
        (dim("loguniform", 1, 2), None),
    ],
    ids=str,
)
def test_values_are_counted_where_they_can_be(dimension, points):
    assert dimension.points() == points


def test_a_search_block_may_be_flat_or_nested_and_keeps_its_order(make_spec):
    tree = make_spec().to_dict()
    tree["search"] = {
        "agent.algorithm.lam__uniform": [0.8, 1.0],
        "agent": {"net": {"hid_layers__choice": [[4], [8, 8]]}},
    }
    space = dimensions(spec_from_dict(tree, "tiny"))
    assert [(d.path, d.distribution) for d in space] == [
        ("agent.algorithm.lam", "uniform"),
        ("agent.net.hid_layers", "choice"),
    ]
    point = {"agent.algorithm.lam": 0.5, "agent.net.hid_layers": 1}
    assert values_at(space, point) == {
        "agent.algorithm.lam": pytest.approx(0.9),
        "agent.net.hid_layers": [8, 8],
    }


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("agent.net.optim_spec.lr", "lr"),
        ("agent.algorithm.entropy_coef_spec.start_val", "entropy_coef"),
        ("gamma", "gamma"),
    ],
)
def test_a_label_is_short_and_still_says_what_it_is(path, label):
    assert Dimension(path, "uniform", (0, 1)).label == label
