"""The one error this room raises at its users."""

from slm_lab.error import LabError


class EnvError(LabError, ValueError):
    """An env cannot be made or driven as asked: the message names the spec key and the fix."""
