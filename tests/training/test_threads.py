"""What a session changes in its process to be fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from slm_lab.training.threads import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)  # 64 MB, freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


BLAS_THREADS = """
import numpy
from threadpoolctl import threadpool_info
from slm_lab.training.threads import keep_numpy_on_one_thread
keep_numpy_on_one_thread()
print([pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"])
"""


@pytest.mark.slow  # an interpreter that imports torch
def test_numpy_computes_on_one_thread() -> None:
    # A session per core, each acting in NumPy: with threads of its own every one takes all cores.
    command = [sys.executable, "-c", BLAS_THREADS]
    threads = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert threads.strip() in ("[1]", "[]")  # none where NumPy was built on another library


@pytest.mark.slow  # two interpreters that import torch
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the setting")
def test_a_large_block_that_was_freed_is_used_again_without_new_pages():
    def faults(mode: str) -> int:
        command = [sys.executable, "-c", FAULTS, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # A page is 4 kB, or 2 MB where the kernel grants huge ones.
    assert faults("keep") < 0.2 * faults("leave")
