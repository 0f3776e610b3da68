"""When a function is compiled, and what happens when it cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loguru import logger
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from slm_lab.agent.learning import compiler
from slm_lab.agent.learning.compiler import (
    Compiled,
    CompileMode,
    compile_graph,
    has_cpp_compiler,
    is_worth_compiling,
)


@pytest.fixture
def warnings_logged() -> Iterator[list[str]]:
    compiler._warn.cache_clear()  # what was said once is not said again
    messages: list[str] = []
    sink = logger.add(lambda message: messages.append(str(message)), level="WARNING")
    yield messages
    logger.remove(sink)
    compiler._warn.cache_clear()


@pytest.fixture
def fresh_search() -> Iterator[None]:
    """The answer is remembered for the process; these tests ask anew."""
    has_cpp_compiler.cache_clear()
    yield
    has_cpp_compiler.cache_clear()


def double(x: Tensor) -> tuple[Tensor]:
    return (2 * x,)


Native = Callable[..., Sequence[Tensor]]


@pytest.fixture
def compile_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Native], list[str]]:
    """Puts a function in the place of whatever is compiled; its calls are noted in a list."""

    def replace(native: Native) -> list[str]:
        calls: list[str] = []

        def noted(*inputs: Tensor) -> Sequence[Tensor]:
            calls.append("native")
            return native(*inputs)

        monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
        monkeypatch.setattr(compiler, "compile_graph", lambda *_: noted)
        return calls

    return replace


GRID = torch.arange(9.0).view(3, 3)
OTHER_LAYOUTS = {
    "shape": torch.arange(6.0).view(2, 3),
    "dtype": torch.arange(9).view(3, 3),
    "precision": GRID.double(),
    "strides": GRID.t(),
    "expanded": torch.arange(3.0).expand(3, 3),
}


@pytest.mark.parametrize("other", OTHER_LAYOUTS.values(), ids=OTHER_LAYOUTS.keys())
def test_layouts_other_than_the_first_run_eagerly_until_the_first_returns(
    compile_to: Callable[[Native], list[str]], other: Tensor
) -> None:
    calls = compile_to(double)
    function = Compiled(double, mode="default")
    function(GRID)
    calls.clear()
    assert torch.equal(function(other)[0], 2 * other)
    assert calls == []
    function(GRID + 1)
    assert calls == ["native"]


def test_fixed_inputs_are_not_asked_for_their_layout(
    compile_to: Callable[[Native], list[str]],
) -> None:
    calls = compile_to(scaled_sum)
    function = Compiled(scaled_sum, mode="default", fixed=1)
    function(torch.ones(()), torch.ones(3))
    calls.clear()
    function(torch.ones((), dtype=torch.float64), torch.ones(3))
    function(torch.ones(()), torch.ones(4))
    assert calls == ["native"]


@pytest.mark.parametrize(
    "again",
    [
        lambda x: (x, x),  # one tensor given twice
        lambda x: (x, torch.empty_strided((1, 3), (7, 1)).fill_(1)),  # one row has no next row
        lambda x: (x, x.clone().requires_grad_()),
    ],
)
def test_what_native_code_can_read_is_one_layout(
    compile_to: Callable[[Native], list[str]], again: Callable[[Tensor], tuple[Tensor, ...]]
) -> None:
    def add(x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x + y,)

    calls = compile_to(add)
    function = Compiled(add, mode="default")
    function(torch.ones(1, 3), torch.ones(1, 3))
    calls.clear()
    function(*again(torch.ones(1, 3)))
    assert calls == ["native"]


@pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
def test_native_code_never_reads_a_layout_it_was_not_made_for() -> None:
    function = Compiled(double, mode="default")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own
        assert torch.equal(function(GRID)[0], 2 * GRID)
    assert function.is_compiled
    for other in OTHER_LAYOUTS.values():
        assert torch.equal(function(other)[0], 2 * other)


def test_a_disabled_function_is_never_compiled(
    compile_to: Callable[[Native], list[str]],
) -> None:
    calls = compile_to(double)
    assert Compiled(double, mode=None)(torch.ones(1))[0].item() == 2.0
    assert calls == []


def scaled_sum(total: Tensor, x: Tensor) -> tuple[Tensor]:
    """Changes its first input in place, as a learning step does."""
    total.add_(x.sum().to(total.dtype))
    return (2 * x,)


def raises(total: Tensor, x: Tensor) -> tuple[Tensor]:
    total.fill_(-1.0)
    raise RuntimeError("undefined symbol: mkl_sgemm")


def returns_wrong_numbers(total: Tensor, x: Tensor) -> tuple[Tensor]:
    total.add_(x.sum())
    return (2.2 * x,)


def returns_one_wrong_number(total: Tensor, x: Tensor) -> tuple[Tensor]:
    (y,) = scaled_sum(total, x)
    return (y.index_fill(0, torch.tensor([2]), 0.0),)


def leaves_the_state_as_it_was(total: Tensor, x: Tensor) -> tuple[Tensor]:
    return (2 * x,)


def changes_an_input_it_only_reads(total: Tensor, x: Tensor) -> tuple[Tensor]:
    (y,) = scaled_sum(total, x)
    x.neg_()
    return (y,)


def returns_no_numbers(total: Tensor, x: Tensor) -> tuple[Tensor]:
    total.add_(x.sum())
    return (2 * x / 0,)


def returns_another_dtype(total: Tensor, x: Tensor) -> tuple[Tensor]:
    total.add_(x.sum())
    return (2 * x.double(),)


def returns_nothing(total: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    total.add_(x.sum())
    return ()


@pytest.mark.parametrize(
    ("native", "told"),
    [
        (raises, "undefined symbol: mkl_sgemm"),
        (returns_wrong_numbers, "output 0"),
        (returns_one_wrong_number, "1 of 3 numbers of output 0"),
        (leaves_the_state_as_it_was, "input 0"),
        (changes_an_input_it_only_reads, "input 1"),
        (returns_no_numbers, "output 0"),
        (returns_another_dtype, "output 0"),
        (returns_nothing, "0 outputs"),
    ],
)
def test_native_code_that_fails_at_first_is_never_used_and_leaves_no_trace(
    compile_to: Callable[[Native], list[str]],
    warnings_logged: list[str],
    native: Native,
    told: str,
) -> None:
    calls = compile_to(native)
    function = Compiled(scaled_sum, mode="default", fixed=1)
    total, x = torch.zeros(()), torch.tensor([1.0, 2.0, 3.0])
    for step in (1, 2, 3):
        assert function(total, x)[0].tolist() == [2.0, 4.0, 6.0]
        assert total.item() == 6.0 * step
        assert x.tolist() == [1.0, 2.0, 3.0]
    assert calls == ["native"]
    assert not function.is_compiled
    assert len(warnings_logged) == 1
    for part in (told, "eagerly", "several times slower", "--compile off"):
        assert part in warnings_logged[0]


def test_one_failure_met_by_several_functions_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    def fail(*_: Any) -> Native:
        raise RuntimeError("g++ exploded")

    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(compiler, "compile_graph", fail)
    for _ in range(3):
        function = Compiled(double, mode="default")
        assert [function(torch.ones(1))[0].item() for _ in range(3)] == [2.0] * 3
        assert not function.is_compiled
    assert len(warnings_logged) == 1
    assert "g++ exploded" in warnings_logged[0]


def test_from_the_first_call_on_the_numbers_are_the_native_ones(
    compile_to: Callable[[Native], list[str]],
) -> None:
    def rounds_otherwise(total: Tensor, x: Tensor) -> tuple[Tensor]:
        total.add_(x.sum() * (1 + 1e-6))
        return (2 * x * (1 + 1e-6),)

    compile_to(rounds_otherwise)
    function = Compiled(scaled_sum, mode="default", fixed=1)
    total, expected, x = torch.zeros(()), torch.zeros(()), torch.tensor([1.0, 2.0, 3.0])
    for _ in range(2):
        assert torch.equal(function(total, x)[0], rounds_otherwise(expected, x)[0])
        assert torch.equal(total, expected)
    assert function.is_compiled


@pytest.mark.usefixtures("fresh_search")
def test_without_a_compiler_everything_is_eager_after_one_warning(
    monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for _ in range(3):
        assert Compiled(double, mode="default")(torch.ones(1))[0].item() == 2.0
    assert len(warnings_logged) == 1
    assert "no C++ compiler" in warnings_logged[0]
    assert "CXX" in warnings_logged[0]


@pytest.mark.usefixtures("fresh_search")
def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "my-c++" else None)
    monkeypatch.setenv("CXX", "my-c++")
    assert has_cpp_compiler()
    has_cpp_compiler.cache_clear()
    monkeypatch.setenv("CXX", "missing-c++")
    assert not has_cpp_compiler()


@pytest.mark.parametrize(
    ("mode", "seconds_saved", "answer"),
    [("on", 0.1, True), ("off", 1e6, False), ("auto", 16.0, True), ("auto", 14.0, False)],
)
def test_auto_compiles_what_wins_back_the_wait(
    mode: str, seconds_saved: float, answer: bool
) -> None:
    assert is_worth_compiling(mode, seconds_saved=seconds_saved, seconds_spent=15) is answer


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("default", {}),
        ("reduce-overhead", {"triton.cudagraphs": True}),
        ("max-autotune", {"triton.cudagraphs": True, "max_autotune": True}),
    ],
)
def test_a_mode_is_what_torch_compile_means_by_it(
    mode: CompileMode, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, at its import
        from torch._inductor import compile_fx, config
    found: dict[str, Any] = {}

    def remember(*_: Any, **__: Any) -> Any:
        found.update(config.get_config_copy())
        return SimpleNamespace(current_callable=None)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", remember)
    compile_graph(double, [torch.ones(2)], mode)
    asked = {key: found.get(key) for key in ("triton.cudagraphs", "max_autotune")}
    assert {key: value for key, value in asked.items() if value} == options


def test_what_the_compiler_warns_of_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch._inductor import compile_fx

    def warn(*_: Any, **__: Any) -> Any:
        warnings.warn("some backend is skipped", stacklevel=1)  # an error, in these tests
        return SimpleNamespace(current_callable=lambda inputs: double(*inputs))

    monkeypatch.setattr(compile_fx, "compile_fx_inner", warn)
    assert compile_graph(double, [torch.ones(1)])(torch.ones(1))[0].item() == 2.0


def test_a_step_that_changes_its_inputs_is_compiled_without_autograd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(weight: Tensor, total: Tensor, x: Tensor) -> tuple[Tensor]:
        with torch.enable_grad():
            leaf = weight.detach().requires_grad_()
            loss = (x @ leaf).square().mean()
            (gradient,) = torch.autograd.grad(loss, [leaf])
        weight.copy_(weight - 0.1 * gradient)
        total.add_(loss.detach())
        return (total,)

    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.ones(3), torch.zeros(()), torch.arange(6.0).view(2, 3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch._dynamo.utils import counters
        from torch._inductor import compile_fx

    def unexpected(*_: Any, **__: Any) -> Any:
        raise AssertionError("went through autograd's part of the compiler")

    monkeypatch.setattr(compile_fx, "compile_fx", unexpected)
    counters["inductor"].clear()
    compiled = compile_graph(step, inputs())
    assert not counters["inductor"]["fxgraph_cache_bypass"]  # the next process finds it on disk
    native, eager = inputs(), inputs()
    for _ in range(3):
        compiled(*native)
        step(*eager)
    for one, other in zip(native, eager, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_every_mode_computes_the_same(mode: CompileMode) -> None:
    def layer(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (torch.tanh(x @ weight).sum(0),)

    inputs = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(0)).unbind()
    compiled = compile_graph(layer, inputs, mode)
    torch.testing.assert_close(compiled(*inputs)[0], layer(*inputs)[0])


@pytest.mark.parametrize(("rows", "inner", "columns"), list(product((1, 2, 5, 40), repeat=3)))
def test_products_with_a_short_side_are_still_products(rows: int, inner: int, columns: int) -> None:
    weight, other = torch.randn(columns, inner), torch.randn(rows, inner)
    grad = torch.randn(rows, columns)
    for a, b in (
        (other, weight.t()),  # a forward pass
        (grad, weight),  # the gradient of its input
        (grad.t(), other),  # and of its weights
    ):
        traced = make_fx(torch.mm, decomposition_table=compiler._FASTER)(a, b)
        torch.testing.assert_close(traced(a, b), a @ b)


@pytest.mark.slow
@pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
def test_batch_norm_moves_its_own_statistics_and_not_those_of_a_copy() -> None:
    norm = torch.nn.BatchNorm1d(2, momentum=0.5, affine=False).train()
    kept = ("running_mean", "running_var", "num_batches_tracked")

    def twice(x: Tensor, *statistics: Tensor) -> tuple[Tensor]:
        buffers = dict(zip(kept, statistics, strict=True))
        first = torch.func.functional_call(norm, buffers, (x,))
        copies = {key: value.clone() for key, value in buffers.items()}
        return (first + torch.func.functional_call(norm, copies, (x + 1,)),)

    x = torch.tensor([[0.0, 2.0], [2.0, 6.0]])
    mean, var = torch.zeros(2), torch.ones(2)
    inputs = [x, mean, var, torch.tensor(0)]
    compile_graph(twice, inputs)(*inputs)
    assert mean.tolist() == [0.5, 2.0]  # half of the way to the means 1 and 4, once
    assert inputs[3].item() == 1
