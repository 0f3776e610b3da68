"""Turn a pure tensor function into one native call.

The function is traced once with fake tensors into a graph of aten operators (autograd included:
the backward pass is just more operators), and inductor makes C++ of it. Going below
`torch.compile` saves the guards it evaluates at every call, a third of a small PPO step, and traces
code that it cannot; in return the caller promises that shapes and dtypes stay what they were.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import torch
from loguru import logger
from torch import Tensor

TensorFunction = Callable[..., Sequence[Tensor]]


class Compiled:
    """`function(*tensors) -> tensors`, compiled for the shapes of its first call, eager for others.

    The first `fixed` inputs never change shape, and are not asked for it at every call.
    """

    def __init__(self, function: TensorFunction, *, enabled: bool, fixed: int = 0) -> None:
        self._function = function
        self._fixed = fixed
        self._native: TensorFunction | None = None
        self._pending = enabled and has_cpp_compiler()
        self._shapes: tuple[torch.Size, ...] = ()

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        if self._pending:
            self._compile(inputs)
        if self._native is not None and self._shapes == self._varying(inputs):
            return self._native(*inputs)
        return self._function(*inputs)

    def _varying(self, inputs: tuple[Tensor, ...]) -> tuple[torch.Size, ...]:
        return tuple(x.shape for x in inputs[self._fixed :])

    def _compile(self, inputs: tuple[Tensor, ...]) -> None:
        self._pending = False
        try:
            self._native = compile_graph(self._function, inputs)
        except Exception as error:  # inductor raises its own, torch's and the compiler's errors
            logger.warning(f"could not compile, running eagerly instead: {error!r:.300}")
            return
        self._shapes = self._varying(inputs)


def compile_graph(function: TensorFunction, inputs: Sequence[Tensor]) -> TensorFunction:
    # Imported here: inductor costs a second that an eager run need not pay.
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx

    on_cpu = all(x.device.type == "cpu" for x in inputs)
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
        options = {"cpp_wrapper": on_cpu}
        return cast(TensorFunction, compile_fx(graph, list(inputs), config_patches=options))


@cache
def has_cpp_compiler() -> bool:
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++", "cl"]
    found = any(shutil.which(name) for name in names)
    if not found:
        logger.warning(
            "no C++ compiler found: the learning step runs eagerly, several times slower. "
            "Install g++ or clang++, or set CXX, to compile it."
        )
    return found


def is_worth_compiling(mode: str, expected_calls: float) -> bool:
    """`auto` compiles when the run is long enough to win back the wait.

    A compiled call saves about a millisecond and a first compilation takes 10 to 20 seconds. The
    answer depends on the spec alone, never on what a cache holds: the same run stays the same run.
    """
    return mode == "on" or (mode == "auto" and expected_calls >= 15_000)
