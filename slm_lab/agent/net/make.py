"""NetSpec -> a net with the asked heads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from slm_lab.agent.net.arc import TorchArcNet
from slm_lab.agent.net.bidirectional import BidirectionalNet
from slm_lab.agent.net.conv import ConvNet, DuelingConvNet
from slm_lab.agent.net.mlp import DuelingMLPNet, MLPNet
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.spec import (
    ConvNetSpec,
    DuelingConvNetSpec,
    DuelingMLPNetSpec,
    MLPNetSpec,
    NetSpec,
    RecurrentNetSpec,
    TorchArcNetSpec,
)


def make_net(
    spec: NetSpec,
    obs_shape: tuple[int, ...],
    out_dims: Sequence[int],
    log_std_dim: int | None = None,
    memory_at: int = 0,
) -> nn.Module:
    """`memory_at` is for recurrent nets that share rows: where this one's memory begins."""
    match spec:
        case MLPNetSpec():
            return MLPNet(spec, obs_shape, out_dims, log_std_dim)
        case DuelingMLPNetSpec():
            return DuelingMLPNet(spec, obs_shape, out_dims)
        case ConvNetSpec():
            return ConvNet(spec, obs_shape, out_dims, log_std_dim)
        case DuelingConvNetSpec():
            return DuelingConvNet(spec, obs_shape, out_dims)
        case RecurrentNetSpec(bidirectional=True):
            return BidirectionalNet(spec, obs_shape, out_dims, log_std_dim, memory_at)
        case RecurrentNetSpec():
            return RecurrentNet(spec, obs_shape, out_dims, log_std_dim, memory_at)
        case TorchArcNetSpec():
            return TorchArcNet(spec, obs_shape, out_dims, log_std_dim)
