"""Where nets live."""

from __future__ import annotations

import torch
from loguru import logger


def resolve_device(gpu: bool | None, index: int = 0) -> torch.device:
    """`gpu` of a net spec: null or auto takes CUDA when there is one, false the CPU.

    `index` spreads sessions over the cards of a machine.
    """
    if gpu is False:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", index % torch.cuda.device_count())
    if gpu:
        logger.warning("agent.net.gpu: true, but torch finds no CUDA device. Training on the CPU.")
    return torch.device("cpu")
