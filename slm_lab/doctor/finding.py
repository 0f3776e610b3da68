"""One line of what the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`warn`: something does not work that you may not need. `fail`: training does not."""

    name: str
    status: Status
    found: str
    fix: str = ""
