"""Recurrent nets, and the rows they read: [obs | restart | memory].

A feed-forward net acts on an observation; a recurrent one on the observation and its past. Here the
two become one row, and that row is what is acted on, stored and learned from, so that memories and
algorithms need no case for it. `memory` is what the nets keep of the steps before the observation,
zeros at the start of an episode; `restart` tells that a row does not follow the one before it.

The cells are written out over time instead of calling torch's kernels: an episode may end inside a
sequence, where a kernel cannot be told to start anew, and what is written out compiles into the
learning step. Parameters keep the names and layout of `nn.GRU`, `nn.LSTM` and `nn.RNN`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm_lab.agent.net.mlp import HeadedNet, Shape, linear_layers
from slm_lab.agent.net.rows import RowNet, inner_net
from slm_lab.spec import Problem, RecurrentNetSpec, SpecError
from slm_lab.types import Spaces, Transition

Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, ...]]
"""(gates from the input, state, weight_hh, bias_hh) -> next state; its first part is h."""


class RecurrentNet(HeadedNet):
    """Fully connected layers, then cells: one output per head, each from the last hidden state.

    The memory of a row is the state of all cells before the observation was read. A row stands on
    its own: single rows [N, W] are read from their memory. Of consecutive rows [T, B, W] only the
    first of every `seq_len` is, and those after a restart; between them the state flows on, and
    with it the gradient (truncated backpropagation through time).

    Where two nets share rows, `memory_at` is where in the memory this net's part begins.
    """

    memory_at = 0

    def make_body(self, spec: RecurrentNetSpec, obs_shape: Shape) -> int:
        if len(obs_shape) == 3:
            fix = f"RecurrentNet reads vectors, and observations are images {obs_shape}."
            raise SpecError([Problem("agent.net.type", f"{fix} Use ConvNet.")])
        self.seq_len = spec.seq_len
        self._obs_width = math.prod(obs_shape)
        widths, activation = spec.fc_hid_layers, spec.hid_layers_activation
        self.fc_model = linear_layers(self._obs_width, widths, activation, linear=self.linear)
        rnn, self._cell, self._parts = CELLS[spec.cell_type]
        sizes = widths[-1] if widths else self._obs_width, spec.rnn_hidden_size
        self.rnn_model = rnn(*sizes, spec.rnn_num_layers, bidirectional=spec.bidirectional)
        return spec.rnn_hidden_size

    @property
    def memory_size(self) -> int:
        return self.rnn_model.num_layers * self._parts * self.rnn_model.hidden_size

    def features(self, rows: Tensor) -> Tensor:
        """rows [N, W] or [T, B, W] -> [N, H], N = T * B."""
        return self._read(rows if rows.dim() == 3 else rows.unsqueeze(0))[0]

    def remember(self, rows: Tensor) -> Tensor:
        """rows [B, W] -> the memory [B, memory_size] after reading them."""
        return self._read(rows.unsqueeze(0))[1]

    def _read(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, W] -> (features [T * B, H], memory after the last row of each sequence)."""
        steps, length = self._split(steps), steps.shape[0] * steps.shape[1]
        seq_len, pieces, envs, _ = steps.shape
        rows = steps.flatten(1, 2)  # [L, M, W]: all pieces of all envs side by side
        restart = rows[..., self._obs_width, None] > 0
        memory = self._memory(rows)
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
        w_ih, w_hh, b_ih, b_hh = self._cell_weights(f"l{layer}")
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

    def _memory(self, rows: Tensor) -> Tensor:
        """This net's part of the memory of rows [..., W]."""
        start = self._obs_width + 1 + self.memory_at
        return rows[..., start : start + self.memory_size]

    def _cell_weights(self, suffix: str) -> list[Tensor]:
        names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
        return [getattr(self.rnn_model, f"{name}_{suffix}") for name in names]


class BidirectionalNet(RecurrentNet):
    """Reads the last observations in both directions; features are the final states of both.

    A backward cell starts from the newest observation, so its state cannot be kept between steps.
    Instead, the memory of a row holds the `seq_len` - 1 observations before it, oldest first, each
    behind a flag that tells whether it exists. Rows are read alone, in any order.
    """

    def make_body(self, spec: RecurrentNetSpec, obs_shape: Shape) -> int:
        return 2 * super().make_body(spec, obs_shape)

    @property
    def memory_size(self) -> int:
        return (self.seq_len - 1) * (1 + self._obs_width)

    def features(self, rows: Tensor) -> Tensor:
        """rows [N, W] or [T, B, W] -> [N, 2 * H], N = T * B."""
        in_time = self._window(rows.reshape(-1, rows.shape[-1])).transpose(0, 1)
        is_there = in_time[..., :1] > 0
        x = self.fc_model(in_time[..., 1:])
        ahead = back = x
        for layer in range(self.rnn_model.num_layers):
            ahead = self._run(f"l{layer}", x, is_there)
            back = self._run(f"l{layer}_reverse", x.flip(0), is_there.flip(0))
            x = torch.cat([ahead, back.flip(0)], -1)
        return torch.cat([ahead[-1], back[-1]], -1)

    def remember(self, rows: Tensor) -> Tensor:
        """rows [B, W] -> the memory [B, memory_size] after reading them."""
        return self._window(rows)[:, 1:].flatten(1)

    def _window(self, rows: Tensor) -> Tensor:
        """[N, W] -> [N, seq_len, 1 + obs width], the row's own observation last."""
        present = F.pad(rows[:, : self._obs_width], (1, 0), value=1.0)
        past = self._memory(rows).view(rows.shape[0], self.seq_len - 1, 1 + self._obs_width)
        return torch.cat([past, present.unsqueeze(1)], 1)

    def _run(self, suffix: str, x: Tensor, is_there: Tensor) -> Tensor:
        """x [L, N, in] -> h after every step [L, N, H]; missing steps change nothing."""
        w_ih, w_hh, b_ih, b_hh = self._cell_weights(suffix)
        blank = x.new_zeros(x.shape[1], self.rnn_model.hidden_size)
        state: tuple[Tensor, ...] = (blank,) * self._parts
        hidden = []
        gates_in_time = F.linear(x, w_ih, b_ih).unbind(0)
        for gates, counts in zip(gates_in_time, is_there.unbind(0), strict=True):
            pairs = zip(self._cell(gates, state, w_hh, b_hh), state, strict=True)
            state = tuple(torch.where(counts, new, old) for new, old in pairs)
            hidden.append(state[0])
        return torch.stack(hidden)


