"""Ray Tune as the engine of a search: it finds cores, starts trials and carries their reports.

What Tune keeps in memory (which trials there are, what the scheduler has seen) is a copy of the
journal. Tune's own way to restore an experiment is not used: it loses the rungs of the scheduler,
unpickles what it finds, and may be seconds behind.
"""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.search_journal import Journal, Status, TrialRecord, TrialReport
from slm_lab.search.display import SearchDisplay
from slm_lab.search.plan import SearchPlan
from slm_lab.search.processes import (
    clear_remains,
    forget_processes,
    remember_processes,
)
from slm_lab.search.sampler import Sampler, make_sampler
from slm_lab.search.space import values_at
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.executors.local import available_cores
from slm_lab.training.executors.ray_connection import (
    QUIET,
    cluster_ready,
    package_root,
    ray,
    signals_kept,
)
from slm_lab.training.options import RunOptions

# Tune reads these when it is imported. No tables of its own, no files of its own beside ours, no
# handling of Ctrl-C, and each trial stays in the folder the search was started in.
os.environ |= {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from slm_lab.search.worker import Job, Worker

DEATHS = 1  # how often a trial whose process or node dies is started again, from its checkpoint
HOPELESS = 3  # so many trials that fail before any has a score: the rest would fail as well
CLEANUP_SECONDS = 120  # for a stopped trial to write its files


class Listener(Protocol):
    """Who wants to know of trials as they come and go; `lab.py`, which writes tables and graphs."""

    def trial_started(self, record: TrialRecord, spec: Spec) -> None: ...
    def trial_ended(self, record: TrialRecord) -> None: ...


class HopelessSearch(RuntimeError):
    """The first trials all failed."""


def run_trials(
    spec: Spec,
    plan: SearchPlan,
    layout: RunLayout,
    journal: Journal,
    options: RunOptions,
    *,
    floor: float,
    listener: Listener,
    should_stop: Callable[[], bool],
) -> None:
    """Run every trial of the plan that the journal does not show as ended.

    Returns when all are done or `should_stop` says so; then unfinished trials are on disk, to be
    continued by calling this again.
    """
    if options.ray_address is None and not ray.is_initialized():
        _check_fit({"cpu": plan.cpu}, [{"CPU": available_cores()}])
    stop_file = layout.search_dir() / "stop"
    stop_file.unlink(missing_ok=True)
    assert spec.meta.random_seed is not None
    search = _Search(
        spec,
        plan,
        journal,
        make_sampler(plan, spec.meta.random_seed),
        SearchDisplay(plan),
        listener,
        should_stop,
        floor,
        stop_file,
    )
    search.replay()
    if not search.has_work:
        return
    job = Job(
        spec=spec,
        predir=str(layout.predir.resolve()),
        stop_file=str(stop_file.resolve()),
        options=options,
        rounds=plan.rounds(),
        rungs=plan.rungs(),
        floor=floor,
    )
    with ray_ready(options.ray_address, layout.search_dir()), search.display:
        resources = _resources(plan)
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(Worker, job=job), resources),
            tune_config=tune.TuneConfig(
                search_alg=_Suggestions(search),
                scheduler=search.scheduler,
                num_samples=plan.max_trial,
                reuse_actors=True,  # a process imports torch once
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(layout.search_dir().resolve()),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                stop=_Interruption(search),
                callbacks=[_Reports(search)],
                verbose=0,
            ),
        )
        with _quiet():
            tuner.fit()
    stop_file.unlink(missing_ok=True)
    # Nobody reads Tune's own state: the journal has it all.
    shutil.rmtree(layout.search_dir() / "tune", ignore_errors=True)
    if search.hopeless:
        raise HopelessSearch(search.hopeless)


