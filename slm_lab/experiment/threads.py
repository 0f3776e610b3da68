"""How much of the machine one session may use."""

from __future__ import annotations

import torch

from slm_lab.experiment.options import RunOptions
from slm_lab.spec import Spec


def set_threads(spec: Spec, options: RunOptions) -> None:
    """One torch thread per session unless the spec says otherwise: small nets lose with more.

    With `--no-optimize-perf` torch keeps its own settings.
    """
    if not options.optimize_perf:
        return
    torch.set_num_threads(spec.meta.threads or 1)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
