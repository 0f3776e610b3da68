"""The plan of a search: validate what a spec asks for, and estimate what it costs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from loguru import logger

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import save_spec
from slm_lab.search.space import Dimension, dimensions
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.error import did_you_mean
from slm_lab.training.console import format_duration
from slm_lab.training.executors.local import available_cores
from slm_lab.training.options import RunOptions

REPORTS = 20  # of a trial that runs to its end, besides those at its rungs
TRIALS_PER_DIMENSION = 3, 4  # recommended by the docs
SECONDS_TO_START = 8.0  # Ray, and the imports of its processes: an estimate, not measured
PATIENCE = 60.0  # seconds until a session must learn while its speed is measured


@dataclass(frozen=True, slots=True)
class Halving:
    """Asynchronous successive halving (ASHA): at each rung the best 1 / factor continue."""

    grace_period: int
    reduction_factor: float

    def rungs(self, max_frame: int) -> tuple[int, ...]:
        """Frames at which early stopping may end a trial; none at the very end."""
        rungs = []
        frame = float(self.grace_period)
        while frame < max_frame:
            rungs.append(math.ceil(frame))
            frame *= self.reduction_factor
        return tuple(rungs)

    def expected_share(self, max_frame: int) -> float:
        """Share of all frames that is trained if exactly 1 / factor pass each rung."""
        ends = (*self.rungs(max_frame), max_frame)
        starts = (0, *ends[:-1])
        survivors = (self.reduction_factor**-i for i in range(len(ends)))
        frames = (
            (end - start) * share for start, end, share in zip(starts, ends, survivors, strict=True)
        )
        return sum(frames) / max_frame


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The typed form of `search`, `meta.max_trial` and the `meta.search_*` keys."""

    space: tuple[Dimension, ...]
    sampler: str
    max_trial: int
    max_session: int
    max_frame: int
    log_frequency: int
    halving: Halving | None
    cpu: float
    gpu: float

    def rounds(self) -> tuple[int, ...]:
        """Frames at which a trial reports: each rung, a regular grid, and its end. The grid is no
        finer than the rows of the curve, because the score changes with these."""
        step = max(math.ceil(self.max_frame / REPORTS), self.log_frequency)
        return tuple(sorted({*self.rungs(), *range(step, self.max_frame, step), self.max_frame}))

    def rungs(self) -> tuple[int, ...]:
        return self.halving.rungs(self.max_frame) if self.halving else ()

    @property
    def most_frames(self) -> int:
        """Frames of all trials if none stops early."""
        return self.max_trial * self.max_session * self.max_frame

    @property
    def expected_frames(self) -> int:
        share = self.halving.expected_share(self.max_frame) if self.halving else 1.0
        return round(self.most_frames * share)


def plan_search(spec: Spec) -> SearchPlan:
    """The plan of a spec; a SpecError lists every mistake in its search keys."""
    problems: list[Problem] = []
    space = dimensions(spec)
    if not space:
        example = '"search": {"agent.algorithm.gamma__uniform": [0.95, 0.999]}'
        problems.append(Problem("search", f"missing; a search needs a block such as {example}"))
    halving = _halving(spec, problems)
    resources = _resources(spec, problems)
    sampler, max_trial = spec.meta.search_sampler, spec.meta.max_trial
    if sampler == "grid" and space:
        max_trial = _grid_trials(space, max_trial, problems)
    elif max_trial is None:
        problems.append(Problem("meta.max_trial", "missing; expected the number of trials"))
    if problems:
        raise SpecError(problems, spec.name)
    assert max_trial is not None
    return SearchPlan(
        space=space,
        sampler=sampler,
        max_trial=max_trial,
        max_session=spec.meta.max_session,
        max_frame=spec.env.max_frame,
        log_frequency=spec.meta.log_frequency,
        halving=halving,
        **resources,
    )


