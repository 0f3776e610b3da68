"""Build the network that a NetSpec describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from slm_lab.spec.net import NETS

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec


def make_net(
    spec: NetSpec,
    obs_shape: tuple[int, ...],
    out_dims: tuple[int, ...],
    log_std_dim: int | None = None,
) -> nn.Module:
    """The module of a net with one head per entry of `out_dims`."""
    net: nn.Module = NETS[spec.type].load()(spec, obs_shape, out_dims, log_std_dim)
    return net
