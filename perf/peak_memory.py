"""Peak memory of this process, for scripts that run as processes of their own."""

import resource
from pathlib import Path


def peak_mb() -> float:
    """Peak in MB, from Linux's VmHWM where there is one: `ru_maxrss` includes the parent's peak."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(fields["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
