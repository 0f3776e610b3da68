"""A search from beginning to end: find or make its folder, run the trials, report, validate."""

from __future__ import annotations

import math
import shutil
import signal
from pathlib import Path
from types import ModuleType

from loguru import logger

from slm_lab.analysis.experiment import SearchMetrics
from slm_lab.analysis.metrics import random_baseline, save_random_baseline
from slm_lab.hub.sync import run_synced, upload_remote
from slm_lab.runs.find import find_search
from slm_lab.runs.layout import RunLayout, new_timestamp
from slm_lab.runs.lock import locked
from slm_lab.runs.provenance import save_spec
from slm_lab.runs.resume import check_same_experiment, resume_command
from slm_lab.runs.search_journal import Journal
from slm_lab.search.plan import SearchPlan, plan_search
from slm_lab.search.reporter import SearchReporter, Train
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.console import setup_run_log
from slm_lab.training.options import RunOptions
from slm_lab.training.seeding import draw_seed
from slm_lab.training.trial import import_with_ray, stop_on_signals

BASELINE_EPISODES, BASELINE_SECONDS = 20, 20.0
LOWEST = -1e9  # for an env in which random actions cannot be measured


class SearchStopped(Exception):
    """A signal ended a search; `resume` is the command that continues it."""

    def __init__(self, by: signal.Signals, layout: RunLayout) -> None:
        self.by, self.predir = by, layout.predir
        self.resume = resume_command(layout, "search")
        super().__init__(f"stopped by {by.name}")


class SearchFailed(Exception):
    """No trial could be run; the text is the reason of the first."""


def run_search(spec: Spec, options: RunOptions, where: str, train: Train) -> SearchMetrics:
    """Search, or continue the search in a folder: `where` is "", `latest` or its path.

    `train` runs one spec in train mode: it validates the best trials, if `options` ask for it.
    """
    _check_options(options)
    import_with_ray("optuna", "MODE", "search ")
    engine = import_with_ray("slm_lab.search.engine", "MODE", "search ")
    remote = upload_remote(options.upload_hf)
    if where:
        layout = find_search(spec.name, where, Path(options.data_dir))
        spec = _same_search(spec, layout)
    elif spec.meta.random_seed is None:
        spec = spec.with_values({"meta.random_seed": draw_seed()})
    plan = plan_search(spec)
    timestamp = options.timestamp or new_timestamp()
    floor = _floor(spec, Path(options.data_dir))
    if not where:
        layout = RunLayout.create(spec.name, timestamp, root=options.data_dir)
        save_spec(spec, layout.spec_path(), layout, -1, timestamp, options.cuda_offset)

    def search() -> SearchMetrics:
        setup_run_log(layout.log_path(), layout.predir, options.log_level)
        journal = Journal(layout.journal_path(), folder=layout.predir)
        reporter = SearchReporter(spec, layout, journal, timestamp, options)
        _run_trials(engine, plan, reporter, floor)
        reporter.finish(train)
        metrics = reporter.metrics(plan)
        logger.info(metrics.summary_line())
        logger.info(f"Search done. Output: {layout.predir}")
        return metrics

    with locked(layout.run_lock(), f"run folder {layout.predir}", folder=layout.predir):
        return run_synced(remote, layout.predir, search)


def _run_trials(
    engine: ModuleType, plan: SearchPlan, reporter: SearchReporter, floor: float
) -> None:
    spec, layout, journal = reporter.spec, reporter.layout, reporter.journal
    done = f", {len(reporter.ended())} of them done" if journal.records else ""
    logger.info(f"Searching {spec.name}: {plan.max_trial} trials{done}, output in {layout.predir}")
    with stop_on_signals() as stop:
        try:
            engine.run_trials(
                spec,
                plan,
                layout,
                journal,
                reporter.options,
                floor=floor,
                listener=reporter,
                should_stop=stop,
            )
        except engine.AllTrialsFailed as error:
            raise SearchFailed(f"{error}. See {layout.log_dir()}") from None
        except SpecError:
            if not journal.records:  # bad input, and nothing ran: a folder would look like a run
                shutil.rmtree(layout.predir, ignore_errors=True)
            raise
    if stop.signal is not None and len(reporter.ended()) < plan.max_trial:
        reporter.write_table()
        logger.warning(f"Search stopped early by {stop.signal.name}. Output: {layout.predir}")
        raise SearchStopped(stop.signal, layout)


def _same_search(spec: Spec, layout: RunLayout) -> Spec:
    """The spec that the search was started with, which `spec` must not differ from.

    The number of trials and the resources of each may change on the way; anything else would make
    it another search.
    """
    saved = check_same_experiment(spec, layout, None)
    if dict(spec.search) != dict(saved.search):
        fix = f"To go on with it as it was: {resume_command(layout, 'search')}"
        problem = Problem("search", f"found another space than that of the run. {fix}")
        raise SpecError([problem], f"resuming {layout.predir}")
    meta = spec.meta
    changes = {"max_trial": meta.max_trial, "search_resources": dict(meta.search_resources)}
    return saved.with_values({f"meta.{key}": value for key, value in changes.items()})


def _check_options(options: RunOptions) -> None:
    problems = []
    if options.keep < -1:
        found = f"found {options.keep}; expected -1 (keep all), 0 or more"
        problems.append(Problem("--keep (or KEEP_TRIALS)", found))
    if options.validate < 0:
        problems.append(Problem("--validate", f"found {options.validate}; expected 0 or more"))
    if problems:
        raise SpecError(problems, "the command")


def _floor(spec: Spec, data_dir: Path) -> float:
    """The score of a trial that diverges: that of a random policy, which any learning beats."""
    path = data_dir / "random_baseline.json"
    known = random_baseline(spec.env.name, path)
    if known is not None:
        return known
    from slm_lab.env.check import measure_random_policy  # gymnasium, only where it is needed

    measured = measure_random_policy(spec.env, episodes=BASELINE_EPISODES, seconds=BASELINE_SECONDS)
    if measured is None or not math.isfinite(measured.mean):
        logger.warning(
            f"env.name: random actions could not be measured in {spec.env.name}; a trial that "
            f"diverges scores {LOWEST:g}"
        )
        return LOWEST
    save_random_baseline(path, spec.env.name, measured.mean, measured.std)
    return measured.mean
