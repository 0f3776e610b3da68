"""`analyze(folder)`: redo the metrics, tables and graphs of a run from its files."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from slm_lab.analysis.trial import TrialMetrics, analyze_trial
from slm_lab.error import LabError
from slm_lab.runs.files import check_no_links
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked
from slm_lab.search.run import redo_tables
from slm_lab.spec.run_folder import RunFolderError, spec_files


def analyze(folder: str | Path, *, log_extra: bool = False) -> list[TrialMetrics]:
    """Redo the metrics, tables and graphs of a run folder, ours or the original SLM Lab's.

    Returns one entry per trial that has results. A folder that a run works on is refused.
    """
    predir = Path(folder)
    name, _ = spec_files(predir)
    check_no_links(predir)
    layout = RunLayout(predir, name)
    trials = layout.trials()
    if not trials:
        expected = layout.session_csv(0, 0, "train").relative_to(predir)
        raise RunFolderError(f"{predir}: no session table in it, expected files such as {expected}")
    is_search = layout.journal_path().exists() or layout.trial_data_dict().exists()
    is_ours = layout.run_lock().exists()
    lock = locked(layout.run_lock(), f"run folder {predir}", folder=predir)
    with lock if is_ours else nullcontext():
        try:
            metrics = [
                analyze_trial(layout, trial, log_extra=log_extra, html=not is_search)
                for trial in trials
            ]
            if is_search:
                redo_tables(layout)
        except LabError:
            raise
        except (KeyError, ValueError) as error:
            raise RunFolderError(f"{predir}: its files cannot be analysed ({error!r})") from None
        except OSError as error:
            raise RunFolderError(f"{error.filename or predir}: {error.strerror}") from None
    return metrics