@dataclass(slots=True)
class _Search:
    """The state of a running search: journal, sampler and scheduler in step with one another."""

    spec: Spec
    plan: SearchPlan
    journal: Journal
    sampler: Sampler
    display: SearchDisplay
    listener: Listener
    should_stop: Callable[[], bool]
    floor: float
    stop_file: Path
    scheduler: Any = None
    hopeless: str = ""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        # Tune pickles its settings for a restore that nobody will ask for, and this is among them.
        return str, ("a search lives in one process",)

    def replay(self) -> None:
        """Bring a new sampler and a new scheduler to where the journal is."""
        self.scheduler = self._new_scheduler()
        records = self.journal.records
        for trial, record in records.items():
            self.sampler.replay(trial, record.point)
        for record in list(records.values()):
            overdue = False
            for report in record.reports:
                result = {"frame": report.frame, "score": report.score}
                overdue |= self.scheduler.replay(record.trial, result)
            if record.is_running and overdue:  # stopped, but killed before that was written
                self.end(record.trial, "stopped", record.score)
            elif not record.is_running:
                assert record.score is not None
                self.sampler.tell(record.trial, record.score)
        self.display.show(records)

    @property
    def has_work(self) -> bool:
        unfinished = any(record.is_running for record in self.journal.records.values())
        return unfinished or len(self.journal.records) < self.plan.max_trial

    def unfinished(self) -> list[int]:
        return [trial for trial, record in self.journal.records.items() if record.is_running]

    def new_trial(self) -> int | None:
        """The index of the next trial, with its point drawn and written down."""
        trial = len(self.journal.records)
        if trial >= self.plan.max_trial:
            return None
        point = self.sampler.ask(trial)
        self.journal.start(trial, point, values_at(self.plan.space, point))
        return trial

    def announce(self, trial: int) -> None:
        record = self.journal.records[trial]
        try:
            spec = self.spec.with_values(record.values)
        except SpecError:
            return  # the trial itself will say what is wrong with its values
        self.listener.trial_started(record, spec)
        self.display.show(self.journal.records)

    def report(self, trial: int, result: Mapping[str, Any]) -> None:
        if not (result["interrupted"] or result["failed"]):
            told = {name: result[name] for name in ("frame", "score", "seconds", "node")}
            self.journal.report(trial, TrialReport(**told))
            self.display.report(self.journal.records, trial)

    def conclude(self, trial: int, result: Mapping[str, Any] | None) -> None:
        """A trial is over; without a result its process died."""
        if result is None:
            self.end(trial, "failed", self.floor, "its process died")
        elif result["failed"]:
            self.end(trial, "failed", self.floor, result["failed"])
        elif result["diverged"]:
            self.end(trial, "diverged", self.floor, result["diverged"])
        elif result["frame"] >= self.plan.max_frame:
            self.end(trial, "completed", result["score"])
        elif not result["interrupted"]:
            self.end(trial, "stopped", result["score"])

    def end(self, trial: int, status: Status, score: float | None, reason: str = "") -> None:
        final = self.floor if score is None else score
        self.journal.end(trial, status, final, reason)
        self.sampler.tell(trial, final)
        records = self.journal.records
        self.listener.trial_ended(records[trial])
        self.display.ended(records, trial)
        if all(record.status == "failed" or not record.reports for record in records.values()):
            failed = [record for record in records.values() if record.status == "failed"]
            if len(failed) >= min(HOPELESS, self.plan.max_trial):
                self.hopeless = failed[0].reason

    def must_stop(self) -> bool:
        stop = bool(self.hopeless) or self.should_stop()
        if stop and not self.stop_file.exists():
            self.stop_file.touch()
        return stop

    def _new_scheduler(self) -> Any:
        if self.plan.halving is None:
            return _Patient()
        return _Asha(
            time_attr="frame",
            metric="score",
            mode="max",
            max_t=self.plan.max_frame,
            grace_period=self.plan.halving.grace_period,
            reduction_factor=self.plan.halving.reduction_factor,
        )


