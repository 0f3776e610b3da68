"""The error of the env package."""

from slm_lab.error import LabError


class EnvError(LabError, ValueError):
    """An env that cannot be made or stepped; the message names the spec key and the fix."""
