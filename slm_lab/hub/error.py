"""Errors of sharing; each message names the fix."""

from __future__ import annotations

from typing import Any

from slm_lab.error import LabError


class RemoteError(LabError):
    """Sharing failed: the message names the request, the reason and the fix."""


class NotAllowed(RemoteError):
    """The remote refuses access: trying again will not help."""


class UploadFailed(LabError):
    """A run ended well but could not be uploaded; `metrics` is its result."""

    exit_code = 1

    def __init__(self, text: str, metrics: Any) -> None:
        self.metrics = metrics
        super().__init__(text)
