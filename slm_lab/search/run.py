"""A search from beginning to end: find or make its folder, run the trials, report, validate."""

from __future__ import annotations

import json
import math
import shutil
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from loguru import logger

from slm_lab.analysis.experiment import SearchMetrics, TrialRow, write_experiment
from slm_lab.analysis.metrics import (
    TRIAL_SCALARS,
    measured_baselines,
    random_baseline,
    save_random_baseline,
)
from slm_lab.analysis.trial import TrialMetrics, analyze_ended_trial
from slm_lab.hub.sync import run_synced, upload_remote
from slm_lab.runs.files import make_folder, read_json, write_or_warn
from slm_lab.runs.find import find_search, train_mode
from slm_lab.runs.layout import RunLayout, new_timestamp
from slm_lab.runs.lock import locked
from slm_lab.runs.provenance import save_spec
from slm_lab.runs.resume import check_same_experiment, resume_command
from slm_lab.runs.search_journal import Journal, TrialRecord, best_first
from slm_lab.search.plan import SearchPlan, plan_search
from slm_lab.spec import Problem, Spec, SpecError, SpecWarning, read_saved_spec
from slm_lab.training.console import setup_run_log
from slm_lab.training.options import RunOptions
from slm_lab.training.seeding import draw_seed, validation_seed
from slm_lab.training.trial import import_with_ray, stop_on_signals

BASELINE_EPISODES, BASELINE_SECONDS = 20, 20.0
LOWEST = -1e9  # for an env in which random actions cannot be measured

VALIDATION_SESSIONS = 4  # at least
Train = Callable[[Spec, str, RunOptions], TrialMetrics]


class SearchStopped(Exception):
    """A signal ended a search; `resume` is the command that continues it."""

    def __init__(self, by: signal.Signals, layout: RunLayout) -> None:
        self.by, self.predir = by, layout.predir
        self.resume = resume_command(layout, "search")
        super().__init__(f"stopped by {by.name}")


class SearchFailed(Exception):
    """No trial could be run; the text is the reason of the first."""


def run_search(spec: Spec, options: RunOptions, where: str, train: Train) -> SearchMetrics:
    """Search, or continue the search in a folder: `where` is "", `latest` or its path. `train` runs
    a spec in train mode, to validate the best trials if `options` ask for it."""
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
        reporter = SearchReporter(spec, layout, timestamp, options)
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
            failure = engine.run_trials(plan, reporter, floor, stop)
        except SpecError:
            if not journal.records:  # bad input, and nothing ran: a folder would look like a run
                shutil.rmtree(layout.predir, ignore_errors=True)
            raise
    if failure:
        raise SearchFailed(f"{failure}. See {layout.log_dir()}")
    if stop.signal is not None and len(reporter.ended()) < plan.max_trial:
        reporter.write_table()
        logger.warning(f"Search stopped early by {stop.signal.name}. Output: {layout.predir}")
        raise SearchStopped(stop.signal, layout)


def _same_search(spec: Spec, layout: RunLayout) -> Spec:
    """The spec that the search was started with. `spec` may ask for other numbers of trials and
    other resources; anything else would make it another search."""
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


