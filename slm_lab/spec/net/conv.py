"""Convolutional nets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from slm_lab.spec.block import Flag, invalid, shown
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


class _ConvKeys(NetSpec):
    conv_hid_layers: ConvLayers = Field(
        default=((32, 8, 4, 0, 1), (64, 4, 2, 0, 1), (64, 3, 1, 0, 1)),
        description="Rows of [channels, kernel, stride, padding, dilation].",
    )
    fc_hid_layers: Widths = Field(
        default=(512,), description="Width of each layer after the convolutions."
    )
    batch_norm: Flag = Field(
        default=False, description="BatchNorm after every convolution but the first."
    )


class ConvNetSpec(_ConvKeys):
    """Convolutions, then fully connected layers."""

    type: Literal["ConvNet"] = Field(description="Net type.")


class DuelingConvNetSpec(_ConvKeys):
    """Convolutions with value and advantage heads."""

    type: Literal["DuelingConvNet"] = Field(description="Net type.")


RECORDS = (
    NetInfo(
        name="ConvNet",
        spec_class=ConvNetSpec,
        implementation="slm_lab.agent.net.conv:ConvNet",
        order=30,
    ),
    NetInfo(
        name="DuelingConvNet",
        spec_class=DuelingConvNetSpec,
        implementation="slm_lab.agent.net.conv:DuelingConvNet",
        order=40,
    ),
)
