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