def _halving(spec: Spec, problems: list[Problem]) -> Halving | None:
    if not spec.meta.search_scheduler:
        return None
    path, keys = "meta.search_scheduler", {"grace_period": None, "reduction_factor": 3}
    given = _numbers(spec.meta.search_scheduler, keys, path, "key for ASHA", problems)
    if len(given) < len(keys):
        return None
    grace, factor = given.values()
    first_row, last = spec.meta.log_frequency, spec.env.max_frame
    if not min(first_row, last) <= grace <= last:
        bounds = f"meta.log_frequency = {first_row} to env.max_frame = {last}"
        message = f"found {grace:g}; expected frames, from {bounds}: before, there is no score"
        problems.append(Problem(f"{path}.grace_period", message))
    if factor <= 1:
        message = f"found {factor:g}; expected more than 1: one in so many trials passes a rung"
        problems.append(Problem(f"{path}.reduction_factor", message))
    return Halving(int(grace), factor)


def _resources(spec: Spec, problems: list[Problem]) -> dict[str, float]:
    path, defaults = "meta.search_resources", {"cpu": 1, "gpu": 0}
    given = _numbers(spec.meta.search_resources, defaults, path, "resource", problems)
    resources = defaults | given
    if resources["cpu"] <= 0:
        problems.append(Problem(f"{path}.cpu", f"found {given['cpu']:g}; expected more than 0"))
    if resources["gpu"] < 0:
        problems.append(Problem(f"{path}.gpu", f"found {given['gpu']:g}; expected 0 or more"))
    return resources


def _numbers(
    given: Mapping[str, Any],
    defaults: Mapping[str, float | None],
    path: str,
    what: str,
    problems: list[Problem],
) -> dict[str, float]:
    """The numbers of a block of a spec, in the order of `defaults`; anything else is a problem."""
    for key in given.keys() - defaults.keys():
        message = f"unknown {what}. {did_you_mean(key, tuple(defaults))}"
        problems.append(Problem(f"{path}.{key}", message))
    numbers = {}
    for key, default in defaults.items():
        value = given.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            numbers[key] = value
        else:
            found = "missing" if value is None else f"found {value!r}"
            problems.append(Problem(f"{path}.{key}", f"{found}; expected a number"))
    return numbers


def _grid_trials(
    space: tuple[Dimension, ...], max_trial: int | None, problems: list[Problem]
) -> int | None:
    continuous = [dim for dim in space if dim.points() is None]
    for dim in continuous:
        message = (
            "has no grid: a grid search takes choice, randint, qrandint and quniform. "
            "Name the values with `choice`, or set meta.search_sampler to optuna or random."
        )
        problems.append(Problem(f"search.{dim.path}__{dim.distribution}", message))
    if continuous:
        return max_trial
    size = math.prod(len(dim.points() or ()) for dim in space)
    if max_trial is not None and max_trial < size:
        message = f"found {max_trial}; the grid has {size} points. Set {size}, or name fewer."
        problems.append(Problem("meta.max_trial", message))
    return size


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of one session, the seconds that each takes besides, to begin, and those of a
    trial's metrics and graphs, for which the process of the search lets the others wait."""

    frames_per_second: float
    seconds_to_begin: float = 0.0
    seconds_to_draw: float = 0.0


