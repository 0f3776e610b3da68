"""RecurrentNet: fully connected layers, then recurrent cells.

The cells are written out over time instead of calling torch's kernels: an episode may end inside a
sequence, where a kernel cannot be told to start anew, and what is written out compiles into the
learning step. Parameters keep the names and layout of `nn.GRU`, `nn.LSTM` and `nn.RNN`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm_lab.agent.net.init import init_weights, make_activation
from slm_lab.agent.net.mlp import apply_tails, make_tails
from slm_lab.spec import Problem, RecurrentNetSpec, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec

Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, ...]]
"""(gates from the input, state, weight_hh, bias_hh) -> next state; its first part is h."""


class RecurrentNet(nn.Module):
    """Rows -> one output per head, each from the last cell's hidden state.

    A row is an observation with its past: [obs | restart | memory], where `memory` is the state of
    all cells before the observation was read (zeros at the start of an episode) and `restart` tells
    that the row does not follow the one before it in a sequence. A row stands on its own: single
    rows [N, W] are read from their memory. Of consecutive rows [T, B, W] only the first of every
    `seq_len` is, and those after a restart; between them the state flows on, and with it the
    gradient (truncated backpropagation through time).

    Where two nets share rows, `memory_at` is where in the memory this net's part begins.
    """

    def __init__(
        self,
        spec: RecurrentNetSpec,
        obs_shape: tuple[int, ...],
        out_dims: Sequence[int],
        log_std_dim: int | None = None,
        memory_at: int = 0,
    ) -> None:
        super().__init__()
        self.seq_len = spec.seq_len
        self._obs_width = vector_width(obs_shape)
        self.fc_model, self.rnn_model = make_body(spec, self._obs_width)
        self._cell, self._parts = CELLS[spec.cell_type]
        self.tails = make_tails(spec.rnn_hidden_size, out_dims, spec.out_layer_activation)
        init_weights(self, spec.init_fn, spec.hid_layers_activation)
        if log_std_dim is not None:
            self.log_std = nn.Parameter(torch.full((log_std_dim,), float(spec.log_std_init or 0.0)))
        self.memory_size = spec.rnn_num_layers * self._parts * spec.rnn_hidden_size
        self._memory_at = in_row = self._obs_width + 1 + memory_at
        self._memory_end = in_row + self.memory_size

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """rows [N, W] or [T, B, W] -> one [N, out_dim] per head, N = T * B."""
        features, _ = self._read(rows if rows.dim() == 3 else rows.unsqueeze(0))
        outputs = apply_tails(self.tails, features)
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(features.shape[0], -1))
        return outputs

    def remember(self, rows: Tensor) -> Tensor:
        """rows [B, W] -> the memory [B, memory_size] after reading them."""
        return self._read(rows.unsqueeze(0))[1]

    def _read(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, W] -> (features [T * B, H], memory after the last row of each sequence)."""
        steps, length = self._split(steps), steps.shape[0] * steps.shape[1]
        seq_len, pieces, envs, _ = steps.shape
        rows = steps.flatten(1, 2)  # [L, M, W]: all pieces of all envs side by side
        restart = rows[..., self._obs_width, None] > 0
        memory = rows[..., self._memory_at : self._memory_end]
        x = self.fc_model(rows[..., : self._obs_width])
        after = []
        parts = memory.chunk(self.rnn_model.num_layers, -1)
        for layer, part in enumerate(parts):
            x, last = self._layer(layer, x, restart, part)
            after.append(last)
        in_time = x.view(seq_len, pieces, envs, -1).transpose(0, 1)
        return in_time.reshape(seq_len * pieces * envs, -1)[:length], torch.cat(after, -1)

    def _split(self, steps: Tensor) -> Tensor:
        """[T, B, W] -> [L, pieces, B, W]; rows of zeros fill up the last piece."""
        seq_len = min(self.seq_len, steps.shape[0])
        pieces = math.ceil(steps.shape[0] / seq_len)
        missing = seq_len * pieces - steps.shape[0]
        if missing:
            steps = torch.cat([steps, steps.new_zeros(missing, *steps.shape[1:])])
        return steps.view(pieces, seq_len, *steps.shape[1:]).transpose(0, 1)

    def _layer(
        self, layer: int, x: Tensor, restart: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x [L, M, in] -> (h of every step [L, M, H], state after the last [M, parts * H])."""
        w_ih, w_hh, b_ih, b_hh = (
            getattr(self.rnn_model, f"{name}_l{layer}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        # What the inputs add to the gates needs no state: one product for all steps.
        from_input = F.linear(x, w_ih, b_ih)
        hidden = []
        state: tuple[Tensor, ...] = ()
        for t, gates in enumerate(from_input.unbind(0)):
            stored = memory[t].chunk(self._parts, -1)
            if t == 0:
                state = stored
            else:
                pairs = zip(stored, state, strict=True)
                state = tuple(torch.where(restart[t], new, old) for new, old in pairs)
            state = self._cell(gates, state, w_hh, b_hh)
            hidden.append(state[0])
        return torch.stack(hidden), torch.cat(state, -1)


def sequence_length(spec: NetSpec) -> int | None:
    """Steps of a sequence; None for nets that read every step alone."""
    return spec.seq_len if isinstance(spec, RecurrentNetSpec) else None


def vector_width(obs_shape: tuple[int, ...]) -> int:
    if len(obs_shape) == 3:
        fix = f"RecurrentNet reads vectors, and observations are images {obs_shape}. Use ConvNet."
        raise SpecError([Problem("agent.net.type", fix)])
    return math.prod(obs_shape)


def make_body(spec: RecurrentNetSpec, in_dim: int) -> tuple[nn.Sequential, nn.RNNBase]:
    """Build (fully connected layers, the parameters of the cells)."""
    layers: list[nn.Module] = []
    for width in spec.fc_hid_layers:
        layers += [nn.Linear(in_dim, width), make_activation(spec.hid_layers_activation)]
        in_dim = width
    kind: Callable[..., nn.RNNBase]
    kind = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}[spec.cell_type]
    sizes = in_dim, spec.rnn_hidden_size, spec.rnn_num_layers
    return nn.Sequential(*layers), kind(*sizes, bidirectional=spec.bidirectional)


def _gru(gates: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    (h,) = state
    reset_x, update_x, new_x = gates.chunk(3, -1)
    reset_h, update_h, new_h = F.linear(h, w, b).chunk(3, -1)
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return (new + (update_x + update_h).sigmoid() * (h - new),)


def _lstm(gates: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    h, c = state
    i, f, g, o = (gates + F.linear(h, w, b)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _rnn(gates: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return ((gates + F.linear(state[0], w, b)).tanh(),)


CELLS: dict[str, tuple[Cell, int]] = {"GRU": (_gru, 1), "LSTM": (_lstm, 2), "RNN": (_rnn, 1)}
"""Cell type -> the cell, and how many parts its state has."""
