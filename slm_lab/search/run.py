"""A search from beginning to end: the trials, then tables, graphs and a second look at the best.

Called by `run(spec, "search")`. Between lab.py, whose `run` trains the validation, and the two
rooms that meet here as they do there.
"""

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
from slm_lab.analysis.metrics import TRIAL_SCALARS, random_baseline, save_random_baseline
from slm_lab.analysis.sessions import measured_baselines
from slm_lab.analysis.trial import TrialMetrics, analyze_ended_trial
from slm_lab.hub.sync import run_synced, upload_remote
from slm_lab.runs.files import make_folder, read_json, write_or_warn
from slm_lab.runs.find import find_search, train_mode
from slm_lab.runs.layout import RunLayout, new_timestamp
from slm_lab.runs.lock import locked
from slm_lab.runs.provenance import save_spec
from slm_lab.runs.resume import check_same_experiment, resume_command
from slm_lab.runs.search_journal import Journal, TrialRecord
from slm_lab.search.plan import TRIALS_PER_DIMENSION, SearchPlan, plan_search
from slm_lab.spec import Problem, Spec, SpecError, SpecWarning, load_spec
from slm_lab.training.console import setup_logging
from slm_lab.training.executors.local import available_cores
from slm_lab.training.options import RunOptions
from slm_lab.training.seeding import draw_seed, validation_seed
from slm_lab.training.trial import stop_on_signals

VALIDATION_SESSIONS = 4  # at least
BASELINE_EPISODES, BASELINE_SECONDS = 20, 20.0
LOWEST = -1e9  # for an env in which random actions cannot be measured

Train = Callable[[Spec, str, RunOptions], TrialMetrics]


class SearchStopped(Exception):
    """A signal ended a search; `search@{predir}` goes on with it."""

    def __init__(self, by: signal.Signals, layout: RunLayout) -> None:
        self.by, self.predir = by, layout.predir
        self.resume = resume_command(layout, "search")
        super().__init__(f"stopped by {by.name}")


class SearchFailed(Exception):
    """No trial could be run; the text is the reason of the first."""


def run_search(spec: Spec, options: RunOptions, where: str, train: Train) -> SearchMetrics:
    """Search, or go on with the search in a folder: `where` is "", `latest` or its path.

    `train` runs one spec in train mode: it validates the best trials, if `options` ask for it.
    """
    _check_options(options)
    _engine()
    remote = upload_remote(options.upload_hf)
    if where:
        layout = find_search(spec.name, where, Path(options.data_dir))
        spec = _same_search(spec, layout)
    else:
        if spec.meta.random_seed is None:
            spec = spec.with_values({"meta.random_seed": draw_seed()})
    plan = plan_search(spec)
    timestamp = options.timestamp or new_timestamp()
    floor = _floor(spec, Path(options.data_dir))
    if not where:
        layout = RunLayout.create(spec.name, timestamp, root=options.data_dir)
        save_spec(spec, layout.spec_path(), layout, -1, timestamp, options.cuda_offset)
    with locked(layout.run_lock(), f"run folder {layout.predir}", folder=layout.predir):
        return run_synced(
            remote,
            layout.predir,
            lambda: _search(spec, plan, layout, options, floor, timestamp, train),
        )


def _search(
    spec: Spec,
    plan: SearchPlan,
    layout: RunLayout,
    options: RunOptions,
    floor: float,
    timestamp: str,
    train: Train,
) -> SearchMetrics:
    engine = _engine()
    _setup_logging(layout, options)
    journal = Journal(layout.journal_path(), folder=layout.predir)
    desk = _Desk(spec, layout, journal, timestamp, options)
    done = f", {len(desk.ended())} of them done" if journal.records else ""
    logger.info(f"Searching {spec.name}: {plan.max_trial} trials{done}, output in {layout.predir}")
    with stop_on_signals() as stop:
        try:
            engine.run_trials(
                spec,
                plan,
                layout,
                journal,
                options,
                floor=floor,
                listener=desk,
                should_stop=stop,
            )
        except engine.HopelessSearch as error:
            raise SearchFailed(f"{error}. See {layout.log_dir()}") from None
        except SpecError:
            if not journal.records:  # bad input, and nothing ran: a folder would look like a run
                shutil.rmtree(layout.predir, ignore_errors=True)
            raise
    if stop.signal is not None and len(desk.ended()) < plan.max_trial:
        desk.write_table()
        logger.warning(f"Search stopped early by {stop.signal.name}. Output: {layout.predir}")
        raise SearchStopped(stop.signal, layout)
    desk.finish(train)
    metrics = desk.metrics(plan)
    logger.info(metrics.summary_line())
    logger.info(f"Search done. Output: {layout.predir}")
    return metrics