@dataclass(slots=True)
class SearchReporter:
    """Writes specs, metrics and tables as trials start and end, and the results at the end."""

    spec: Spec
    layout: RunLayout
    timestamp: str
    options: RunOptions
    journal: Journal = field(init=False)
    validated: dict[int, float] = field(init=False)  # trial -> score of its validation

    def __post_init__(self) -> None:
        self.journal = Journal(self.layout.journal_path())
        self.validated = _validated(self.layout)

    def trial_started(self, record: TrialRecord, spec: Spec) -> None:
        path = self.layout.trial_spec_path(record.trial)
        save_spec(spec, path, self.layout, record.trial, self.timestamp, self.options.cuda_offset)

    def trial_ended(self, record: TrialRecord) -> None:
        if self.layout.sessions(record.trial):
            try:
                analyze_ended_trial(
                    self.layout, record.trial, log_extra=self.options.log_extra, html=False
                )
            except ValueError as error:  # a table that its trial had no time to begin
                logger.warning(f"Trial {record.trial} has no metrics: {error}")
        self.write_table()

    def ended(self) -> list[TrialRecord]:
        return [record for record in self.journal.records.values() if not record.is_running]

    def write_table(self, *, draw: bool = False) -> None:
        """Write the table of trials, and `draw` its graphs. A full disk costs these, never the
        search."""
        try:
            rows = _rows_of(self.journal, self.validated)
            _write_table(self.layout, self.spec, rows, draw=draw)
        except OSError as error:
            predir = self.layout.predir
            fix = f"Once there is space: slm-lab retro {predir}"
            logger.warning(f"{error.filename or predir}: not written ({error.strerror}). {fix}")

    def finish(self, train: Train) -> None:
        """Write the results after the last trial: prune, draw, name the best, validate."""
        for record in self.ended():
            # A kill came after the end of this trial was journalled, and before its metrics.
            if not self.layout.trial_metrics_scalar_copy(record.trial).exists():
                self.trial_ended(record)
        ranked = best_first(self.journal.records)
        if self.options.keep >= 0:
            unfit = [r for r in self.ended() if r.status in ("diverged", "failed")]
            for record in ranked[self.options.keep :] + unfit:
                name = f"{self.layout.trial_name(record.trial)}_s*"
                for model in (self.layout.predir / "model").glob(name):
                    model.unlink()
                for checkpoint in (self.layout.predir / "checkpoint").glob(name):
                    shutil.rmtree(checkpoint, ignore_errors=True)
        self._write_results()
        if self.options.validate:
            for record in ranked[: self.options.validate]:
                if record.trial not in self.validated:
                    self._validate(record, train)
            self._write_results()

    def metrics(self, plan: SearchPlan) -> SearchMetrics:
        records = self.journal.records.values()
        rows = _rows_of(self.journal, self.validated)
        return SearchMetrics(
            trials=tuple(sorted(rows, key=lambda row: (-row.score, row.trial))),
            frames=sum(record.frame for record in records) * plan.max_session,
            most_frames=plan.most_frames,
            seconds=sum(record.seconds for record in records),
            predir=self.layout.predir,
            best_spec=path if (path := self.layout.best_spec_path()).exists() else None,
            graph_png=self.layout.experiment_graph_copy(),
            graph_html=self.layout.experiment_graph_html(),
        )

    def _write_results(self) -> None:
        self.write_table(draw=True)
        best = self._best()
        if best is not None:
            # Without the search's seed: whoever runs the spec again gets a fresh one.
            tree = self.spec.with_values({**best.values, "meta.random_seed": None}).to_dict()
            text = json.dumps({"name": self.spec.name, **tree}, indent=2) + "\n"
            write_or_warn(self.layout.predir, self.layout.best_spec_path(), text)

    def _best(self) -> TrialRecord | None:
        """The best trial by its validated score, if any is validated; else by its score in the
        search."""
        ranked = best_first(self.journal.records)
        validated = [record for record in ranked if record.trial in self.validated]
        if validated:
            return max(validated, key=lambda record: self.validated[record.trial])
        return ranked[0] if ranked else None

    def _validate(self, record: TrialRecord, train: Train) -> None:
        """Train a trial's spec again, with seeds that the search has not used."""
        folder = self.layout.validation_dir()
        make_folder(self.layout.predir, folder)
        known = measured_baselines(self.layout.predir)
        if known.exists():
            write_or_warn(self.layout.predir, folder / known.name, known.read_bytes())
        assert self.spec.meta.random_seed is not None
        values = {
            **record.values,
            "meta.max_session": max(self.spec.meta.max_session, VALIDATION_SESSIONS),
            "meta.random_seed": validation_seed(self.spec.meta.random_seed, record.trial),
        }
        # Not {name}_t0, which in file names is a trial of a run; this is a run.
        spec = self.spec.with_values(values).renamed(f"{self.spec.name}_trial{record.trial}")
        logger.info(f"Validating trial {record.trial} with {spec.meta.max_session} fresh seeds")
        # Inside the search's folder, and uploaded with it.
        options = replace(self.options, data_dir=str(folder), upload_hf=False)
        metrics = train(spec, train_mode(spec.name, folder), options)
        # The training has redirected the log.
        setup_run_log(self.layout.log_path(), self.layout.predir, self.options.log_level)
        self.validated[record.trial] = metrics.total_reward_ma
        content = _read_validation(self.layout)
        content[str(record.trial)] = {
            "total_reward_ma": metrics.total_reward_ma,
            "sessions": {s: values["total_reward_ma"] for s, values in metrics.sessions.items()},
            "search_score": record.score,
            "predir": metrics.predir.relative_to(self.layout.predir).as_posix(),
        }
        text = json.dumps(content, indent=2) + "\n"
        write_or_warn(self.layout.predir, self.layout.validation_path(), text)
        logger.info(
            f"Trial {record.trial}: search score {record.score:.2f}, validated "
            f"{metrics.total_reward_ma:.2f} over {len(metrics.sessions)} sessions"
        )


def redo_tables(layout: RunLayout) -> None:
    """Write the table and graphs of a search again, from its journal; a search of the original SLM
    Lab has values and scores as JSON."""
    with warnings.catch_warnings(action="ignore", category=SpecWarning):
        spec = read_saved_spec(layout.spec_path())
    if layout.journal_path().exists():
        rows = _rows_of(Journal(layout.journal_path()), _validated(layout))
    else:
        rows = _original_rows(read_json(layout.predir, layout.trial_data_dict()))
    _write_table(layout, spec, rows, draw=True)


def _write_table(layout: RunLayout, spec: Spec, rows: list[TrialRow], *, draw: bool) -> None:
    table = write_experiment(layout, rows)
    if draw:
        from slm_lab.analysis.experiment_plot import plot_experiment  # matplotlib is slow to import

        plot_experiment(layout, spec, table)


def _rows_of(journal: Journal, validated: Mapping[int, float]) -> list[TrialRow]:
    return [
        TrialRow(r.trial, r.values, r.status, r.score, validated.get(r.trial))
        for r in journal.records.values()
        if not r.is_running and r.score is not None
    ]


def _original_rows(trials: Mapping[str, Mapping[str, Any]]) -> list[TrialRow]:
    """A trial whose score is not finite counts as failed, with the lowest of the other scores."""
    scores = {trial: float(row["total_reward_ma"]) for trial, row in trials.items()}
    lowest = min((score for score in scores.values() if math.isfinite(score)), default=0.0)
    return [
        TrialRow(
            int(trial),
            {key: value for key, value in trials[trial].items() if key not in TRIAL_SCALARS},
            "completed" if math.isfinite(score) else "failed",
            score if math.isfinite(score) else lowest,
        )
        for trial, score in scores.items()
    ]


def _validated(layout: RunLayout) -> dict[int, float]:
    content = _read_validation(layout)
    return {int(trial): entry["total_reward_ma"] for trial, entry in content.items()}


def _read_validation(layout: RunLayout) -> dict[str, Any]:
    path = layout.validation_path()
    return read_json(layout.predir, path) if path.exists() else {}
