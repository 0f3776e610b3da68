"""The sum tree against the plain list it stands for."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, strategies as st

from slm_lab.agent.memory.sampler import BLOCK, SumTree

# Whole numbers are exact in float64: boundaries can be hit, and sums compared without tolerance.
VALUES = st.integers(0, 9)


def make_tree(values: list[float]) -> SumTree:
    tree = SumTree(len(values))
    tree.update(np.arange(len(values)), np.array(values, float))
    return tree


def find(tree: SumTree, *mass: float) -> list[int]:
    found: list[int] = tree.find(np.array(mass, float)).tolist()
    return found


@st.composite
def updates(draw: st.DrawFn) -> tuple[int, list[list[tuple[int, int]]]]:
    """A capacity and batches of (index, value), an index perhaps twice in one batch."""
    capacity = draw(st.integers(1, 33))
    pair = st.tuples(st.integers(0, capacity - 1), VALUES)
    return capacity, draw(st.lists(st.lists(pair, min_size=1, max_size=20), max_size=6))


@given(updates())
def test_after_any_updates_the_tree_holds_what_a_list_would(
    case: tuple[int, list[list[tuple[int, int]]]],
) -> None:
    capacity, batches = case
    tree, truth = SumTree(capacity), [0] * capacity
    for batch in batches:
        tree.update(np.array([i for i, _ in batch]), np.array([float(v) for _, v in batch]))
        for index, value in batch:
            truth[index] = value
    assert tree[np.arange(capacity)].tolist() == truth
    assert tree.total == sum(truth)


@given(st.lists(VALUES, min_size=1, max_size=33).filter(any))
def test_every_mass_finds_the_leaf_where_the_running_sum_exceeds_it(values: list[int]) -> None:
    tree, ends = make_tree([float(v) for v in values]), list(accumulate(values))
    masses = [m / 2 for m in range(2 * sum(values))]  # every boundary, and between them
    expected = [next(k for k, end in enumerate(ends) if end > mass) for mass in masses]
    assert find(tree, *masses) == expected


def test_a_boundary_belongs_to_the_leaf_that_starts_there() -> None:
    tree = make_tree([2.0, 0.0, 3.0, 0.0, 0.0])
    assert find(tree, 0.0, 1.999, 2.0, 4.999) == [0, 0, 2, 2]


def test_the_same_holds_between_blocks_of_leaves() -> None:
    empty, ones = [0.0] * BLOCK, [1.0] * BLOCK
    assert find(make_tree([*empty, *ones]), 0.0, 1.0) == [BLOCK, BLOCK + 1]
    assert find(make_tree([*ones, *empty, *ones]), BLOCK - 0.5, BLOCK) == [BLOCK - 1, 2 * BLOCK]


def test_a_mass_rounded_up_to_the_total_stays_on_the_last_leaf_that_has_any() -> None:
    # The stratum (n - 1 + 0.99...) * total / n may round to the total itself.
    tree = make_tree([1.0, 2.0, 0.0, 0.0, 0.0])
    assert find(tree, tree.total, np.nextafter(tree.total, 9)) == [1, 1]


def test_one_leaf_is_a_tree() -> None:
    tree = make_tree([4.0])
    assert tree.total == 4.0
    assert find(tree, 0.0, 3.9) == [0, 0]
    tree.update(np.array([0]), 7.0)
    assert tree.total == 7.0


def test_where_an_index_repeats_its_last_value_counts() -> None:
    tree = make_tree([1.0, 1.0, 1.0])
    tree.update(np.array([1, 2, 1]), np.array([5.0, 6.0, 7.0]))
    assert tree[np.array([0, 1, 2])].tolist() == [1.0, 7.0, 6.0]
    assert tree.total == 14.0


def test_one_number_sets_every_given_leaf() -> None:
    tree = make_tree([1.0, 1.0, 1.0])
    tree.update(np.array([0, 2]), 0.5)
    assert tree.total == 2.0


def test_sums_do_not_drift_over_many_updates() -> None:
    # Parents are added up anew, not corrected by differences: what was 1e12 leaves no trace.
    tree = make_tree([0.1] * 100)
    for _ in range(50):
        tree.update(np.arange(100), 1e12 / 3)
        tree.update(np.arange(100), 0.1)
    assert tree.total == pytest.approx(10.0, rel=1e-12)


def test_a_hundred_thousand_leaves_are_updated_and_found_in_one_call() -> None:
    count = 100_000
    tree = make_tree([1.0] * count)
    assert tree.total == count
    assert (tree.find(np.arange(count) + 0.5) == np.arange(count)).all()


@given(st.lists(VALUES, min_size=1, max_size=17))
def test_loading_the_leaves_restores_the_tree(values: list[int]) -> None:
    tree, copy = make_tree([float(v) for v in values]), SumTree(len(values))
    copy.load(tree.leaves())
    assert copy.total == tree.total
    masses = np.arange(0.0, sum(values), 0.5)
    assert (copy.find(masses) == tree.find(masses)).all()


def test_saved_leaves_do_not_follow_the_tree() -> None:
    tree = make_tree([1.0, 2.0])
    saved = tree.leaves()
    tree.update(np.array([0]), 9.0)
    assert saved.tolist() == [1.0, 2.0]
