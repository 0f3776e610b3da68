"""The ancestor of every error that ends a command with one clear line."""

from __future__ import annotations


class LabError(Exception):
    """An error whose message says what is wrong and how to fix it.

    A command prints it as one line without a traceback and ends with `exit_code`: 2 for bad input,
    1 for work that was begun and failed.
    """

    exit_code = 2
