"""The ancestor of every error that ends a command with one clear line."""

from __future__ import annotations


class LabError(Exception):
    """An error whose message says what is wrong and how to fix it.

    A command prints it as one line without a traceback and ends with `exit_code`: 2 for bad input,
    1 for work that was begun and failed.
    """

    exit_code = 2


class MissingTorch(LabError):
    """PyTorch is not installed, as in an install that is for looking and sharing alone."""

    def __init__(self) -> None:
        super().__init__(
            "PyTorch is not installed here, and this needs it: pip install torch (`list`, `pull`, "
            "`plot`, `run-remote` and their kin do without)."
        )
