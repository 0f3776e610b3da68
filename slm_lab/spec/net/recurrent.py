"""Recurrent nets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from slm_lab.spec.block import Count, Flag, SmallCount, spec_key
from slm_lab.spec.net.base import NetInfo, NetSpec, Widths


def _cell_type(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class RecurrentNetSpec(NetSpec):
    """Fully connected layers, then a recurrent cell that remembers the episode so far."""

    cell_type: Annotated[Literal["RNN", "LSTM", "GRU"], BeforeValidator(_cell_type)] = spec_key(
        "GRU", "Recurrent cell."
    )
    fc_hid_layers: Widths = spec_key((), "Width of each layer before the cell.")
    rnn_hidden_size: SmallCount = spec_key(64, "Width of the cell.")
    rnn_num_layers: SmallCount = spec_key(1, "Stacked cells.")
    bidirectional: Flag = spec_key(False, "Read the last seq_len observations both ways instead.")
    seq_len: Count = spec_key(
        16, "Steps of a training sequence: how far back the gradient reaches."
    )

    @property
    def sequence_length(self) -> int | None:
        return self.seq_len


RECORDS = (
    NetInfo(
        "RecurrentNet",
        RecurrentNetSpec,
        "slm_lab.agent.net.recurrent:make_recurrent_net",
        order=50,
    ),
)
