"""What native code may get different from eager, and what it may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from slm_lab.agent.learning.compiler import WrongNumbers, _copy, check_first_call

Function = Callable[..., Sequence[Tensor]]


def agrees(expected: Tensor, found: Tensor) -> bool:
    """Whether code that returns `found` passes for a function that returns `expected`."""
    try:
        check_first_call(lambda: (found,), lambda: (expected,), ())
    except WrongNumbers:
        return False
    return True


def steps_to(before: Tensor, expected: Tensor, found: Tensor) -> bool:
    """The same of code that moves `before` in place."""

    def moves_to(after: Tensor) -> Function:
        return lambda x: (x.copy_(after)[:0],)

    try:
        check_first_call(moves_to(found), moves_to(expected), (before,))
    except WrongNumbers:
        return False
    return True


VALUES = torch.linspace(-1, 1, 1001)


def test_last_digits_may_differ_and_a_tenth_may_not() -> None:
    assert agrees(VALUES, VALUES * (1 + 1e-6))
    assert agrees(1e-9 * VALUES, 1e-9 * VALUES * (1 + 1e-6))
    assert not agrees(VALUES, VALUES * 1.1)
    assert not agrees(1e-9 * VALUES, 1e-9 * VALUES * 1.1)


def test_a_number_that_nearly_cancels_may_be_any_small_number() -> None:
    assert agrees(torch.tensor([1.0, 1e-9]), torch.tensor([1.0, -3e-9]))


def test_what_a_step_moves_is_judged_by_the_move_not_by_its_size() -> None:
    weights, moves = 100 * VALUES, 1e-2 * VALUES.flip(0)
    assert steps_to(weights, weights + moves, weights + moves * (1 + 1e-6))
    assert not steps_to(weights, weights + moves, weights + moves * 1.1)
    assert not steps_to(weights, weights + moves, weights)


def test_a_running_mean_of_what_is_centred_already_is_rounding() -> None:
    zeros = 0 * VALUES
    assert steps_to(zeros, 1e-10 * VALUES, -3e-10 * VALUES)
    assert not steps_to(zeros, 1e-6 * VALUES, -3e-6 * VALUES)


def test_what_a_step_leaves_alone_stays_alone() -> None:
    assert steps_to(VALUES, VALUES, VALUES)
    assert not steps_to(VALUES, VALUES, VALUES + 1e-3)


def test_the_first_step_of_adam_may_go_the_other_way_for_few_numbers() -> None:
    weights, lr = VALUES, 1e-3
    expected = weights - lr

    def with_turned(count: int, by: float = 2 * lr) -> Tensor:
        found = expected.clone()
        found[:count] += by
        return found

    assert steps_to(weights, expected, with_turned(1))
    assert not steps_to(weights, expected, with_turned(40))
    assert not steps_to(weights, expected, with_turned(1, by=10 * lr))


def test_a_tie_may_fall_the_other_way_in_one_of_many_choices() -> None:
    choices = torch.arange(1000) % 4
    other = choices.clone()
    other[0] += 1
    assert agrees(choices, other)
    assert not agrees(choices[:16], other[:16])
    assert not agrees(choices > 1, choices > 2)


@pytest.mark.parametrize("nothing", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none(nothing: float) -> None:
    diverged, finite = VALUES.clone(), VALUES.clone()
    diverged[3] = nothing
    assert agrees(diverged, diverged)
    assert not agrees(diverged, finite)
    assert not agrees(finite, diverged)
    assert not agrees(diverged, diverged * 1.1)


def test_a_function_that_draws_is_not_compared_and_spends_nothing() -> None:
    def draw() -> tuple[Tensor]:
        return (torch.rand(100),)

    before = torch.get_rng_state()
    check_first_call(draw, draw, ())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(3.0),
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(3.0).expand(2, 3),
        torch.arange(20)[1::3],
        torch.tensor(5, dtype=torch.uint8),
        torch.empty(0, 3),
    ],
)
def test_a_copy_has_the_same_numbers_at_the_same_strides_in_other_memory(x: Tensor) -> None:
    copy = _copy(x)
    assert torch.equal(copy, x)
    assert copy.dtype == x.dtype
    assert copy.stride() == x.stride()
    assert copy.numel() == 0 or copy.data_ptr() != x.data_ptr()
