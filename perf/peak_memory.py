"""The most memory that this process has held. For scripts that run as processes of their own."""

import resource
from pathlib import Path


def peak_mb() -> float:
    """`ru_maxrss` will not do where Linux tells more: it begins with the peak of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(fields["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
