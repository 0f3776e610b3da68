"""`slm-lab`: the command line, its settings in `.env`, and what it prints when a command fails.

Importing this module is cheap, because each command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from slm_lab.cli import benchmark, checks, graphs, replay, runs, specs, train
from slm_lab.cli.options import FAILED, Command, printable
from slm_lab.error import LabError, MissingTorch

app = typer.Typer(
    help="SLM Lab: deep reinforcement learning from one spec file and one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of `slm-lab --help`.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train": {
        "run": train.run,
        "specs": specs.specs,
        "run-remote": train.run_remote,
    },
    "Look": {
        "list": runs.list_runs,
        "enjoy": replay.enjoy,
        "eval": replay.evaluate,
        "plot": graphs.plot,
        "plot-list": graphs.plot_list,
        "compare": graphs.compare,
        "dashboard": graphs.dashboard,
        "retro": graphs.retro,
    },
    "Share": {
        "report": graphs.report,
        "export": replay.export,
        "pull": runs.pull,
        "push": runs.push,
        "graduate": runs.graduate,
    },
    "Develop": {
        "spec": specs.spec,
        "doctor": checks.doctor,
    },
}
GROUPS = {"env": checks.app, "benchmark": benchmark.app}
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=Command, rich_help_panel=panel)(command)
for name, group in GROUPS.items():
    for info in group.registered_commands:
        info.cls = Command
    app.add_typer(group, name=name, rich_help_panel="Develop")
NAMES = {*GROUPS, *(name for commands in COMMANDS.values() for name in commands)}
SPEC_SUFFIXES = (".json", ".yaml", ".yml")

DEBUG_VARIABLE = "SLM_LAB_DEBUG"
MAX_DOTENV_BYTES = 100_000
# Only these are taken from `.env`. Other variables decide which programs a process starts and
# which code they load (GIT_SSH_COMMAND, IMAGEIO_FFMPEG_EXE, CXX, LD_PRELOAD, PYTHONPATH).
_SETTINGS = """
HF_REPO HF_TOKEN HF_ENDPOINT UPLOAD_HF RENDER LOG_LEVEL LOG_EXTRA OPTIMIZE_PERF CUDA_OFFSET PROFILE
PROF_SKIP PROF_ACTIVE KEEP_TRIALS RAY_ADDRESS WANDB_MODE WANDB_PROJECT WANDB_API_KEY
DSTACK_SERVER_URL
"""
SETTINGS = frozenset(_SETTINGS.split())


class UnknownCommand(LabError):
    """A first word that is neither a command nor a spec."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"slm-lab {importlib.metadata.version('slm-lab')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point: also takes the older form `slm-lab SPEC_FILE SPEC_NAME MODE`."""
    warnings.showwarning = _show_warning
    arguments = sys.argv[1:]
    if not {"--help", "-h"} & {*arguments}:  # which need not wait for the spec package's import
        from slm_lab.spec.error import SpecWarning

        warnings.simplefilter("always", SpecWarning)
    with guarded(arguments):
        arguments = _with_command(arguments)
        if note := load_dotenv(Path(".env"), os.environ):
            typer.echo(note, err=True)
        app(arguments, prog_name="slm-lab")


def _with_command(arguments: list[str]) -> list[str]:
    """Put `run` before a spec and before options; another first word must be a command."""
    first = arguments[0] if arguments else "--help"
    if first in {*NAMES, "--help", "-h", "--version"}:
        return arguments
    if first.startswith("-") or first.endswith(SPEC_SUFFIXES) or "/" in first:
        return ["run", *arguments]
    from slm_lab.spec.error import nearest
    from slm_lab.spec.load import packaged_specs

    shipped = {name for _, name in packaged_specs()}
    if first in shipped or Path(first).exists():
        return ["run", *arguments]
    typed = {name: name for name in (*NAMES, *shipped)}
    typed |= {mode: f"run SPEC_NAME {mode}" for mode in ("train", "dev", "search")}
    close = nearest(first, [first] if first in typed else sorted(typed))
    hint = " or ".join(f"`slm-lab {typed[name]}`" for name in close)
    hint = f" Did you mean {hint}?" if hint else ""
    raise UnknownCommand(f"there is no `{first}`.{hint} `slm-lab --help` lists the commands.")


def retro_main() -> None:
    """Entry point of `slm-retro DIR`, the older name of `slm-lab retro DIR`."""
    sys.argv[1:1] = ["retro"]
    main()


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(printable(f"{category.__name__}: {message}"), err=True)


class DotenvError(LabError):
    """A line of `.env` that cannot be read. The message never repeats it: it may be a token."""


def load_dotenv(path: Path, environment: MutableMapping[str, str]) -> str:
    """Take the settings of a file that the shell has not set.

    A file of a run folder, which may have come from anywhere, is not read; the returned message
    says so to the user.
    """
    if not path.is_file():
        return ""
    from slm_lab.spec.run_folder import run_place  # slow: only with a file

    if folder := run_place(path):
        return f"{path}: not read, because it belongs to runs ({folder})."
    try:
        if path.stat().st_size > MAX_DOTENV_BYTES:
            raise DotenvError(f"{path}: {path.stat().st_size:,} bytes are too many for settings.")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DotenvError(f"{path}: is no UTF-8 text.") from None
    except OSError as error:
        raise DotenvError(f"{path}: cannot be read ({error.strerror}).") from None
    for name, value in parse_dotenv(text, str(path)).items():
        if name in SETTINGS:
            environment.setdefault(name, value)
    return ""


def parse_dotenv(text: str, source: str = ".env") -> dict[str, str]:
    """NAME=value, one per line, as `python-dotenv` reads it; nothing is substituted or run."""
    from dotenv.parser import parse_stream

    values = {}
    for binding in parse_stream(io.StringIO(text)):
        value = binding.value or ""
        if binding.error or "\0" in value:
            statement = binding.original.string
            blank = statement[: len(statement) - len(statement.lstrip())].count("\n")
            raise DotenvError(
                f"{source}, line {binding.original.line + blank}: expected NAME=value, or quotes "
                "that close."
            )
        if binding.key is not None and binding.value is not None:
            values[binding.key] = value
    return values


@contextmanager
def guarded(arguments: Sequence[str]) -> Iterator[None]:
    """Turn an error of a command into one line on stderr and an exit code.

    The traceback of an error that is not a LabError is saved to a file. It is also printed with
    SLM_LAB_DEBUG=1 or --log-level DEBUG.
    """
    try:
        yield
    except LabError as error:
        _fail(f"{type(error).__name__}: {error}", error.exit_code)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            _fail(f"{MissingTorch.__name__}: {MissingTorch()}", MissingTorch.exit_code)
        text = f"slm-lab {' '.join(arguments)}\n{traceback.format_exc()}"
        file = _save(text)
        if file is None or _wants_traceback(arguments):
            typer.echo(printable(text.rstrip()), err=True)
        reason = " ".join(str(error).split())
        kept = "above" if file is None else f"in {file}"
        _fail(f"Unexpected {type(error).__name__}: {reason} (traceback {kept})", FAILED)


def _fail(text: str, exit_code: int) -> None:
    typer.echo(printable(text), err=True)
    sys.exit(exit_code)


def _save(text: str) -> Path | None:
    """Write a traceback to the log of the run folder, else to a file of its own.

    Returns None when neither can be written.
    """
    from slm_lab.spec.trust import state_folder
    from slm_lab.training.console import open_log_file

    if log := open_log_file():
        log.write(f"{text.rstrip()}\n")
        return log.path
    try:
        folder = state_folder() / "tracebacks"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / f"{time.strftime('%Y_%m_%d_%H%M%S')}_{os.getpid()}.log"
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except (OSError, RuntimeError):  # a full disk, or no home folder
        return None
    return file


def _wants_traceback(arguments: Sequence[str]) -> bool:
    words = " ".join(arguments).replace("=", " ").split()
    after_flag = [word for flag, word in pairwise(words) if flag == "--log-level"]
    level = after_flag[-1] if after_flag else os.environ.get("LOG_LEVEL", "")
    return bool(os.environ.get(DEBUG_VARIABLE)) or level.upper() in ("DEBUG", "TRACE")


if __name__ == "__main__":
    main()
