"""Compile a pure tensor function into one native call.

The function is traced once with fake tensors into a graph of aten operators (autograd included:
the backward pass is just more operators), and inductor makes C++ of it. Going below
`torch.compile` saves the guards it evaluates at every call, a third of a small PPO step, and traces
code that it cannot. What is left of them: native code gets inputs laid out as it was made for, and
all others run eagerly. Its first call is compared with the eager function.

A compiler takes about ten seconds, in which a learner can go on eagerly (`Beside`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, cast

import torch
from loguru import logger
from torch import Tensor

TensorFunction = Callable[..., Sequence[Tensor]]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
"""Modes of torch.compile: plain kernels, CUDA graphs, or also kernels tuned by trial."""


class Compiled:
    """`function(*tensors) -> tensors`, compiled for the layout of its first call, eager for others.

    Without a mode it is eager for all, and so it is when compiled code fails or differs from eager
    at the first call, which such code makes on copies.

    The first `fixed` inputs never change their layout, and are not asked for it at every call.
    """

    def __init__(
        self, function: TensorFunction, *, mode: CompileMode | None, fixed: int = 0
    ) -> None:
        self._function = function
        self._fixed = fixed
        self._native = function
        self._layout: Layout | None = None  # of what the native code was made for
        self._mode = mode
        self._pending = mode is not None and has_cpp_compiler()
        self._beside: Beside | None = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        if self._pending and (self._beside is None or self._beside.fits(inputs)):
            self._compile(inputs)
        if self._layout is not None and self._layout.fits(inputs[self._fixed :]):
            return self._native(*inputs)
        return self._function(*inputs)

    @property
    def is_compiled(self) -> bool:
        """Whether calls run natively, or will from the first one on."""
        return self._pending or self._layout is not None

    @property
    def is_native(self) -> bool:
        """Whether calls run natively already."""
        return self._layout is not None

    def compile_beside(self, *inputs: Tensor) -> None:
        """Compile on a thread for calls like this one; the next call waits until that is done.

        The function is traced here: tracing puts other tensors into the modules it calls.
        """
        if self._pending and self._beside is None:
            self._beside = Beside(self._function, inputs, self._mode or "default", self._fixed)

    def _compile(self, inputs: tuple[Tensor, ...]) -> None:
        self._pending = False
        try:
            if self._beside is not None:
                native = self._beside.native()
            else:
                native = compile_graph(self._function, inputs, self._mode or "default")
            check_first_call(native, self._function, inputs)
            self._layout = Layout(inputs[self._fixed :])
        except Exception as error:  # inductor raises its own, torch's and the compiler's errors
            _warn(f"{error!r:.300}")
            return
        self._native = native


class Layout:
    """Shapes, dtypes, devices and strides of tensors: what native code relies on."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._layouts = [_layout(x) for x in tensors]
        # In C++: 0.8 us for six tensors, in Python it would take 2.5. It is stricter
        # (a tensor given twice, another requires_grad), so that only its yes counts.
        from torch._C._dynamo.guards import TensorGuards

        guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._is_surely_the_same = guards.check

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        return self._is_surely_the_same(*tensors) or self._layouts == [_layout(x) for x in tensors]


def _layout(x: Tensor) -> tuple[object, ...]:
    # Of a dimension of one element, the way to its next is never gone.
    steps = [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    return x.shape, x.dtype, x.device, steps


@cache
def _warn(problem: str) -> None:
    """Warn once, however many functions meet the same problem."""
    logger.warning(
        f"compiled code cannot be used: {problem}. Training goes on eagerly, several times slower. "
        "Mend the compiler (slm-lab doctor tries it), or choose eager with --compile off."
    )


_ONE_AT_A_TIME = threading.Lock()
"""Tracing and inductor are not made for several threads."""
_THREAD_NAME = "slm-lab compiler"


class Beside:
    """Native code of a function, in the making on a thread of its own."""

    def __init__(
        self, function: TensorFunction, inputs: Sequence[Tensor], mode: CompileMode, fixed: int
    ) -> None:
        self._fixed, self._layout = fixed, Layout(inputs[fixed:])
        self._native: TensorFunction | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        try:
            graph = trace(function, inputs)
        except Exception as error:
            self._error = error
            return
        # Told now: learners side by side change the number meanwhile.
        arguments = graph, [_like(x) for x in inputs], mode, torch.get_num_threads()
        self._thread = threading.Thread(
            target=self._lower, args=arguments, name=_THREAD_NAME, daemon=True
        )
        self._thread.start()

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the code will be for inputs of this layout."""
        return self._layout.fits(inputs[self._fixed :])

    def native(self) -> TensorFunction:
        """Wait for the native code; raises what the compiler raised."""
        if self._thread is not None:
            self._thread.join()
        if self._native is None:
            raise self._error or RuntimeError("the compiler thread ended without code")
        return self._native

    def _lower(
        self,
        graph: torch.fx.GraphModule,
        inputs: Sequence[Tensor],
        mode: CompileMode,
        threads: int,
    ) -> None:
        try:
            self._native = lower(graph, inputs, mode, threads)
        except SystemExit:  # of end_compilers
            pass
        except Exception as error:
            self._error = error


@atexit.register
def end_compilers() -> None:
    """End compiler threads with the process, which may have been stopped early.

    They end at their next line of Python, and so wait for a running g++, some seconds at most: one
    that is killed may leave half a library in the cache. A thread that is merely left behind can
    abort the process.
    """
    threads = [thread for thread in threading.enumerate() if thread.name == _THREAD_NAME]
    for thread in threads:
        ident, end = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, end)
    for thread in threads:
        thread.join()


def _like(x: Tensor) -> Tensor:
    """An uninitialised tensor of this layout, which nobody changes meanwhile."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def compile_graph(
    function: TensorFunction, inputs: Sequence[Tensor], mode: CompileMode = "default"
) -> TensorFunction:
    return lower(trace(function, inputs), inputs, mode)


