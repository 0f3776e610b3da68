"""Limit the threads and the memory traffic of a session."""

from __future__ import annotations

import ctypes
import sys

import torch
from threadpoolctl import ThreadpoolController

from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions


def set_threads(spec: Spec, options: RunOptions) -> None:
    """Use one torch thread per session unless the spec says otherwise: more slow small nets down.
    With `--no-optimize-perf` torch keeps its own settings."""
    if not options.optimize_perf:
        return
    torch.set_num_threads(spec.meta.threads or 1)
    keep_numpy_on_one_thread()
    keep_freed_memory()
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True


def keep_numpy_on_one_thread() -> None:
    """Limit NumPy to one thread: acting in a few envs needs only small matrix products, for which
    its OpenBLAS uses every core, with threads that spin. Two sessions on two cores lost 40 % of
    their time.
    """
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)


def keep_freed_memory() -> None:
    """Reuse the large blocks that torch frees instead of returning them to the kernel.

    glibc maps every large block anew, and zeroing its pages took a fifth of a learning step on
    images. The process keeps its peak memory; results are the same.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mmap_threshold, trim_threshold = -3, -1
        mallopt(mmap_threshold, 2**30)
        mallopt(trim_threshold, 2**31 - 1)
