"""What keeps a run from being sent to a cloud."""


class CloudError(ValueError):
    """Nothing was submitted; the text says why, and which commands fix it."""
