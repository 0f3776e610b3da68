"""Exit codes, options and text output that several commands share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer import Argument, Option

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
DATA = Path("data")
Data = Annotated[
    Path, Option("--data", "-d", metavar="DIR", help="Folder that holds the run folders.")
]
RUN_FOLDER = "a path, a name in --data, or `latest`"
RunFolder = Annotated[str, Argument(metavar="FOLDER", help=f"Run folder: {RUN_FOLDER}.")]
RunFolders = Annotated[
    list[str], Argument(metavar="FOLDER", help=f"Run folders, each {RUN_FOLDER}.")
]
# Earlier spellings, which scripts and documents still have; `--help` does not list them.
TODAY = {"--data-folder": "--data", "--data-dir": "--data", "--out": "--output"}


class Command(typer.core.TyperCommand):
    """A command that also takes the earlier spellings of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = (word.partition("=") for word in args)
        words = ["".join((TODAY.get(name, name), *value)) for name, *value in pairs]
        return super().parse_args(ctx, words)


def printable(text: str) -> str:
    """Remove escape sequences, which a run folder from elsewhere could send to a terminal.

    Line breaks and tabs stay.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    *,
    fold: Collection[str] = (),
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print a table: a rich one on a terminal, plain columns into a pipe.

    Columns whose head is in `right` are aligned to the right. On a terminal those in `fold` may
    take several lines, and a cell with one of these texts has its style.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print_columns(head, rows, right)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in head:
        shape: Any = {"justify": "right" if name in right else "left"}
        shape |= {"overflow": "fold" if name in fold else "ellipsis", "no_wrap": name not in fold}
        table.add_column(name.lower(), **shape)
    for row in rows:
        table.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in row))
    console.print(table)


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
