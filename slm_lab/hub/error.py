"""What can go wrong on the way to a remote and back, told with the way out."""

from __future__ import annotations

from typing import Any

from slm_lab.error import LabError


class RemoteError(LabError):
    """Sharing did not work: the message names what was asked, what happened and the fix."""


class NotAllowed(RemoteError):
    """The remote is there, and does not let us in: waiting and trying again will not help."""


class UploadFailed(LabError):
    """A run ended well but could not be uploaded; `metrics` are what it would have returned."""

    exit_code = 1

    def __init__(self, text: str, metrics: Any) -> None:
        self.metrics = metrics
        super().__init__(text)
