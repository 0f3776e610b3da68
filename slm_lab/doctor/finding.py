"""One finding of `slm-lab doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. `warn`: an optional feature does not work. `fail`: training does not work."""

    name: str
    status: Status
    found: str
    fix: str = ""
