"""Build the network that a NetSpec describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from slm_lab.spec.net import NETS

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec


def make_net(
    spec: NetSpec,
    obs_shape: tuple[int, ...],
    out_dims: Sequence[int],
    log_std_dim: int | None = None,
    memory_at: int = 0,
) -> nn.Module:
    """The module of a net with one head per entry of `out_dims`.

    Recurrent nets may share rows: `memory_at` is where the memory of this one begins.
    """
    build = NETS[spec.type].load()
    shared = {} if spec.sequence_length is None else {"memory_at": memory_at}
    net: nn.Module = build(spec, obs_shape, out_dims, log_std_dim, **shared)
    return net
