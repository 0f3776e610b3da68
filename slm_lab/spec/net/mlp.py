"""Nets of fully connected layers."""

from __future__ import annotations

from slm_lab.spec.block import Flag, spec_key
from slm_lab.spec.net.base import NetInfo, NetSpec, Widths


class MLPNetSpec(NetSpec):
    """Fully connected layers."""

    hid_layers: Widths = spec_key((64, 64), "Width of each hidden layer.")
    layer_norm: Flag = spec_key(False, "LayerNorm before each activation.")
    batch_norm: Flag = spec_key(False, "BatchNorm before each activation.")


class DuelingMLPNetSpec(MLPNetSpec):
    """Fully connected layers with value and advantage heads."""


RECORDS = (
    NetInfo("MLPNet", MLPNetSpec, "slm_lab.agent.net.mlp:MLPNet", order=10),
    NetInfo("DuelingMLPNet", DuelingMLPNetSpec, "slm_lab.agent.net.mlp:DuelingMLPNet", order=20),
)