def describe_search(spec: Spec, speed: float) -> str:
    """What a search would do: the space, trials per dimension, frames and time at a speed."""
    plan = plan_search(spec)
    low, high = TRIALS_PER_DIMENSION
    count = len(plan.space)
    ratio = plan.max_trial / count
    verdict = "enough" if ratio >= low else f"too few: set meta.max_trial to {low * count} or more"
    parallel = max(1, min(int(available_cores() // plan.cpu), plan.max_trial))
    lines = [f"Search of {spec.name}, {plan.sampler} sampler"]
    lines += [f"  {dim}" for dim in plan.space]
    lines.append(
        f"Trials   {plan.max_trial} over {count} dimension(s): {ratio:.1f} per dimension, "
        f"the rule is {low} to {high}: {verdict}"
    )
    lines.append(
        f"Each     {plan.max_session} session(s) of {plan.max_frame:,} frames, "
        f"{parallel} trial(s) at once ({plan.cpu:g} of {available_cores()} core(s) each)"
    )
    lines.append(f"Frames   {plan.most_frames:,} without early stopping")
    frames = plan.most_frames
    if plan.halving is not None:
        rungs = ", ".join(f"{rung:,}" for rung in plan.halving.rungs(plan.max_frame))
        frames = plan.expected_frames
        lines.append(
            f"         about {frames:,} with ASHA (rungs at {rungs}; one in "
            f"{plan.halving.reduction_factor:g} passes)"
        )
    lines.append(
        f"Time     about {_duration(frames / speed / parallel)}, at the {speed:,.0f} frames/s "
        "of one session measured now, not compiled"
    )
    return "\n".join(lines)


def _same_search(spec: Spec, layout: RunLayout) -> Spec:
    """The spec that the search was started with. The number of trials and what each may take can
    be changed on the way; anything else would make it another search."""
    saved = check_same_experiment(spec, layout, None)
    if dict(spec.search) != dict(saved.search):
        fix = f"To go on with it as it was: {resume_command(layout, 'search')}"
        problem = Problem("search", f"found another space than that of the run. {fix}")
        raise SpecError([problem], f"resuming {layout.predir}")
    meta = spec.meta
    changes = {"max_trial": meta.max_trial, "search_resources": dict(meta.search_resources)}
    return saved.with_values({f"meta.{key}": value for key, value in changes.items()})


def stop_searches(data_dir: Path) -> list[Path]:
    """End the searches that run below a data folder; see `--stop-ray`."""
    _engine()
    from slm_lab.search import processes

    return processes.stop_searches(data_dir)


def redo_tables(layout: RunLayout) -> None:
    """Write the table of a search and draw its graphs again, from what is in its folder.

    Ours has a journal; one that the original wrote has the trials' values and scores as JSON.
    """
    from slm_lab.analysis.experiment_plot import plot_experiment

    with warnings.catch_warnings(action="ignore", category=SpecWarning):
        spec = load_spec(layout.spec_path())
    if layout.journal_path().exists():
        desk = _Desk(
            spec,
            layout,
            Journal(layout.journal_path(), folder=layout.predir),
            "",
            RunOptions(mode="search"),
        )
        rows = desk.rows()
    else:
        rows = _saved_rows(read_json(layout.predir, layout.trial_data_dict()))
    plot_experiment(layout, spec, write_experiment(layout, rows))


def _saved_rows(trials: Mapping[str, Mapping[str, Any]]) -> list[TrialRow]:
    """A score that is no number counts as the lowest one, and its trial as failed."""
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


@dataclass(slots=True)
class _Desk:
    """Where the paper work of a search is done: specs, metrics and tables as trials come and go."""

    spec: Spec
    layout: RunLayout
    journal: Journal
    timestamp: str
    options: RunOptions
    validated: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout.validation_path().exists():
            content = read_json(self.layout.predir, self.layout.validation_path())
            self.validated = {
                int(trial): entry["total_reward_ma"] for trial, entry in content.items()
            }

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

    def rows(self) -> list[TrialRow]:
        return [
            TrialRow(r.trial, r.values, r.status, r.score, self.validated.get(r.trial))
            for r in self.ended()
            if r.score is not None
        ]

    def write_table(self) -> None:
        try:
            write_experiment(self.layout, self.rows())
        except OSError as error:
            self._warn(error)

    def finish(self, train: Train) -> None:
        """What is left to do when all trials have ended."""
        for record in self.ended():
            # A search was killed after the end of this trial was written down.
            if not self.layout.trial_metrics_scalar_copy(record.trial).exists():
                self.trial_ended(record)
        ranked = self.journal.ranked()
        if self.options.keep >= 0:
            for record in ranked[self.options.keep :] + self._unfit():
                self._prune(record.trial)
        self._draw()
        self._write_best()
        if self.options.validate:
            for record in ranked[: self.options.validate]:
                if record.trial not in self.validated:
                    self._validate(record, train)
            self._draw()
            self._write_best()

    def metrics(self, plan: SearchPlan) -> SearchMetrics:
        sessions = plan.max_session
        return SearchMetrics(
            trials=tuple(sorted(self.rows(), key=lambda row: (-row.score, row.trial))),
            frames=sum(record.frame for record in self.journal.records.values()) * sessions,
            most_frames=plan.most_frames,
            seconds=sum(record.seconds for record in self.journal.records.values()),
            predir=self.layout.predir,
            best_spec=path if (path := self.layout.best_spec_path()).exists() else None,
            graph_png=self.layout.experiment_graph_copy(),
            graph_html=self.layout.experiment_graph_html(),
        )

    def _unfit(self) -> list[TrialRecord]:
        return [record for record in self.ended() if record.status in ("diverged", "failed")]

    def _draw(self) -> None:
        # matplotlib, only where something is drawn
        from slm_lab.analysis.experiment_plot import plot_experiment

        try:
            plot_experiment(self.layout, self.spec, write_experiment(self.layout, self.rows()))
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        """A full disk costs tables and graphs, never the search: the journal has it all."""
        predir = self.layout.predir
        fix = f"Once there is space: slm-lab retro {predir}"
        logger.warning(f"{error.filename or predir}: not written ({error.strerror}). {fix}")

    def _best(self) -> TrialRecord | None:
        """By its validated score where there is one: that is what it does when it is run again."""
        ranked = self.journal.ranked()
        validated = [record for record in ranked if record.trial in self.validated]
        if validated:
            return max(validated, key=lambda record: self.validated[record.trial])
        return ranked[0] if ranked else None

    def _write_best(self) -> None:
        best = self._best()
        if best is not None:
            # Without the search's seed: whoever runs it again gets a fresh one.
            tree = self.spec.with_values({**best.values, "meta.random_seed": None}).to_dict()
            tree = {"name": self.spec.name, **tree}
            text = json.dumps(tree, indent=2) + "\n"
            write_or_warn(self.layout.predir, self.layout.best_spec_path(), text)

    def _validate(self, record: TrialRecord, train: Train) -> None:
        """Train a trial's spec again, with seeds that the search has not seen."""
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
        _setup_logging(self.layout, self.options)  # the training had the log for itself
        self.validated[record.trial] = metrics.total_reward_ma
        path = self.layout.validation_path()
        content = read_json(self.layout.predir, path) if path.exists() else {}
        content[str(record.trial)] = {
            "total_reward_ma": metrics.total_reward_ma,
            "sessions": {s: values["total_reward_ma"] for s, values in metrics.sessions.items()},
            "search_score": record.score,
            "predir": metrics.predir.relative_to(self.layout.predir).as_posix(),
        }
        write_or_warn(self.layout.predir, path, json.dumps(content, indent=2) + "\n")
        logger.info(
            f"Trial {record.trial}: search score {record.score:.2f}, validated "
            f"{metrics.total_reward_ma:.2f} over {len(metrics.sessions)} sessions"
        )

    def _prune(self, trial: int) -> None:
        """Remove what takes space and only the best need: models and checkpoints."""
        for path in (self.layout.predir / "model").glob(f"{self.layout.trial_name(trial)}_s*"):
            path.unlink()
        for path in self.layout.predir.glob(f"checkpoint/{self.layout.trial_name(trial)}_s*"):
            shutil.rmtree(path, ignore_errors=True)


def _engine() -> ModuleType:
    """The engine's module; ray and optuna are an extra, and slow to import."""
    try:
        import optuna  # noqa: F401

        from slm_lab.search import engine
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in ("ray", "optuna"):
            raise
        message = (
            f"search needs {missing}, which is not installed. "
            "Install the extra `search`: pip install 'slm-lab[search]'"
        )
        raise SpecError([Problem("MODE", message)], "the command") from None
    return engine


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
    from slm_lab.env.baseline import measure_random_policy  # gymnasium, only where it is needed

    measured = measure_random_policy(spec.env, episodes=BASELINE_EPISODES, seconds=BASELINE_SECONDS)
    if measured is None or not math.isfinite(measured.mean):
        logger.warning(
            f"env.name: random actions could not be measured in {spec.env.name}; a trial that "
            f"diverges scores {LOWEST:g}"
        )
        return LOWEST
    save_random_baseline(path, spec.env.name, measured.mean, measured.std)
    return measured.mean


def _setup_logging(layout: RunLayout, options: RunOptions) -> None:
    level = "DEBUG" if options.log_level.upper() in ("TRACE", "DEBUG") else "INFO"
    path, folder = layout.log_path(), layout.predir
    setup_logging(path, level, stderr_level=options.log_level, folder=folder)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
