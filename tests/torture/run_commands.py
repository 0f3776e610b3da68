"""Every command that reads or writes a run folder, to be run on one that was tampered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.torture.attack import Outcome, Result, worst
from tests.torture.turns import search_in_turns
from tests.torture.victim import Ended, run_isolated, slm_lab
from tests.torture.warm import quick

COMMAND_SECONDS = 60.0
DATA = Path("data")
SHARE = Path("share")
RUN, QUIET = ("run", "tiny.json", "tiny"), ("--log-level", "ERROR")
HERE = {"Host": "localhost:8050"}


def commands_on(run: Path, other: Path) -> dict[str, Callable[[], None]]:
    """Bodies for a victim, by name; `other` is a run that nobody touched, to compare with.

    `retro` draws the graphs of a run; to train what is left of it, and draw them again, says no
    more.
    """
    return {
        "list": slm_lab("list", "--local", "-d", DATA),
        "plot-list": slm_lab("plot-list", "-d", DATA),
        "page": open_page,
        "report": slm_lab("report", run, "-o", "report.html"),
        "plot": slm_lab("plot", "-f", run, "-o", "plots"),
        "compare": slm_lab("compare", run, other, "-o", "plots"),
        "retro": slm_lab("retro", run),
        "enjoy": slm_lab("enjoy", run, "--episodes", "1"),
        "video": slm_lab("enjoy", run, "--episodes", "1", "--video"),
        "eval": slm_lab("eval", run, "--episodes", "2"),
        "export": slm_lab("export", run, "--format", "torchscript"),
        "resume": quick(slm_lab(*RUN, f"train@{run}", *QUIET)),
        "resume search": search_in_turns(quick(slm_lab(*RUN, f"search@{run}", *QUIET))),
        "push": slm_lab("push", run, "--repo", f"file:{SHARE}"),
        "pull": push_and_pull(run),
    }


def open_page() -> None:
    """Ask for the page and its layout, which looks at every run of the data folder."""
    from slm_lab.dashboard.server import make_app

    client = make_app(DATA).test_client()
    for path in ("/", "/_dash-layout"):
        status = client.get(path, headers=HERE).status_code
        if status != 200:
            raise RuntimeError(f"{path} answered {status}")


def push_and_pull(run: Path) -> Callable[[], None]:
    def command() -> None:
        try:
            slm_lab("push", run, "--repo", f"file:{SHARE}", "--force")()
        except SystemExit as exit_:
            if exit_.code:
                raise
        slm_lab("pull", run.name, "--repo", f"file:{SHARE}", "-d", "pulled")()

    return command


def run_commands(names: list[str], run: Path, other: Path, scratch: Path) -> list[Result]:
    """Run commands one after the other, each in a process of its own."""
    (scratch / SHARE).mkdir(exist_ok=True)
    results = []
    for name in names:
        ended = run_command(name, run, other, scratch)
        found = ended.result()
        results.append(Result(found.outcome, f"{name}: {found.detail}"))
    return results


def run_command(name: str, run: Path, other: Path, scratch: Path) -> Ended:
    return run_isolated(commands_on(run, other)[name], scratch, COMMAND_SECONDS)


def summed(results: list[Result]) -> Result:
    """Bad if one of the commands was; refused if one of them refused."""
    found = worst(results)
    return found if found.outcome is not Outcome.OK else Result(Outcome.OK)


COMMANDS = tuple(commands_on(Path(), Path()))  # their names
