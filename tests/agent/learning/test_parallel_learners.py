"""An actor and a critic that learn on a thread each: the same result, sooner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.learning import compiler
from slm_lab.agent.learning.learner import Learner
from slm_lab.agent.learning.parallel import ParallelLearners
from slm_lab.spec import Spec
from slm_lab.types import Metrics, Rollout, Spaces

MakeSpec = Callable[..., Spec]
MakeRollout = Callable[..., Rollout]

SPACES = Spaces((1,), "float32", "discrete", (2,))
PLAIN = {"agent.net.hid_layers": [8], "agent.algorithm.training_epoch": 3}


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_ppo(make_spec: MakeSpec, threads: int, **values: Any) -> PPO:
    spec = make_spec("PPO", {**PLAIN, "meta.threads": threads, **values})
    algorithm = make_agent(spec, SPACES, seed=0).algorithm
    assert isinstance(algorithm, PPO)
    return algorithm


def learn(ppo: PPO, rollout: Rollout, updates: int = 3) -> tuple[dict[str, Tensor], Metrics]:
    for _ in range(updates):
        metrics = ppo.update(rollout, frame=0)
    return ppo.learner.state_dict(), metrics


@pytest.fixture
def rollout(make_rollout: MakeRollout) -> Rollout:
    random = np.random.default_rng(0)
    return make_rollout(
        obs=random.normal(size=(17, 4)),
        action=random.integers(2, size=(16, 4)),
        reward=random.normal(size=(16, 4)),
    )


@pytest.mark.parametrize(
    ("compile", "normalize"),
    [
        ("off", "standardize"),
        ("off", "percentile"),
        pytest.param("on", "standardize", marks=pytest.mark.slow),
    ],
)
def test_two_threads_learn_what_one_learns(
    make_spec: MakeSpec, rollout: Rollout, compile: str, normalize: str
) -> None:
    values = {"meta.compile": compile, "agent.algorithm.normalize_advantages": normalize}
    one, of_one = learn(make_ppo(make_spec, 1, **values), rollout)
    two, of_two = learn(make_ppo(make_spec, 2, **values), rollout)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6)
    assert of_one.opt_steps == of_two.opt_steps
    assert of_two.values == pytest.approx(of_one.values, rel=1e-3, abs=1e-5)


def test_native_steps_are_checked_before_threads_run_them(
    make_spec: MakeSpec, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def stub(function: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        is_first = not threads

        def native(*inputs: Tensor) -> Any:
            threads.append(threading.current_thread().name.split("_")[0])
            if is_first:
                raise RuntimeError("wrong processor")
            return function(*inputs)

        return native

    monkeypatch.setattr(compiler, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(compiler, "compile_graph", stub)
    values = {"meta.compile": "on", "agent.algorithm.training_epoch": 1}
    learned, _ = learn(make_ppo(make_spec, 2, **values), rollout, updates=2)
    monkeypatch.undo()
    eager, _ = learn(make_ppo(make_spec, 2, **values | {"meta.compile": "off"}), rollout, updates=2)
    # One of the two runs eagerly now: there is nothing to gain from threads.
    assert set(threads) == {"MainThread"}
    assert all(torch.equal(learned[name], value) for name, value in eager.items())


@pytest.mark.parametrize(
    ("values", "threads"),
    [
        ({}, 1),
        ({"agent.net.shared": True}, 2),
        # The critic would take all the time, and the thread of the policy wait for it.
        ({"agent.net.critic_hid_layers": [64]}, 2),
    ],
    ids=["one thread", "one net", "unlike nets"],
)
def test_one_learner_does_where_two_would_not_pay(
    make_spec: MakeSpec, values: dict[str, Any], threads: int
) -> None:
    assert type(make_ppo(make_spec, threads, **values).learner) is Learner


def test_every_learner_has_a_thread_once_its_step_is_compiled() -> None:
    seen: list[tuple[str, bool]] = []
    state = {"x": torch.zeros(())}

    class Spy(Learner):
        def __init__(self, name: str) -> None:
            super().__init__(state, lambda state, x: ({}, {"x": x}), compile=None)
            self._name = name

        is_native = False

        def step(self, *batch: Tensor) -> None:
            seen.append((self._name, threading.current_thread() is threading.main_thread()))
            assert torch.get_num_threads() == 2  # four, shared by two

    torch.set_num_threads(4)
    learners = ParallelLearners([Spy("policy"), Spy("critic")], threads=4)
    batches = [(torch.zeros(()),)] * 2
    learners.steps(batches)  # compiles, here
    Spy.is_native = True
    assert seen == [("policy", True)] * 2 + [("critic", True)] * 2
    seen.clear()
    learners.steps(batches)
    assert sorted(seen) == [("critic", False)] * 2 + [("policy", False)] * 2
    assert torch.get_num_threads() == 4


def test_an_error_of_one_learner_is_raised_when_all_are_done() -> None:
    done: list[str] = []

    class Spy(Learner):
        is_native = False

        def __init__(self, name: str) -> None:
            super().__init__({}, lambda state, x: ({}, {"x": x}), compile=None)
            self._name = name

        def step(self, *batch: Tensor) -> None:
            if self._name == "policy" and done:
                raise RuntimeError("diverged")
            done.append(self._name)

    learners = ParallelLearners([Spy("policy"), Spy("critic")], threads=2)
    learners.steps([()])
    Spy.is_native = True
    with pytest.raises(RuntimeError, match="diverged"):
        learners.steps([()])
    assert done == ["policy", "critic", "critic"]
