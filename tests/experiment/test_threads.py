"""What a session changes in its process to be fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from slm_lab.experiment.threads import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)  # 64 MB, freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow  # two interpreters that import torch
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the setting")
def test_a_large_block_that_was_freed_is_used_again_without_new_pages():
    def faults(mode: str) -> int:
        command = [sys.executable, "-c", FAULTS, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # A page is 4 kB, or 2 MB where the kernel grants huge ones.
    assert faults("keep") < 0.2 * faults("leave")
