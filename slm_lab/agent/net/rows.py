"""How nets read rows of several parts, and how an action mask lowers what they say of actions.

A row is one or more frames, the oldest first; a frame is the parts of an observation side by side,
and the action mask behind them. A recurrent net's row goes on with its past. `RowNet` is the one
place that takes rows apart: the net inside sees observations in their shape and no mask, and those
outside see outputs in which a forbidden action can be neither best nor drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.net.mlp import Shape, make_net
from slm_lab.spec import NetSpec, Problem, SpecError
from slm_lab.types import ObsPart, Spaces

NumpyPolicy = Callable[..., list[np.ndarray]]
"""Observations [N, ...], and the noise [N, M] of a noisy net -> head outputs, without torch."""

ACTION = "action"
"""The name of the action among the parts that a critic reads."""

FORBIDDEN = -(2.0**30)
"""The logit or Q value of a forbidden action: its probability is exactly 0, p log p and gradients
stay finite. float32 and bfloat16 hold it exactly; heads are float32 in every precision."""


def allowed_actions(mask: Tensor) -> Tensor:
    """Which actions a mask [..., A] allows; all of them where it allows none, as at an ending."""
    allowed = mask > 0
    return allowed | ~allowed.any(-1, keepdim=True)


def masked(output: Tensor, mask: Tensor) -> Tensor:
    """Logits or Q values [N, A], or [N, A * K] with K numbers of each, under a mask [N, A]."""
    allowed = allowed_actions(mask)
    if output.shape[-1] != allowed.shape[-1]:
        allowed = allowed.repeat_interleave(output.shape[-1] // allowed.shape[-1], -1)
    return torch.where(allowed, output, FORBIDDEN)


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
    joined: int = 0,
    atoms: int = 1,
) -> nn.Module:
    """A net for the rows of these spaces, whose first heads, one per sub-action, obey the mask.

    A critic's rows go on with the `joined` numbers of an action. Of Q values each is `atoms`
    numbers. Plain observations need nothing around the net.
    """
    by_name = spec.reads_parts([part.name for part in spaces.parts])
    if by_name and not spaces.parts:
        whole = ObsPart("observation", spaces.obs_shape, spaces.obs_dtype)
        spaces = replace(spaces, parts=(whole,), frame_stack=1)
    if not (by_name or spaces.mask or (spaces.parts and spaces.has_images)):
        shape = (math.prod(spaces.obs_shape) + joined,) if joined else spaces.obs_shape
        return make_net(spec, shape, out_dims, log_std_dim, atoms)
    if not by_name and len(spaces.parts) > 1 and spaces.has_images:
        raise _cannot_join(spec, spaces.parts)
    if by_name:
        reader: RowReader = PartReader(spaces, joined)
    else:
        reader = RowReader(spaces, joined, carries_past=spec.sequence_length is not None)
    net = make_net(spec, reader.shape, out_dims, log_std_dim, atoms)
    return RowNet(net, reader, spaces.action_sizes if spaces.mask and masked_heads else ())


def _cannot_join(spec: NetSpec, parts: Sequence[ObsPart]) -> SpecError:
    names = [part.name for part in parts]
    kinds = ", ".join(f"{part.name} {list(part.shape)}" for part in parts)
    fix = f"Use MultiInputNet, or TorchArcNet whose graph.input is {names}."
    fault = f"{spec.type} reads one array, and the env shows images and other parts ({kinds})."
    return SpecError([Problem("agent.net.type", f"{fault} {fix}")])


def inner_net(net: nn.Module) -> nn.Module:
    """The net itself, without what takes rows apart for it."""
    return net.net if isinstance(net, RowNet) else net


class RowReader:
    """Shows a net the whole observation of each row, without masks."""

    def __init__(self, spaces: Spaces, joined: int = 0, *, carries_past: bool = False) -> None:
        self.frames, self.features, self.mask = spaces.frame_stack, spaces.frame_width, spaces.mask
        self.width = self.frames * (self.features + self.mask)
        self.joined, self.carries_past = joined, carries_past
        self.shape: Any = _observation_shape(spaces)
        if joined:
            self.shape = (self.frames * self.features + joined,)

    def __call__(self, rows: Tensor) -> Any:
        """Rows [N, ...], or [T, B, W] of a recurrent net -> what the net takes."""
        if not (self.carries_past or self.joined):
            return self.seen_frames(rows).reshape(-1, *self.shape)
        seen = self.seen_frames(rows[..., : self.width]).flatten(-2)
        return torch.cat([seen, rows[..., self.width :]], -1)

    def seen_frames(self, rows: Tensor) -> Tensor:
        """[N, ...] -> [N, frames, features], and so for rows in time."""
        lead = rows.shape[:-1] if self.carries_past else rows.shape[:1]
        frames = rows.reshape(*lead, self.frames, self.features + self.mask)
        return frames[..., : self.features]

    def masks(self, rows: Tensor) -> Tensor:
        """The masks [N, sum of sizes] of the newest frames."""
        flat = rows if self.carries_past else rows.flatten(1)
        return flat[..., self.width - self.mask : self.width].reshape(-1, self.mask)


class PartReader(RowReader):
    """Shows a net the parts of each row by name; those of several frames are joined."""

    def __init__(self, spaces: Spaces, joined: int = 0) -> None:
        super().__init__(spaces, joined)
        self.shape = {
            part.name: (self.frames * part.shape[0], *part.shape[1:]) for part in spaces.parts
        }
        self._sizes = [part.size for part in spaces.parts]
        self._shapes = list(self.shape.values())
        if joined:
            name = ACTION if ACTION not in self.shape else f"critic_{ACTION}"
            self.shape |= {name: (joined,)}

    def __call__(self, rows: Tensor) -> dict[str, Tensor]:
        flat = rows.flatten(1)
        parts = torch.split(self.seen_frames(flat[:, : self.width]), self._sizes, -1)
        pairs = zip(parts, self._shapes, strict=True)
        seen = [part.reshape(-1, *shape) for part, shape in pairs]
        if self.joined:
            seen.append(flat[:, self.width :])
        return dict(zip(self.shape, seen, strict=True))


def _observation_shape(spaces: Spaces) -> Shape:
    """The shape of a whole observation as an array."""
    parts, frames = spaces.parts, spaces.frame_stack
    shape = parts[0].shape if len(parts) == 1 else (spaces.frame_width,)
    if frames == 1:
        return shape
    is_joined = len(shape) == 3 or len(spaces.obs_shape) == 1
    return (frames * shape[0], *shape[1:]) if is_joined else (frames, *shape)


class RowNet(nn.Module):
    """A net behind a reader of rows; its first outputs, one per size, obey the mask."""

    net: nn.Module

    def __init__(self, net: nn.Module, reader: RowReader, sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = net
        self.reader = reader
        self._sizes = list(sizes)
        if (seq_len := getattr(net, "seq_len", None)) is not None:
            self.seq_len = seq_len

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows [N, ...], or [T, B, W] of a recurrent net -> one output per head."""
        outputs: tuple[Tensor, ...] = self.net(self.reader(rows))
        if not self._sizes:
            return outputs
        masks = torch.split(self.reader.masks(rows), self._sizes, -1)
        obeying = tuple(map(masked, outputs, masks))
        return (*obeying, *outputs[len(obeying) :])

    def in_numpy(
        self, policy: NumpyPolicy, rows: np.ndarray, *noise: np.ndarray
    ) -> list[np.ndarray]:
        """`forward` in NumPy, where the net inside is `policy`."""
        reader = self.reader
        frames = rows.reshape(len(rows), reader.frames, -1)
        heads = policy(frames[..., : reader.features].reshape(len(rows), -1), *noise)
        if not self._sizes:
            return heads
        allowed = np.split(frames[:, -1, reader.features :] > 0, np.cumsum(self._sizes)[:-1], -1)
        obeying = []
        for head, part in zip(heads, allowed, strict=False):
            is_allowed = part | ~part.any(-1, keepdims=True)
            of_each = is_allowed.repeat(head.shape[-1] // part.shape[-1], -1)
            obeying.append(np.where(of_each, head, np.float32(FORBIDDEN)))
        return [*obeying, *heads[len(obeying) :]]

    # What a recurrent net is asked for beside its outputs: see `Recurrence`.

    @property
    def memory_size(self) -> int:
        net: Any = self.net
        return int(net.memory_size)

    def remember(self, rows: Tensor) -> Tensor:
        net: Any = self.net
        memory: Tensor = net.remember(self.reader(rows))
        return memory
