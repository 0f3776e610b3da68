"""The first gradient steps are eager, while the code of the others is compiled on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from loguru import logger
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.learning import compiler
from slm_lab.agent.learning.learner import Learner, NetState, gradient_update
from slm_lab.agent.learning.optimizer import Optimizer
from slm_lab.types import Spaces
from tests.agent.learning.test_learner import Line, mean_output, net_spec

X = torch.tensor([[1.0], [3.0]])
LONG = {"env.max_frame": 100_000_000}


class FakeCompiler:
    """Its code is the eager function and notes its calls; it takes until `may_end` is set."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.threads: list[int] = []
        self.may_end = threading.Event()
        self.timed_out = False

    def trace(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
        return function

    def lower(
        self, graph: Callable[..., Any], inputs: Sequence[Tensor], mode: str, threads: int = -1
    ) -> Callable[..., Any]:
        # In many calls, because one that waits hears of nothing else.
        self.timed_out = not any(self.may_end.wait(0.01) for _ in range(1000))
        assert not self.timed_out
        self.threads.append(threads)

        def native(*inputs: Tensor) -> Any:
            self.steps.append("native")
            return graph(*inputs)

        return native


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCompiler]:
    fake = FakeCompiler()
    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(compiler, "trace", fake.trace)
    monkeypatch.setattr(compiler, "lower", fake.lower)
    yield fake
    fake.may_end.set()


def line_learner(eager_steps: int) -> Learner:
    net = NetState("net", Line(), net_spec())
    update = gradient_update([net], mean_output(net))
    return Learner(net.initial_state(), update, compile="default", eager_steps=eager_steps)


def test_steps_are_eager_while_the_compiler_works_and_then_wait_for_it(fake: FakeCompiler) -> None:
    learner = line_learner(eager_steps=3)
    for _ in range(3):
        learner.step(X)
    assert (learner.is_native, learner.is_compiled) == (False, True)  # as the start-up line says
    fake.may_end.set()
    learner.step(X)
    assert learner.is_native
    assert fake.steps == ["native", "native"]  # the check of the first call, and the step


def test_code_that_is_ready_early_waits_for_its_step(fake: FakeCompiler) -> None:
    fake.may_end.set()
    learner = line_learner(eager_steps=3)
    for _ in range(3):
        learner.step(X)
    assert fake.steps == []
    learner.step(X)
    assert learner.is_native


@pytest.mark.parametrize("done", [2, 3, 4])
def test_a_resumed_learner_switches_at_the_same_step(fake: FakeCompiler, done: int) -> None:
    fake.may_end.set()
    first = line_learner(eager_steps=3)
    for _ in range(done):
        first.step(X)
    resumed = line_learner(eager_steps=3)
    resumed.load_state_dict(first.state_dict())
    was_native = []
    for _ in range(3):
        resumed.step(X)
        was_native.append(resumed.is_native)
    assert was_native == [done >= 3, True, True]


def test_a_batch_of_another_layout_does_not_get_the_code(fake: FakeCompiler) -> None:
    fake.may_end.set()
    learner = line_learner(eager_steps=1)
    for batch in (X, X[:1]):
        learner.step(batch)
    assert fake.steps == []
    learner.step(X)
    assert learner.is_native


def test_loops_get_the_threads_of_the_session(fake: FakeCompiler) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    learner = line_learner(eager_steps=1)
    learner.step(X)
    torch.set_num_threads(before)  # what learners side by side do between updates
    fake.may_end.set()
    learner.step(X)
    assert fake.threads == [3]


def test_a_process_that_ends_ends_its_compilers(fake: FakeCompiler) -> None:
    before = set(threading.enumerate())
    for _ in range(2):  # of which the second waits for the first
        line_learner(eager_steps=1).step(X)
    assert len(set(threading.enumerate()) - before) == 2
    compiler.end_compilers()
    assert set(threading.enumerate()) == before
    assert not fake.timed_out


def test_steps_of_a_users_own_optimizer_are_counted(fake: FakeCompiler) -> None:
    fake.may_end.set()
    net = NetState("net", Line(), net_spec())
    net.optimizer = Optimizer((), lambda p, grad, slots, lr: (p - lr * grad, {}))
    update = gradient_update([net], mean_output(net))
    learner = Learner(net.initial_state(), update, compile="default", eager_steps=1)
    learner.step(X)
    assert not learner.is_native
    learner.step(X)
    assert learner.is_native


@pytest.mark.parametrize("part", ["trace", "lower"])
def test_a_compiler_that_fails_leaves_eager_steps_and_a_warning(
    fake: FakeCompiler, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no space")

    monkeypatch.setattr(compiler, part, fail)
    compiler._warn.cache_clear()
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    fake.may_end.set()
    learner = line_learner(eager_steps=1)
    for _ in range(3):
        learner.step(X)
    logger.remove(handler)
    assert not learner.is_compiled
    assert "compiled code cannot be used: OSError('no space')" in "".join(lines)


def eager_steps_of(spec: Any) -> int:
    agent = make_agent(spec, Spaces((1,), "float32", "discrete", (2,)), seed=0)
    assert isinstance(agent.algorithm, PPO)
    assert isinstance(agent.algorithm.learner, Learner)
    return agent.algorithm.learner._eager_steps


def test_a_run_gives_away_a_second_and_none_where_compiling_is_asked_for(make_spec: Any) -> None:
    # A PPO step on vectors is 1.5 ms slower eagerly: 1 / 0.0015 = 666.7.
    assert eager_steps_of(make_spec("PPO", LONG | {"meta.compile": "auto"})) == 667
    assert eager_steps_of(make_spec("PPO", LONG | {"meta.compile": "on"})) == 0
    assert eager_steps_of(make_spec("PPO", LONG | {"meta.compile": "off"})) == 0
