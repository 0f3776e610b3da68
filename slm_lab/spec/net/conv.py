"""Convolutional nets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from slm_lab.spec.block import Flag, invalid, shown, spec_key
from slm_lab.spec.net.base import NetInfo, NetSpec, Widths


def _conv_layers(value: object) -> object:
    """Read rows of [channels, kernel, stride, padding, dilation], the last three optional."""
    if not isinstance(value, list | tuple) or not value:
        raise invalid(f"found {shown(value)}; expected a list of rows such as [32, 8, 4, 0, 1]")
    return tuple(_conv_layer(row, index) for index, row in enumerate(value))


def _conv_layer(row: object, index: int) -> tuple[Any, ...]:
    if not isinstance(row, list | tuple) or not 2 <= len(row) <= 5:
        expected = "[channels, kernel, stride, padding, dilation]"
        raise invalid(f"found {shown(row)}; expected {expected}", key=str(index))
    cells = [*row, *(1, 0, 1)[len(row) - 2 :]]
    pairs = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    for position, cell in enumerate(pairs):
        sizes = cell if isinstance(cell, tuple) and position > 0 else (cell,)
        least = 0 if position == 3 else 1
        whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
        if not whole or len(sizes) > 2 or min(sizes) < least:
            raise invalid(
                f"found {shown(cell)}; expected a whole number of at least {least}, or two",
                key=f"{index}.{position}",
            )
    return tuple(pairs)


ConvLayers = Annotated[tuple[tuple[int | tuple[int, int], ...], ...], BeforeValidator(_conv_layers)]


class ConvNetSpec(NetSpec):
    """Convolutions, then fully connected layers."""

    conv_hid_layers: ConvLayers = spec_key(
        ((32, 8, 4, 0, 1), (64, 4, 2, 0, 1), (64, 3, 1, 0, 1)),
        "Rows of [channels, kernel, stride, padding, dilation].",
    )
    fc_hid_layers: Widths = spec_key((512,), "Width of each layer after the convolutions.")
    batch_norm: Flag = spec_key(False, "BatchNorm after every convolution but the first.")


class DuelingConvNetSpec(ConvNetSpec):
    """Convolutions with value and advantage heads."""


RECORDS = (
    NetInfo("ConvNet", ConvNetSpec, "slm_lab.agent.net.conv:ConvNet", order=30),
    NetInfo(
        "DuelingConvNet", DuelingConvNetSpec, "slm_lab.agent.net.conv:DuelingConvNet", order=40
    ),
)
