"""Measure what early stopping saves: a search with ASHA beside the same trials without it.

    python perf/search_early_stopping.py                      PPO on CartPole, 16 trials
    python perf/search_early_stopping.py -s meta.max_trial=4  any -s of the command line

The first search draws the trials. The second has no scheduler and resumes a search that was
interrupted after the same trials had been drawn and before any had begun. Values and seeds are the
same, so its curves begin with those of the first.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slm_lab.analysis.experiment import SearchMetrics
from slm_lab.api.run import search
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import save_spec
from slm_lab.runs.search_journal import Journal
from slm_lab.spec import Spec, load_spec
from slm_lab.training.executors.local import available_cores
from slm_lab.training.options import RunOptions

SPEC_FILE, SPEC_NAME = "benchmark/ppo/ppo_cartpole_search.json", "ppo_cartpole_search"


@dataclass(frozen=True, slots=True)
class Outcome:
    metrics: SearchMetrics
    minutes: float

    def line(self, label: str) -> str:
        found, best = self.metrics, self.metrics.best
        score = "none" if best is None else f"trial {best.trial}, search score {best.score:.2f}"
        return (
            f"{label:24}{len(found.trials):3} trials, {found.count('stopped'):3} stopped early, "
            f"{found.frames:>12,} frames, {self.minutes:6.1f} min, best: {score}"
        )


def timed_search(spec: Spec, options: RunOptions, resume: str = "") -> Outcome:
    began = time.monotonic()
    metrics = search(spec, options, resume=resume)
    return Outcome(metrics, (time.monotonic() - began) / 60)


def same_trials(first: SearchMetrics, spec: Spec, options: RunOptions) -> RunLayout:
    """Folder of a search that has drawn these trials and not begun any."""
    timestamp = datetime.now().strftime("%Y_%m_%d_%H%M%S")
    layout = RunLayout.create(spec.name, timestamp, options.data_dir)
    save_spec(spec, layout.spec_path(), layout, -1, timestamp, options.cuda_offset)
    journal = Journal(layout.journal_path())
    for record in Journal(RunLayout(first.predir, spec.name).journal_path()).records.values():
        journal.start(record.trial, record.point, record.values)
    return layout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-s", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sets = [*arguments.sets, f"meta.random_seed={arguments.seed}"]
    spec = load_spec(SPEC_FILE, SPEC_NAME, sets)
    options = RunOptions(data_dir=arguments.data_dir, log_level="WARNING", keep=0)

    stopping = timed_search(spec, options)
    patient = spec.with_values({"meta.search_scheduler": None})
    layout = same_trials(stopping.metrics, patient, options)
    whole = timed_search(patient, options, resume=str(layout.predir))

    print(f"{spec.name}, seed {arguments.seed}, {available_cores()} cores")
    print(stopping.line("with early stopping"))
    print(whole.line("without"))
    frames = whole.metrics.frames / stopping.metrics.frames
    print(f"{'saved':24}{frames:.1f} x in frames, {whole.minutes / stopping.minutes:.1f} x in time")
    print(f"folders: {Path(stopping.metrics.predir)}, {Path(layout.predir)}")


if __name__ == "__main__":
    main()
