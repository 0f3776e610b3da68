"""Value losses by their `torch.nn` name, as `loss_spec` gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from slm_lab.spec import LossSpec

_BY_LOWER_NAME = {name.lower(): getattr(nn, name) for name in dir(nn) if name.endswith("Loss")}


def make_loss(spec: LossSpec) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the loss (prediction, target) -> scalar."""
    loss: Callable[[Tensor, Tensor], Tensor] = _BY_LOWER_NAME[spec.name.lower()](**spec.kwargs)
    return loss


def make_row_loss(spec: LossSpec) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the loss (prediction, target) -> one number per row, for rows with weights."""
    options = {**spec.kwargs, "reduction": "none"}
    loss: Callable[[Tensor, Tensor], Tensor] = _BY_LOWER_NAME[spec.name.lower()](**options)
    return loss