class _Patient(FIFOScheduler):  # type: ignore[misc]
    """Every trial runs to its end."""

    def replay(self, trial: int, result: Mapping[str, Any]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Identity:
    """A trial as ASHA knows it. Tune draws new ids at each start; a rung remembers ours."""

    trial_id: str


class _Asha(ASHAScheduler):  # type: ignore[misc]
    """Ray's ASHA, in which a trial keeps its name from one start of the search to the next."""

    def replay(self, trial: int, result: Mapping[str, Any]) -> bool:
        """Let it see a report of the past; True if that was the trial's last."""
        identity = _Identity(f"t{trial}")
        if identity.trial_id not in self._trial_info:
            super().on_trial_add(None, identity)
        return bool(super().on_trial_result(None, identity, dict(result)) == self.STOP)

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        if _trial_name(trial) not in self._trial_info:
            super().on_trial_add(controller, _Identity(_trial_name(trial)))

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        return super().on_trial_result(controller, _Identity(_trial_name(trial)), result)

    def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(controller, _Identity(_trial_name(trial)), result)

    def on_trial_remove(self, controller: Any, trial: Any) -> None:
        super().on_trial_remove(controller, _Identity(_trial_name(trial)))


class _Suggestions(Searcher):  # type: ignore[misc]
    """Tune's way to ask for trials, and to say that they are over."""

    def __init__(self, search: _Search) -> None:
        super().__init__(metric="score", mode="max")
        self._search = search
        self._again = search.unfinished()
        self._trial_of: dict[str, int] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        trial = self._again.pop(0) if self._again else self._search.new_trial()
        if trial is None:
            return str(Searcher.FINISHED)
        self._trial_of[trial_id] = trial
        self._search.announce(trial)
        record = self._search.journal.records[trial]
        return {"trial": trial, "values": record.values, "seconds": record.seconds}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._search.conclude(self._trial_of[trial_id], None if error else result)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal has it."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the journal has it."""


class _Reports(tune.Callback):  # type: ignore[misc]
    def __init__(self, search: _Search) -> None:
        self._search = search

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._search.report(trial.config["trial"], result)


class _Interruption(tune.Stopper):  # type: ignore[misc]
    def __init__(self, search: _Search) -> None:
        self._search = search

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._search.must_stop()


def _trial_name(trial: Any) -> str:
    return f"t{trial.config['trial']}"


# Ray itself


@contextmanager
def ray_ready(address: str | None, search_dir: Path) -> Iterator[None]:
    """A Ray to run on: the caller's if one is connected, the cluster at an address, or a local one
    that is started here and stopped again. Nothing else is ever stopped."""
    if address:
        with cluster_ready(address):
            yield
        return
    if ray.is_initialized():
        yield
        return
    clear_remains(search_dir)
    with _code_on_path(), signals_kept():  # the path is inherited by every process that Ray starts
        ray.init(address="local", num_cpus=available_cores(), include_dashboard=False, **QUIET)
    remember_processes(search_dir)
    try:
        yield
    finally:
        ray.shutdown()
        forget_processes(search_dir)


def _resources(plan: SearchPlan) -> dict[str, float]:
    """What one trial takes, which must fit on one node; gpu is dropped where there is none."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"cpu": plan.cpu}
    if plan.gpu and any(node.get("GPU") for node in nodes):
        wanted["gpu"] = plan.gpu
    _check_fit(wanted, nodes)
    return wanted


def _check_fit(wanted: Mapping[str, float], nodes: list[dict[str, float]]) -> None:
    for name, amount in wanted.items():
        most = max(node.get(name.upper(), 0) for node in nodes)
        if amount > most:
            where = "this machine has" if len(nodes) == 1 else "no node has more than"
            message = f"found {amount:g}; {where} {most:g}. Ask for {most:g} or less."
            raise SpecError([Problem(f"meta.search_resources.{name}", message)], "the spec")


@contextmanager
def _code_on_path() -> Iterator[None]:
    """New processes import the slm_lab that runs here, also when it is a checkout."""
    before = os.environ.get("PYTHONPATH")
    root = package_root()
    if root.name not in ("site-packages", "dist-packages"):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *([before] if before else [])])
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Tune logs and warns about itself; what matters of it is in the table and in the journal."""
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train", "ray.air")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
