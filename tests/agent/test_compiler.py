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

from slm_lab.agent import compiler
from slm_lab.agent.compiler import (
    Compiled,
    CompileMode,
    compile_graph,
    has_cpp_compiler,
    is_worth_compiling,
)


@pytest.fixture
def warnings_logged() -> Iterator[list[str]]:
    messages: list[str] = []
    sink = logger.add(lambda message: messages.append(str(message)), level="WARNING")
    yield messages
    logger.remove(sink)


@pytest.fixture
def fresh_search() -> Iterator[None]:
    """The answer is remembered for the process; these tests ask anew."""
    has_cpp_compiler.cache_clear()
    yield
    has_cpp_compiler.cache_clear()


def double(x: Tensor) -> tuple[Tensor]:
    return (2 * x,)


def negate_instead(
    _function: Callable[..., Any], _inputs: Sequence[Tensor], _mode: str
) -> Callable[..., Any]:
    """A stand-in for compilation whose calls can be told from eager ones."""
    return lambda x: (-x,)


def test_shapes_other_than_the_first_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(compiler, "compile_graph", negate_instead)
    function = Compiled(double, mode="default")
    assert function(torch.ones(3))[0].tolist() == [-1.0] * 3
    assert function(torch.ones(2))[0].tolist() == [2.0] * 2
    assert function(torch.ones(3))[0].tolist() == [-1.0] * 3


def test_a_disabled_function_is_never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_graph", negate_instead)
    assert Compiled(double, mode=None)(torch.ones(1))[0].item() == 2.0


def test_a_failing_compilation_warns_once_and_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    def fail(
        _function: Callable[..., Any], _inputs: Sequence[Tensor], _mode: str
    ) -> Callable[..., Any]:
        raise RuntimeError("g++ exploded")

    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(compiler, "compile_graph", fail)
    function = Compiled(double, mode="default")
    assert [function(torch.ones(1))[0].item() for _ in range(3)] == [2.0] * 3
    assert len(warnings_logged) == 1
    assert "g++ exploded" in warnings_logged[0]
    assert not function.is_compiled


@pytest.mark.usefixtures("fresh_search")
def test_without_a_compiler_everything_is_eager_after_one_warning(
    monkeypatch: pytest.MonkeyPatch, warnings_logged: list[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(compiler, "compile_graph", negate_instead)
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
