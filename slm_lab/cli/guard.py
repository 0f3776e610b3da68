"""What a command prints when it fails: one line, and where the traceback of a surprise is kept."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import typer

from slm_lab.cli.options import FAILED, printable
from slm_lab.error import LabError

DEBUG_VARIABLE = "SLM_LAB_DEBUG"


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
