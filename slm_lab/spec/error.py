"""Errors of specs: every problem at once, each with its key and its fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from slm_lab.error import LabError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the dotted key (or flag, or file) and the fix."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(LabError):
    """A spec that cannot be run, with all its problems. `source` says where it was read."""

    def __init__(self, problems: Iterable[Problem], source: str = "spec") -> None:
        self.problems = list(problems)
        self.source = source
        super().__init__(self.problems, source)  # args rebuild the error across processes

    def __str__(self) -> str:
        count = len(self.problems)
        title = f"{count} problem{'' if count == 1 else 's'} in {self.source}"
        return "\n".join([title, *(f"  {problem}" for problem in self.problems)])


class SpecWarning(UserWarning):
    """Warning about a spec that runs, although part of it has another meaning than it seems."""


def nearest(word: str, options: Iterable[str], count: int = 3) -> list[str]:
    """Find the options closest to `word`, best first, ignoring case; none when nothing is close."""
    by_lower: dict[str, str] = {}
    for option in options:
        by_lower.setdefault(option.lower(), option)
    close = difflib.get_close_matches(word.lower(), by_lower, n=count, cutoff=0.6)
    return [by_lower[lower] for lower in close]


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Write the last sentence of an error: the nearest option, or all when none is near."""
    options = sorted(set(options))
    close = nearest(word, options, count=1)
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"Valid: {', '.join(options)}." if options else ""
