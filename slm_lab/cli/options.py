"""What several commands share: exit codes, and the flags that change a spec."""

from __future__ import annotations

from typing import Annotated

import typer

FAILED = 1
BAD_INPUT = 2

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Fill ${KEY}, or write a value at a dotted path. Repeatable.",
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="Let the spec of a run folder import this module, as my_package.envs. Repeatable.",
    ),
]


def printable(text: str) -> str:
    """The text without the escape sequences that a folder from elsewhere could send to a terminal.

    Line breaks and tabs stay.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
