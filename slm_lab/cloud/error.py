"""What keeps a run from being sent to a cloud."""

from slm_lab.error import LabError


class CloudError(LabError):
    """Nothing was submitted; the text says why, and which commands fix it."""
