"""How nets read rows of several parts, and how an action mask lowers what they say of actions.

A row is one or more frames, the oldest first; a frame is the parts of an observation side by side,
and the action mask behind them. A recurrent net's row goes on with its past. `RowNet` is the one
place that takes rows apart: the net inside sees observations in their shape and no mask, and those
outside see outputs in which a forbidden action can be neither best nor drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.net.mlp import Shape, make_net
from slm_lab.spec import NetSpec
from slm_lab.types import Spaces

FORBIDDEN = -(2.0**30)
"""The logit or Q value of a forbidden action: its probability is exactly 0, p log p and gradients
stay finite, and every float type can hold it."""


def allowed_actions(mask: Tensor) -> Tensor:
    """Which actions a mask [..., A] allows; all of them where it allows none, as at an ending."""
    allowed = mask > 0
    return allowed | ~allowed.any(-1, keepdim=True)


def masked(output: Tensor, mask: Tensor) -> Tensor:
    """Logits or Q values [N, A] under a mask [N, A]."""
    return torch.where(allowed_actions(mask), output, FORBIDDEN)


def draw_allowed(allowed: Tensor, uniform: Tensor) -> Tensor:
    """One of the allowed actions [N, A] for each uniform number [N] in [0, 1)."""
    count = allowed.sum(-1)
    chosen = torch.minimum((uniform * count).long(), count - 1)
    return (allowed.cumsum(-1) > chosen.unsqueeze(-1)).int().argmax(-1)


def latest_mask(rows: Tensor, spaces: Spaces) -> Tensor:
    """The mask [N, A] of the newest frame of rows."""
    return rows.flatten(1)[:, -spaces.mask :]


def make_row_net(
    spec: NetSpec,
    spaces: Spaces,
    out_dims: Shape,
    log_std_dim: int | None = None,
    *,
    masked_heads: bool = False,
) -> nn.Module:
    """A net for the rows of these spaces, whose first heads, one per sub-action, obey the mask.

    Plain observations need nothing around the net.
    """
    if not (spaces.mask or (spaces.has_images and spaces.parts)):
        return make_net(spec, spaces.obs_shape, out_dims, log_std_dim)
    net = make_net(spec, observation_shape(spaces), out_dims, log_std_dim)
    return RowNet(net, spaces, masked_heads and spaces.mask > 0)


def inner_net(net: nn.Module) -> nn.Module:
    """The net itself, without what takes rows apart for it."""
    return net.net if isinstance(net, RowNet) else net


def observation_shape(spaces: Spaces) -> Shape:
    """The shape of what a net sees of a row."""
    parts, frames = spaces.parts, spaces.frame_stack
    shape = parts[0].shape if len(parts) == 1 else (spaces.frame_width,)
    if frames == 1:
        return shape
    is_joined = len(shape) == 3 or len(spaces.obs_shape) == 1
    return (frames * shape[0], *shape[1:]) if is_joined else (frames, *shape)


class RowNet(nn.Module):
    """A net that is shown the observation of each row; `masked_heads` of its outputs are masked."""

    net: nn.Module

    def __init__(self, net: nn.Module, spaces: Spaces, masked_heads: bool) -> None:
        super().__init__()
        self.net = net
        self._shape = observation_shape(spaces)
        self._frames, self._features = spaces.frame_stack, spaces.frame_width
        self._mask = spaces.mask
        self._width = self._frames * (self._features + self._mask)
        self._sizes = list(spaces.action_sizes) if masked_heads else []
        if (seq_len := getattr(net, "seq_len", None)) is not None:
            self.seq_len = seq_len

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows [N, ...], or [T, B, W] of a recurrent net -> one output per head."""
        outputs: tuple[Tensor, ...] = self.net(self.observation(rows))
        if not self._sizes:
            return outputs
        flat = rows if self._is_recurrent else rows.flatten(1)
        mask = flat[..., self._width - self._mask : self._width].reshape(-1, self._mask)
        masks = torch.split(mask, self._sizes, -1)
        obeying = tuple(map(masked, outputs, masks))
        return (*obeying, *outputs[len(obeying) :])

    def observation(self, rows: Tensor) -> Tensor:
        """The observations of rows, without masks."""
        if not self._is_recurrent:
            frames = rows.reshape(rows.shape[0], self._frames, -1)
            return frames[..., : self._features].reshape(-1, *self._shape)
        now, past = rows[..., : self._width], rows[..., self._width :]
        frames = now.reshape(*now.shape[:-1], self._frames, -1)
        return torch.cat([frames[..., : self._features].flatten(-2), past], -1)

    def in_numpy(self, heads: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
        """The outputs that `forward` makes of those of the net inside."""
        flat = rows.reshape(len(rows), -1)
        edges = np.cumsum(self._sizes)[:-1]
        masks = np.split(flat[:, self._width - self._mask :] > 0, edges, -1) if self._sizes else []
        obeying = [
            np.where(mask | ~mask.any(-1, keepdims=True), head, np.float32(FORBIDDEN))
            for head, mask in zip(heads, masks, strict=False)
        ]
        return [*obeying, *heads[len(obeying) :]]

    def observation_in_numpy(self, rows: np.ndarray) -> np.ndarray:
        frames = rows.reshape(len(rows), self._frames, -1)
        return frames[..., : self._features].reshape(len(rows), -1)

    @property
    def _is_recurrent(self) -> bool:
        return hasattr(self, "seq_len")

    # What a recurrent net is asked for beside its outputs: see `Recurrence`.

    @property
    def memory_size(self) -> int:
        net: Any = self.net
        return int(net.memory_size)

    def remember(self, rows: Tensor) -> Tensor:
        net: Any = self.net
        memory: Tensor = net.remember(self.observation(rows))
        return memory
