"""Recurrent nets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from slm_lab.spec.block import Count, Flag, SmallCount
from slm_lab.spec.net.base import NetInfo, NetSpec, Widths


def _cell_type(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class RecurrentNetSpec(NetSpec):
    """Fully connected layers, then a recurrent cell that remembers the episode so far."""

    type: Literal["RecurrentNet"] = Field(description="Net type.")
    cell_type: Annotated[Literal["RNN", "LSTM", "GRU"], BeforeValidator(_cell_type)] = Field(
        default="GRU", description="Recurrent cell."
    )
    fc_hid_layers: Widths = Field(default=(), description="Width of each layer before the cell.")
    rnn_hidden_size: SmallCount = Field(default=64, description="Width of the cell.")
    rnn_num_layers: SmallCount = Field(default=1, description="Stacked cells.")
    bidirectional: Flag = Field(
        default=False, description="Read the last seq_len observations both ways instead."
    )
    seq_len: Count = Field(
        default=16, description="Steps of a training sequence: how far back the gradient reaches."
    )

    @property
    def sequence_length(self) -> int | None:
        return self.seq_len


RECORDS = (
    NetInfo(
        name="RecurrentNet",
        spec_class=RecurrentNetSpec,
        implementation="slm_lab.agent.net.bidirectional:make_recurrent_net",
        order=50,
    ),
)
