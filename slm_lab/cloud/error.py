"""Error of submitting a run to a cloud."""

from slm_lab.error import LabError


class CloudError(LabError):
    """No run was submitted; the message has the reason and commands that fix it."""
