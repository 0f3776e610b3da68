"""Exit codes, options and text output that several commands share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

FAILED = 1
BAD_INPUT = 2

Sets = Annotated[
    list[str] | None,
    Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Fill ${KEY}, or write a value at a dotted path. Repeatable.",
    ),
]
Trust = Annotated[
    list[str] | None,
    Option(
        "--trust",
        metavar="MODULE",
        help="Let the spec of a run folder import this module, as my_package.envs. Repeatable.",
    ),
]


LogLevel = Annotated[str, Option(envvar="LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")]
DataFolder = Annotated[
    Path, Option("--data-folder", "-d", help="Folder that holds the run folders.")
]


def printable(text: str) -> str:
    """Remove escape sequences, which a run folder from elsewhere could send to a terminal.

    Line breaks and tabs stay.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def print_columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> None:
    """Print a table as plain text; columns whose head is in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())