def trace(function: TensorFunction, inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Trace a function into a graph of aten operators."""
    # Warnings of torch's compiler are none of the user's, and must not stop a run under `-W error`.
    with _ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"), torch.no_grad():
        # Imported here: an eager run need not pay for it.
        from torch._decomp import get_decompositions
        from torch.fx.experimental.proxy_tensor import make_fx

        # It moves its statistics in place and does not say so: a copy of them would move as well.
        norm = get_decompositions([torch.ops.aten.native_batch_norm.default])
        return make_fx(function, decomposition_table=norm | _FASTER, tracing_mode="fake")(*inputs)


def lower(
    graph: torch.fx.GraphModule, inputs: Sequence[Tensor], mode: CompileMode, threads: int = -1
) -> TensorFunction:
    """Make native code of a graph, for this number of threads or the present one."""
    with _ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"), torch.no_grad():
        # Imported here: inductor costs a second that an eager run need not pay.
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        on_cpu = all(x.device.type == "cpu" for x in inputs)
        options: dict[str, Any] = {
            **list_mode_options(mode),
            "cpp_wrapper": on_cpu,
            "cpp.threads": threads,
            # The vector instructions that the CPU reports can be compiled for: do not spend six
            # seconds of a first run on trying it out.
            "cpp.vec_isa_ok": True,
        }
        # Layouts of convolutions are chosen on the way through autograd.
        if on_cpu and not any(node.target in _CONVOLUTIONS for node in graph.graph.nodes):
            return _compile_directly(graph, inputs, options)
        return cast(TensorFunction, compile_fx(graph, list(inputs), config_patches=options))


def _compile_directly(
    graph: torch.fx.GraphModule, inputs: Sequence[Tensor], options: dict[str, Any]
) -> TensorFunction:
    """Compile a graph that holds its own backward pass, skipping autograd's part of the compiler.

    A step is compiled a few seconds sooner, and its calls have fewer wrappers.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake_mode = FakeTensorMode(shape_env=ShapeEnv())  # without one, nothing is cached on disk
    fakes = [fake_mode.from_tensor(x, static_shapes=True) for x in inputs]
    with config.patch(options), V.set_fake_mode(fake_mode), tracing(TracingContext(fake_mode)):
        # What changes an input moves to the end of the graph; in between all is pure.
        pure = functionalize(graph, remove="mutations")
        graph = make_fx(pure, select_decomp_table(), tracing_mode="fake")(*fakes)
        graph.graph.eliminate_dead_code()
        joint_graph_passes(graph)
        code: Any = compile_fx_inner(graph, fakes, cpp_wrapper=True, is_inference=True)
    native: Callable[[list[Tensor]], Sequence[Tensor]] = code.current_callable
    return lambda *inputs: native(list(inputs))


_CONVOLUTIONS = {torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default}


def _tanh_by_sigmoid(x: Tensor) -> Tensor:
    """tanh to 2e-7: vectorised, the exponential is four times faster than tanh."""
    return 2 * torch.sigmoid(2 * x) - 1


def _mm(a: Tensor, b: Tensor) -> Any:
    """Rewrite a product with a short side; MKL is best with large squares."""
    from torch._inductor.inductor_prims import force_stride_order

    if a.dtype in (torch.bfloat16, torch.float16):
        return NotImplemented  # loops would round at every term
    (rows, inner), columns = a.shape, b.shape[1]
    # Loops along memory, which inductor joins with the activations around them, and which spare a
    # call. A head of one or two outputs, and the gradient of its weights:
    if columns <= _THIN < rows and a.stride(1) == 1 == b.stride(0):
        return (a.unsqueeze(1) * b.t()).sum(-1)
    if rows <= _THIN < columns and b.stride(1) == 1:
        return (a.t().unsqueeze(2) * b.unsqueeze(1)).sum(0)
    # A first layer of few inputs, its weights turned beforehand, or what a head hands back:
    if inner <= _FEW and columns > _NARROW:
        along = b if b.stride(1) == 1 else force_stride_order(b, [columns, 1])
        terms = [a[:, i : i + 1] * along[i : i + 1] for i in range(inner)]
        return sum(terms[1:], terms[0])
    # A gradient of first weights, a wider head: 256x256 times 256x4 takes 80 us, as its transpose,
    # 4x256 times 256x256, only 20.
    if columns <= _NARROW < rows:
        return torch.mm(b.t(), a.t()).t()
    return NotImplemented  # as it is


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Any:
    """Add the bias in the loop that computes the activation.

    `addmm` would first copy it into every row of the result, and inductor makes an `addmm` of a
    product and a sum, but not of a difference.
    """
    product = _mm(a, b)
    return (torch.mm(a, b) if product is NotImplemented else product) - (-bias)


_THIN, _FEW, _NARROW = 2, 8, 16
_FASTER: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.tanh.default: _tanh_by_sigmoid,
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
}


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


