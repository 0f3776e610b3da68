"""The one error this room raises at its users."""


class EnvError(ValueError):
    """An env cannot be made or driven as asked: the message names the spec key and the fix."""
