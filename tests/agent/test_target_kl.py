"""`target_kl` of PPO: a minibatch from which the policy is too far ends the update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slm_lab.spec import SpecError
from tests.agent.test_ppo import MakeRollout, MakeSpec, make_ppo, short_rollout

FAST = {"agent.net.optim_spec": {"name": "Adam", "lr": 0.1}}  # leaves its policy within an update


@pytest.mark.parametrize("shared", [False, True], ids=["two nets", "one net"])
def test_a_minibatch_above_target_kl_ends_the_update_and_moves_nothing(
    make_spec: MakeSpec, make_rollout: MakeRollout, shared: bool
) -> None:
    # Both learn from the same minibatches; the first to exceed the limit has the index `taken`.
    values = FAST | {"agent.net.shared": shared, "agent.algorithm.target_kl": 0.01}
    _, free = make_ppo(make_spec("PPO", FAST | {"agent.net.shared": shared}))
    kls, states = [], [free.learner.state_dict()]

    def spy(batches: Any) -> None:
        for batch in batches:
            with torch.no_grad():
                kls.append(free.loss(free.learner.state, *batch)[1]["approx_kl"].item())
            free.learner.step(*batch)
            states.append(free.learner.state_dict())

    free.learner.steps = spy  # type: ignore[method-assign]
    free.update(short_rollout(make_rollout), frame=64)
    taken = next(i for i, kl in enumerate(kls) if kl > 0.01)
    assert 0 < taken < 7  # of 8

    _, ppo = make_ppo(make_spec("PPO", values))
    metrics = ppo.update(short_rollout(make_rollout), frame=64)
    assert metrics.opt_steps == taken * len(ppo.modules)
    assert metrics.values["approx_kl"] == pytest.approx(sum(kls[: taken + 1]) / (taken + 1))
    assert all(torch.equal(ppo.learner.state[k], v) for k, v in states[taken].items())


def test_an_update_that_stays_below_target_kl_is_the_same_as_without(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    _, free = make_ppo(make_spec("PPO"))
    _, ppo = make_ppo(make_spec("PPO", {"agent.algorithm.target_kl": 1e6}))
    all_steps, steps = (p.update(short_rollout(make_rollout), frame=64) for p in (free, ppo))
    assert steps == all_steps
    assert all(torch.equal(ppo.learner.state[k], v) for k, v in free.learner.state.items())
    assert "is_too_far" not in free.learner.state  # nor in a checkpoint


@pytest.mark.parametrize(
    "values",
    [
        {"agent.algorithm.normalize_advantages": "percentile"},
        {"agent.algorithm.recompute_advantages": True},
        {"meta.threads": 2},
        pytest.param({"meta.compile": "on", "meta.threads": 2}, marks=pytest.mark.slow),
    ],
    ids=["percentile", "recompute", "threads", "compiled"],
)
def test_target_kl_ends_every_update_and_the_next_one_begins_anew(
    make_spec: MakeSpec, make_rollout: MakeRollout, values: dict[str, Any]
) -> None:
    schedule = {"agent.net.lr_scheduler_spec": {"name": "LinearToZero", "frame": 256}}
    limit = {"agent.algorithm.target_kl": 0.01}
    _, plain = make_ppo(make_spec("PPO", FAST | schedule | limit))
    _, ppo = make_ppo(make_spec("PPO", FAST | schedule | limit | values))
    for k in range(2):
        expected = plain.update(short_rollout(make_rollout), frame=64 * (k + 1))
        metrics = ppo.update(short_rollout(make_rollout), frame=64 * (k + 1))
        assert 0 < metrics.opt_steps < 16
        # The schedule counts frames and updates, however short.
        assert metrics.values["lr"] == pytest.approx(0.1 * (1 - k / 4))
        if "meta.threads" in values:
            assert metrics.opt_steps == expected.opt_steps
            assert metrics.values == pytest.approx(expected.values, rel=1e-3, abs=1e-5)


def test_a_run_with_target_kl_goes_on_from_its_saved_state(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    spec = make_spec("PPO", FAST | {"agent.algorithm.target_kl": 0.01})
    (_, ppo), (_, resumed) = make_ppo(spec), make_ppo(spec)
    ppo.update(short_rollout(make_rollout), frame=64)
    resumed.load_state_dict(ppo.state_dict())
    one, other = (p.update(short_rollout(make_rollout), frame=128) for p in (ppo, resumed))
    assert one == other
    assert all(torch.equal(resumed.learner.state[k], v) for k, v in ppo.learner.state.items())


@pytest.mark.parametrize("value", [0, -0.1, "low"])
def test_a_target_kl_that_is_no_positive_number_is_refused(make_spec: MakeSpec, value: Any) -> None:
    with pytest.raises(SpecError, match=r"agent\.algorithm\.target_kl: .*"):
        make_spec("PPO", {"agent.algorithm.target_kl": value})
