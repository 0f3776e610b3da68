"""Error of submitting a run to a cloud."""


class CloudError(ValueError):
    """No run was submitted; the message has the reason and commands that fix it."""