def is_worth_compiling(mode: str, *, seconds_saved: float, seconds_spent: float) -> bool:
    """Decide `meta.compile`: `auto` compiles when that saves more seconds than it takes.

    The answer depends on the spec alone, never on what a cache holds: compiled and eager steps
    differ in the last digits, and the same run must stay the same run.
    """
    return mode == "on" or (mode == "auto" and seconds_saved > seconds_spent)


_ROUNDING = 0.05  # of the root mean square of the changes of a tensor
_SHARE = 0.005  # of its numbers may differ by more
_NOTHING = 2e-9  # what a running mean moves by that is zero but for rounding: behind another norm
_FARTHEST = 4.0  # times the largest change: none may; a step the other way is 2


class WrongNumbers(ArithmeticError):
    """Native code computes other numbers than its eager function."""


def check_first_call(
    native: TensorFunction, function: TensorFunction, inputs: Sequence[Tensor]
) -> None:
    """Call both on copies of `inputs`; raises what the native code raises, or WrongNumbers.

    Both do the same arithmetic in another order, so their last digits differ. A step of Adam makes
    more of that: it moves each number by about the learning rate, whatever the size of its
    gradient, so a gradient that is nearly zero, with another sign, sends its number the other way.
    Therefore a tensor is compared by how much the function changed it (an output: by its size), and
    a few of its numbers, but not many, may differ by as much as that. Found on first calls, in
    numbers that differ by more than `_ROUNDING`:

        none         PPO CartPole and Pong, recurrent PPO, A2C, DQN with PER, SAC Pendulum and
                     CartPole, and no action of any of them
        1 in 15,000  CrossQ Hopper (critics; behind batch norm gradients nearly cancel)
        1 in 9,000   CrossQ Pendulum
        1 in 2,500   CrossQ CartPole, worst of three seeds (its actor, too)
    """
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
        _compare(f"input {i}", one, other, before, _NOTHING)


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


def _compare(
    name: str, expected: Tensor, found: Tensor, before: Tensor, least: float = 0.0
) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise WrongNumbers(
            f"{name} is {found.dtype} {list(found.shape)} "
            f"instead of {expected.dtype} {list(expected.shape)}"
        )
    if found.numel() == 0:
        return
    if expected.dtype.is_floating_point:
        tensors = (x.detach().cpu().double() for x in (expected, found, before))
        differ, are_far = _differences(*tensors, least=least)
    else:
        differ = found != expected
        are_far = torch.zeros_like(differ)
    count, size = int(differ.sum()), differ.numel()
    if count > _SHARE * size or are_far.any():
        raise WrongNumbers(f"{max(count, int(are_far.sum()))} of {size} numbers of {name} differ")


def _differences(
    expected: Tensor, found: Tensor, before: Tensor, *, least: float
) -> tuple[Tensor, Tensor]:
    """Masks of numbers that differ by more than rounding, and by more than any cause explains."""
    is_finite = expected.isfinite()
    change = (expected - before).nan_to_num(0.0, 0.0, 0.0).abs()
    # What is no number must stay none; what is one must not become none.
    error = (found - expected).abs().nan_to_num(torch.inf, torch.inf)
    error = torch.where(is_finite, error, torch.where(found.isfinite(), torch.inf, 0.0))
    last_digits = 1e-6 * expected.abs().where(is_finite, 0.0) + least
    typical = change.square().mean().sqrt()
    return (
        error > _ROUNDING * typical + 1e-3 * change + last_digits,
        error > _FARTHEST * change.max() + last_digits,
    )
