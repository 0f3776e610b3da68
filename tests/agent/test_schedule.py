"""Schedules by numbers, learning rates by torch's own schedulers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from slm_lab.agent.algorithm.schedule import LearningRate, LearningRates, scheduled_value
from slm_lab.spec import MLPNetSpec, SchedulerSpec, ScheduleSpec, Spec, SpecError
from slm_lab.training.loop import Loop


def schedule(
    name: str, start: float, end: float | None, span: tuple[int, int] = (100, 300)
) -> ScheduleSpec:
    return ScheduleSpec.model_validate(
        {
            "name": name,
            "start_val": start,
            "end_val": end,
            "start_step": span[0],
            "end_step": span[1],
        }
    )


def scheduler(name: str, **kwargs: Any) -> SchedulerSpec:
    return SchedulerSpec.model_validate({"name": name, **kwargs})


def rates(rate: LearningRate, frames: Iterable[int]) -> list[float]:
    """The rates of updates at these frames, one after the other."""
    values = []
    for frame in frames:
        values.append(rate.value(frame))
        rate.advance(frame)
    return values


def test_without_a_schedule_the_default_holds() -> None:
    assert scheduled_value(None, 1000) == 0.0
    assert scheduled_value(None, 1000, default=0.5) == 0.5


@pytest.mark.parametrize("frame", [0, 100, 10**9])
def test_no_decay_is_constant(frame: int) -> None:
    constant = ScheduleSpec.model_validate({"name": "no_decay", "start_val": 0.2})
    assert scheduled_value(constant, frame) == 0.2


@pytest.mark.parametrize(
    ("frame", "value"), [(0, 1.0), (100, 1.0), (200, 0.6), (250, 0.4), (300, 0.2), (9999, 0.2)]
)
def test_linear_decay_goes_straight_from_start_to_end(frame: int, value: float) -> None:
    assert scheduled_value(schedule("linear_decay", 1.0, 0.2), frame) == pytest.approx(value)


def test_linear_decay_may_rise() -> None:
    rising = schedule("linear_decay", 0.1, 0.3)
    assert [scheduled_value(rising, f) for f in (100, 200, 300)] == pytest.approx([0.1, 0.2, 0.3])


def test_an_end_of_zero_is_reached() -> None:
    to_zero = schedule("linear_decay", 0.01, 0.0)
    assert scheduled_value(to_zero, 200) == pytest.approx(0.005)
    assert scheduled_value(to_zero, 300) == 0.0


def test_a_missing_end_keeps_the_start() -> None:
    assert scheduled_value(schedule("linear_decay", 0.7, None), 250) == pytest.approx(0.7)


def test_rate_decay_takes_a_tenth_off_twenty_times() -> None:
    decay = schedule("rate_decay", 1.0, 0.01)
    # One twentieth of the span is 10 frames: 0.9 after one, 0.81 after two, 0.9^10 half way.
    assert scheduled_value(decay, 110) == pytest.approx(0.9)
    assert scheduled_value(decay, 120) == pytest.approx(0.81)
    assert scheduled_value(decay, 200) == pytest.approx(0.9**10)
    assert scheduled_value(decay, 300) == 0.01


def test_rate_decay_never_falls_below_its_end() -> None:
    assert scheduled_value(schedule("rate_decay", 1.0, 0.5), 250) == 0.5  # 0.9^15 = 0.206


def test_periodic_decay_is_a_fading_cosine() -> None:
    decay = schedule("periodic_decay", 1.0, 0.2)
    assert scheduled_value(decay, 100) == 1.0
    # x = 60 * (frame - 100) / 200: 15 radians after 50 frames, 30 after 100
    assert scheduled_value(decay, 150) == pytest.approx(0.2 + 0.4 * (1 + math.cos(15)) * 0.75)
    assert scheduled_value(decay, 200) == pytest.approx(0.2 + 0.4 * (1 + math.cos(30)) * 0.5)
    assert scheduled_value(decay, 300) == 0.2


def test_periodic_decay_starts_at_its_start_and_stays_above_its_end() -> None:
    decay = schedule("periodic_decay", 1.0, 0.2)
    assert scheduled_value(decay, 101) == pytest.approx(1.0, abs=0.03)
    assert min(scheduled_value(decay, frame) for frame in range(100, 300)) >= 0.2


def test_a_learning_rate_without_scheduler_is_constant() -> None:
    assert rates(LearningRate(0.1, None, 10), (10, 20, 30)) == [0.1, 0.1, 0.1]


def test_linear_to_zero_reaches_zero_after_its_frames_and_stays() -> None:
    # 100 frames at 20 frames per update: n = 5 updates.
    rate = LearningRate(1.0, scheduler("LinearToZero", frame=100), 20)
    frames = range(20, 141, 20)
    assert rates(rate, frames) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


@pytest.mark.parametrize("guess", [1, 7, 200])
def test_a_linear_rate_depends_on_the_frame_and_not_on_how_updates_are_spaced(guess: int) -> None:
    """Episodes end when they do: nobody can say beforehand how many frames an update will have."""
    rate = LearningRate(2.0, scheduler("LinearToZero", frame=100), guess)
    assert rates(rate, (10, 11, 35, 60, 109, 110, 500)) == pytest.approx(
        [2.0, 1.98, 1.5, 1.0, 0.02, 0.0, 0.0]
    )


def test_a_linear_rate_of_an_older_checkpoint_goes_on_where_it_was() -> None:
    rate = LearningRate(1.0, scheduler("LinearToZero", frame=100), 20)
    rate.load_state_dict({"updates": 2, "scheduler": {}})  # without the first frame
    assert rates(rate, (60, 80, 100)) == pytest.approx([0.6, 0.4, 0.2])


@pytest.mark.parametrize(
    ("memory", "first", "last"), [("OnPolicyReplay", 10, 1000), ("OnPolicyBatchReplay", 40, 1000)]
)
def test_a_linear_rate_comes_to_its_end_whatever_the_memory(
    make_spec: Callable[..., Spec], start: Callable[..., Loop], memory: str, first: int, last: int
) -> None:
    """Episodes of 10 steps, learned from one by one, or 40 steps at a time; 1,000 frames in all."""
    values = {
        "env.name": "probe/Terminated-v0",
        "env.num_envs": 1,
        "env.max_frame": 1000,
        "agent.memory.name": memory,
        "agent.algorithm.training_frequency": 1 if memory == "OnPolicyReplay" else 40,
        "agent.net.optim_spec.lr": 0.01,
        "agent.net.lr_scheduler_spec": {"name": "LinearToZero", "frame": 1000},
    }
    loop = start(make_spec("Reinforce", values))
    loop.run(lambda: None, 1000, lambda: False, until=first)
    assert loop.metrics is not None
    assert loop.metrics.values["lr"] == 0.01
    loop.run(lambda: None, 1000, lambda: False)
    assert loop.clock.frame == last
    assert loop.metrics.values["lr"] == pytest.approx(0.01 * first / 1000)


def test_linear_to_min_stops_at_a_share_of_the_initial_rate() -> None:
    # n = 4; multiplier max(0.1, 1 - 0.9 k / 4)
    rate = LearningRate(2.0, scheduler("LinearToMin", frame=40), 10)
    assert rates(rate, range(10, 61, 10)) == pytest.approx([2.0, 1.55, 1.1, 0.65, 0.2, 0.2])
    rate = LearningRate(2.0, scheduler("LinearToMin", frame=40, min_factor=0.5), 10)
    assert rates(rate, range(10, 61, 10)) == pytest.approx([2.0, 1.75, 1.5, 1.25, 1.0, 1.0])


SCHEDULERS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 3, "gamma": 0.5},
    "CosineAnnealingLR": {"T_max": 7},
    "MultiStepLR": {"milestones": [2, 5]},
    "ExponentialLR": {"gamma": 0.9},
    "OneCycleLR": {"max_lr": 0.5, "total_steps": 20},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_torch_scheduler_gives_torchs_own_values(name: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    theirs = getattr(torch.optim.lr_scheduler, name)(optimizer, **SCHEDULERS[name])
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert rates(LearningRate(0.1, scheduler(name, **SCHEDULERS[name]), 1), range(10)) == expected


@pytest.mark.parametrize("name", [*SCHEDULERS, "LinearToZero"])
def test_a_saved_learning_rate_continues_exactly_through_json(name: str) -> None:
    spec = scheduler(name, **SCHEDULERS.get(name, {"frame": 12}))
    original = LearningRate(0.1, spec, 1)
    rates(original, range(1, 5))
    restored = LearningRate(0.1, spec, 1)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    assert rates(restored, range(5, 11)) == rates(original, range(5, 11))


def test_every_net_has_its_own_learning_rate() -> None:
    def net(lr: float, **more: Any) -> MLPNetSpec:
        return MLPNetSpec.model_validate(
            {
                "type": "MLPNet",
                "hid_layers": [4],
                "hid_layers_activation": "tanh",
                "optim_spec": {"name": "Adam", "lr": lr},
                **more,
            }
        )

    halving = {"lr_scheduler_spec": {"name": "StepLR", "step_size": 1, "gamma": 0.5}}
    both = LearningRates({"net": net(0.1), "critic_net": net(0.4, **halving)}, frames_per_update=1)
    assert both.values(1) == {"net.lr": 0.1, "critic_net.lr": 0.4}
    assert both.advance(1) == pytest.approx(0.25)  # the mean of the rates that the update had
    assert both.values(2) == {"net.lr": 0.1, "critic_net.lr": 0.2}
    assert both.advance(2) == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("StepLR", {}),
        ("StepLR", {"step_size": 3, "stepsize": 3}),
        ("StepLR", {"step_size": 0}),  # torch divides by it in the first step
        ("MultiStepLR", {"milestones": 3}),
        ("OneCycleLR", {"max_lr": 0.1}),
    ],
)
def test_arguments_that_a_scheduler_of_torch_cannot_use_are_refused(name, kwargs):
    with pytest.raises(SpecError, match=f"lr_scheduler_spec: {name} cannot be made with"):
        LearningRate(0.1, scheduler(name, **kwargs), 1)