def describe_search(spec: Spec, speed: Speed) -> str:
    """Describe a search: space, trials per dimension, frames, and time at a measured speed."""
    plan = plan_search(spec)
    low, high = TRIALS_PER_DIMENSION
    count = len(plan.space)
    ratio = plan.max_trial / count
    verdict = "enough" if ratio >= low else f"too few: set meta.max_trial to {low * count} or more"
    parallel = max(1, min(int(available_cores() // plan.cpu), plan.max_trial))
    frames, cores = plan.most_frames, available_cores()
    lines = [
        f"Search of {spec.name}, {plan.sampler} sampler",
        *(f"  {dim}" for dim in plan.space),
        f"Trials   {plan.max_trial} over {count} dimension(s): {ratio:.1f} per dimension, "
        f"the rule is {low} to {high}: {verdict}",
        f"Each     {plan.max_session} session(s) of {plan.max_frame:,} frames, "
        f"{parallel} trial(s) at once ({plan.cpu:g} of {cores} core(s) each)",
        f"Frames   {frames:,} without early stopping",
    ]
    if plan.halving is not None:
        rungs = ", ".join(f"{rung:,}" for rung in plan.rungs())
        frames, factor = plan.expected_frames, plan.halving.reduction_factor
        passing = f"with ASHA (rungs at {rungs}; one in {factor:g} passes)"
        lines.append(f"         about {frames:,} {passing}")
    duration = format_duration(search_seconds(plan, frames, parallel, speed))
    measured = f"{speed.frames_per_second:,.0f} frames/s of one session"
    begins = f"{speed.seconds_to_begin:.1f} s for each to begin"
    draws = f"{speed.seconds_to_draw:.1f} s for the graphs of a trial, all measured now"
    lines += [f"Time     about {duration}, at the {measured}", f"         {begins}, {draws}"]
    return "\n".join(lines)


def search_seconds(plan: SearchPlan, frames: int, parallel: int, speed: Speed) -> float:
    """Seconds of a search of so many frames. The last trials leave cores idle: without early
    stopping all take equally long, so there are whole rounds of them."""
    work = frames / speed.frames_per_second
    work += plan.max_trial * plan.max_session * speed.seconds_to_begin
    rounds = plan.max_trial / parallel
    idle = math.ceil(rounds) / rounds if plan.halving is None else 1.0
    drawing = plan.max_trial * speed.seconds_to_draw
    return SECONDS_TO_START + work / parallel * idle + drawing


def measure_speed(spec: Spec, seconds: float = 4.0) -> Speed:
    """Train a trial from the middle of the space in this process, until it learns by the code that
    it will go on with, and then for `seconds` more. No files are kept."""
    from slm_lab.training.threads import set_threads  # torch is slow to import

    spec = _middle(spec).with_values({"meta.random_seed": 0})
    options = RunOptions(mode="search")
    set_threads(spec, options)
    logger.disable("slm_lab")
    with ExitStack() as afterwards:
        afterwards.callback(logger.enable, "slm_lab")
        if spec.meta.compile != "off":
            _measure(spec, options, 0.0)  # the first one compiles; later ones find the code
        return _measure(spec, options, seconds)


def _measure(spec: Spec, options: RunOptions, seconds: float) -> Speed:
    from slm_lab.training.session import Session

    with TemporaryDirectory() as folder:
        layout = RunLayout.create(spec.name, "speed", folder)
        began, end = time.monotonic(), math.inf

        def should_stop() -> bool:
            now = time.monotonic()
            if end < math.inf:
                return now > end
            return now > began + PATIENCE or session.is_settled

        session = Session(spec, layout, 0, 0, options, should_stop=should_stop)
        with closing(session):
            session.advance()
            settled, frame = time.monotonic(), session.frame
            end = settled + seconds
            session.advance()
            spent, trained = time.monotonic() - settled, session.frame - frame
        save_spec(spec, layout.trial_spec_path(0), layout, 0, "", 0)  # graphs tell what they show
        draws = _seconds_to_draw(layout)
        if trained == 0:  # the budget was too small to tell the two apart
            return Speed(max(frame, 1) / (settled - began), seconds_to_draw=draws)
        speed = trained / spent
        return Speed(speed, max(0.0, settled - began - frame / speed), draws)


def _seconds_to_draw(layout: RunLayout) -> float:
    """Seconds of the metrics and graphs of a trial, once what draws them is imported."""
    from slm_lab.analysis.trial import analyze_ended_trial  # needs numpy, a rented run does not

    began = time.monotonic()
    for _ in range(2):
        began = time.monotonic()
        try:
            analyze_ended_trial(layout, 0, html=False)
        except (ValueError, FileNotFoundError):  # no row yet, so nothing to draw
            return 0.0
    return time.monotonic() - began


def _middle(spec: Spec) -> Spec:
    """The trial in the middle of the space; the spec itself where no trial can be there."""
    space = dimensions(spec)
    at = {d.path: d.value(len(d.arguments) // 2 if d.is_choice else 0.5) for d in space}
    try:
        return spec.with_values(at)
    except SpecError:
        return spec
