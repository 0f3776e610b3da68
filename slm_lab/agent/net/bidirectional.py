"""BidirectionalNet: reads the last observations of an episode in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm_lab.agent.net.init import init_weights
from slm_lab.agent.net.mlp import apply_tails, make_tails
from slm_lab.agent.net.recurrent import CELLS, RecurrentNet, make_body, vector_width

if TYPE_CHECKING:
    from slm_lab.spec import RecurrentNetSpec


class BidirectionalNet(nn.Module):
    """Rows -> one output per head, from the final states of both directions side by side.

    A backward cell starts from the newest observation, so its state cannot be kept between steps.
    Instead, the memory of a row [obs | restart | memory] holds the `seq_len` - 1 observations
    before it, oldest first, each behind a flag that tells whether it exists. Rows are read alone,
    in any order.
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
        self.tails = make_tails(2 * spec.rnn_hidden_size, out_dims, spec.out_layer_activation)
        init_weights(self, spec.init_fn, spec.hid_layers_activation)
        if log_std_dim is not None:
            self.log_std = nn.Parameter(torch.full((log_std_dim,), float(spec.log_std_init or 0.0)))
        self.memory_size = (spec.seq_len - 1) * (1 + self._obs_width)
        self._memory_at = self._obs_width + 1 + memory_at

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """rows [N, W] or [T, B, W] -> one [N, out_dim] per head, N = T * B."""
        features = self._read(self._window(rows.reshape(-1, rows.shape[-1])))
        outputs = apply_tails(self.tails, features)
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(features.shape[0], -1))
        return outputs

    def remember(self, rows: Tensor) -> Tensor:
        """rows [B, W] -> the memory [B, memory_size] after reading them."""
        return self._window(rows)[:, 1:].flatten(1)

    def _window(self, rows: Tensor) -> Tensor:
        """[N, W] -> [N, seq_len, 1 + obs width], the row's own observation last."""
        memory = rows[:, self._memory_at : self._memory_at + self.memory_size]
        present = F.pad(rows[:, : self._obs_width], (1, 0), value=1.0)
        past = memory.view(rows.shape[0], self.seq_len - 1, 1 + self._obs_width)
        return torch.cat([past, present.unsqueeze(1)], 1)

    def _read(self, window: Tensor) -> Tensor:
        """[N, L, 1 + D] -> [N, 2 * H]."""
        in_time = window.transpose(0, 1)
        is_there = in_time[..., :1] > 0
        x = self.fc_model(in_time[..., 1:])
        ahead = back = x
        for layer in range(self.rnn_model.num_layers):
            ahead = self._run(f"l{layer}", x, is_there)
            back = self._run(f"l{layer}_reverse", x.flip(0), is_there.flip(0))
            x = torch.cat([ahead, back.flip(0)], -1)
        return torch.cat([ahead[-1], back[-1]], -1)

    def _run(self, suffix: str, x: Tensor, is_there: Tensor) -> Tensor:
        """x [L, N, in] -> h after every step [L, N, H]; missing steps change nothing."""
        w_ih, w_hh, b_ih, b_hh = (
            getattr(self.rnn_model, f"{name}_{suffix}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        blank = x.new_zeros(x.shape[1], self.rnn_model.hidden_size)
        state: tuple[Tensor, ...] = (blank,) * self._parts
        hidden = []
        for gates, counts in zip(
            F.linear(x, w_ih, b_ih).unbind(0), is_there.unbind(0), strict=True
        ):
            pairs = zip(self._cell(gates, state, w_hh, b_hh), state, strict=True)
            state = tuple(torch.where(counts, new, old) for new, old in pairs)
            hidden.append(state[0])
        return torch.stack(hidden)


def make_recurrent_net(
    spec: RecurrentNetSpec,
    obs_shape: tuple[int, ...],
    out_dims: Sequence[int],
    log_std_dim: int | None = None,
    memory_at: int = 0,
) -> nn.Module:
    """Build the net of a RecurrentNetSpec, which reads the past both ways or carries a state."""
    net_class = BidirectionalNet if spec.bidirectional else RecurrentNet
    return net_class(spec, obs_shape, out_dims, log_std_dim, memory_at)
