"""Check of the first call of native code against the eager function, both on copies.

Both do the same arithmetic in another order, so their last digits differ. A step of Adam makes more
of that: it moves each number by about the learning rate, whatever the size of its gradient, so a
gradient that is nearly zero, with another sign, sends its number the other way. Therefore a tensor
is compared by how much the function changed it (an output: by its size), and a few of its numbers,
but not many, may differ by as much as that. Found on first calls, in numbers that differ by more
than `_ROUNDING`:

    none         PPO CartPole and Pong, recurrent PPO, A2C, DQN with PER, SAC Pendulum and CartPole,
                 and no action of any of them
    1 in 15,000  CrossQ Hopper (critics; behind batch norm gradients nearly cancel)
    1 in 9,000   CrossQ Pendulum
    1 in 2,500   CrossQ CartPole, worst of three seeds (its actor, too)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

TensorFunction = Callable[..., Sequence[Tensor]]

_ROUNDING = 0.05  # of the root mean square of the changes of a tensor
_SHARE = 0.005  # of its numbers may differ by more
_FARTHEST = 4.0  # times the largest change: none may; a step the other way is 2


class WrongNumbers(ArithmeticError):
    """Native code computes other numbers than its eager function."""


def check_first_call(
    native: TensorFunction, function: TensorFunction, inputs: Sequence[Tensor]
) -> None:
    """Call both on copies of `inputs`; raises what the native code raises, or WrongNumbers."""
    by_function, by_native = ([_copy(x) for x in inputs] for _ in range(2))
    with _own_draws(inputs) as has_drawn:
        expected = function(*by_function)
        is_random = has_drawn()
        found = native(*by_native)
    if len(found) != len(expected):
        raise WrongNumbers(f"{len(found)} outputs instead of {len(expected)}")
    if is_random:  # as with Dropout: no two calls agree
        return
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        _compare(f"output {i}", one, other, torch.zeros_like(one))
    for i, (before, one, other) in enumerate(zip(inputs, by_function, by_native, strict=True)):
        _compare(f"input {i}", one, other, before)


def _copy(x: Tensor) -> Tensor:
    """Copy with the same strides: a clone would make expanded tensors contiguous."""
    if x.numel() == 0:
        return x.clone()
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    memory = x.as_strided((span,), (1,)).clone()
    return memory.as_strided(x.shape, x.stride(), 0)


@contextmanager
def _own_draws(inputs: Sequence[Tensor]) -> Iterator[Callable[[], bool]]:
    """Restore the global random state after; yields a function that tells whether it was used."""
    cards = sorted({x.device.index for x in inputs if x.device.type == "cuda"})

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(card) for card in cards)]

    with torch.random.fork_rng(devices=cards):
        before = states()
        yield lambda: any(not torch.equal(a, b) for a, b in zip(before, states(), strict=True))


def _compare(name: str, expected: Tensor, found: Tensor, before: Tensor) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise WrongNumbers(
            f"{name} is {found.dtype} {list(found.shape)} "
            f"instead of {expected.dtype} {list(expected.shape)}"
        )
    if found.numel() == 0:
        return
    if expected.dtype.is_floating_point:
        differ, are_far = _differences(
            *(x.detach().cpu().double() for x in (expected, found, before))
        )
    else:
        differ = found != expected
        are_far = torch.zeros_like(differ)
    count, size = int(differ.sum()), differ.numel()
    if count > _SHARE * size or are_far.any():
        raise WrongNumbers(f"{max(count, int(are_far.sum()))} of {size} numbers of {name} differ")


def _differences(expected: Tensor, found: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of numbers that differ by more than rounding, and by more than any cause explains."""
    is_finite = expected.isfinite()
    change = (expected - before).nan_to_num(0.0, 0.0, 0.0).abs()
    # What is no number must stay none; what is one must not become none.
    error = (found - expected).abs().nan_to_num(torch.inf, torch.inf)
    error = torch.where(is_finite, error, torch.where(found.isfinite(), torch.inf, 0.0))
    last_digits = 1e-6 * expected.abs().where(is_finite, 0.0)
    typical = change.square().mean().sqrt()
    return (
        error > _ROUNDING * typical + 1e-3 * change + last_digits,
        error > _FARTHEST * change.max() + last_digits,
    )
