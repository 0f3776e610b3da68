"""Errors of sharing; each message names the fix."""

from __future__ import annotations

from typing import Any


class RemoteError(ValueError):
    """Sharing failed: the message names the request, the reason and the fix."""


class NotAllowed(RemoteError):
    """The remote refuses access: trying again will not help."""


class UploadFailed(RuntimeError):
    """A run ended well but could not be uploaded; `metrics` is its result."""

    def __init__(self, text: str, metrics: Any) -> None:
        self.metrics = metrics
        super().__init__(text)
