"""Nets of fully connected layers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slm_lab.spec.block import Flag
from slm_lab.spec.net.base import NetInfo, NetSpec, Widths


class _MLPKeys(NetSpec):
    hid_layers: Widths = Field(default=(64, 64), description="Width of each hidden layer.")
    layer_norm: Flag = Field(default=False, description="LayerNorm before each activation.")
    batch_norm: Flag = Field(default=False, description="BatchNorm before each activation.")


class MLPNetSpec(_MLPKeys):
    """Fully connected layers."""

    type: Literal["MLPNet"] = Field(description="Net type.")


class DuelingMLPNetSpec(_MLPKeys):
    """Fully connected layers with value and advantage heads."""

    type: Literal["DuelingMLPNet"] = Field(description="Net type.")


RECORDS = (
    NetInfo(
        name="MLPNet",
        spec_class=MLPNetSpec,
        implementation="slm_lab.agent.net.mlp:MLPNet",
        order=10,
    ),
    NetInfo(
        name="DuelingMLPNet",
        spec_class=DuelingMLPNetSpec,
        implementation="slm_lab.agent.net.mlp:DuelingMLPNet",
        order=20,
    ),
)