def make_recurrent_net(
    spec: RecurrentNetSpec, obs_shape: Shape, out_dims: Shape, log_std_dim: int | None = None
) -> RecurrentNet:
    """Build the net of a RecurrentNetSpec, which reads the past both ways or carries a state."""
    net_class = BidirectionalNet if spec.bidirectional else RecurrentNet
    return net_class(spec, obs_shape, out_dims, log_std_dim)


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


CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Cell, int]] = {
    "GRU": (nn.GRU, _gru, 1),
    "LSTM": (nn.LSTM, _lstm, 2),
    "RNN": (nn.RNN, _rnn, 1),
}
"""Cell type -> the layout of its parameters, the cell, and how many parts its state has."""


class Recurrence:
    """The recurrent nets of an algorithm, as one step from memory to memory."""

    def __init__(self, nets: Sequence[RecurrentNet | RowNet]) -> None:
        self._nets = nets
        self.memory_size = sum(net.memory_size for net in nets)

    def __call__(self, rows: Tensor) -> Tensor:
        """rows [B, W] -> the memory [B, memory_size] after reading them."""
        return torch.cat([net.remember(rows) for net in self._nets], -1)

    def row_spaces(self, spaces: Spaces) -> Spaces:
        width = math.prod(spaces.obs_shape) + 1 + self.memory_size
        return replace(spaces, obs_shape=(width,), obs_dtype="float32")


def recurrence_of(nets: Mapping[str, nn.Module]) -> Recurrence | None:
    """Recurrence of an algorithm's nets, in the order of their parts in a row's memory."""
    recurrent: list[Any] = [n for n in nets.values() if isinstance(inner_net(n), RecurrentNet)]
    return Recurrence(recurrent) if recurrent else None


class RecurrentState:
    """The rows of a batch of running episodes, owned by the caller that steps the envs.

    Acting reads it and changes nothing; `advance` moves it on after the envs have stepped.
    """

    def __init__(self, num_envs: int, obs_shape: Shape, memory_size: int) -> None:
        self._obs_width = math.prod(obs_shape)
        self._rows = np.zeros((num_envs, self._obs_width + 1 + memory_size), np.float32)
        self._rows[:, self._obs_width] = 1.0  # an episode starts
        self._upcoming, self._successors = np.zeros_like(self._rows), np.zeros_like(self._rows)

    def rows(self, obs: np.ndarray) -> np.ndarray:
        """Observations [B, ...] with the memory before them, [B, W]; valid until the next call."""
        self._rows[:, : self._obs_width] = obs.reshape(len(obs), -1)
        return self._rows

    @property
    def latest(self) -> np.ndarray:
        """The rows returned last."""
        return self._rows

    def advance(self, memory: np.ndarray, transition: Transition) -> Transition:
        """Move on by a step: the memory [B, M] after the rows acted on -> the transition of rows.

        At an ending the successor still belongs to the old episode, the next obs to a new one. A
        lost life counts as an ending, also where whole games are scored: learning is cut there, so
        no policy was trained with a memory from before it.
        """
        at = self._obs_width
        ended = transition.terminated | transition.truncated
        successors, upcoming = self._successors, self._upcoming
        successors[:, :at] = transition.next_obs.reshape(len(ended), -1)
        # Successors follow each other just as the rows do that they come after.
        successors[:, at] = self._rows[:, at]
        successors[:, at + 1 :] = memory
        upcoming[:, :at] = transition.obs.reshape(len(ended), -1)
        upcoming[:, at] = ended
        np.multiply(memory, ~ended[:, None], out=upcoming[:, at + 1 :])
        self._rows, self._upcoming = upcoming, self._rows
        return replace(transition, obs=upcoming, next_obs=successors)

    def state_dict(self) -> dict[str, Tensor]:
        return {"rows": torch.from_numpy(self._rows.copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._rows[:] = state["rows"].numpy()
