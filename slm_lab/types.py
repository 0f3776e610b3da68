"""Frozen data that crosses packages. Shapes: T time, B parallel envs, N = T*B flattened.

Nothing here imports torch, so that spec, analysis and the command line load fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import torch

Backend = Literal["auto", "gymnasium", "subprocess", "envpool", "ale", "playground"]
ActionType = Literal["discrete", "multi_discrete", "multi_binary", "continuous", "multi_continuous"]

Rows: TypeAlias = "np.ndarray | torch.Tensor"
"""One row per env; read-only tensors where `Spaces.on_device`, else arrays."""


def on_host(rows: Rows) -> np.ndarray:
    """The same rows as an array; a copy only if they are on another device."""
    return rows.cpu().numpy() if hasattr(rows, "cpu") else rows


@dataclass(frozen=True, slots=True)
class ObsPart:
    """One array of an observation that has several; dots join the names of nested ones."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # float32, or uint8 for images

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


class Converter(Protocol):
    """Converts between what a single env of Gymnasium gives and takes and the rows of an agent."""

    def encode(self, obs: Any) -> tuple[np.ndarray, bool]:
        """One observation or a batch of them, as rows; and whether it was one."""

    def decode(self, action: np.ndarray) -> np.ndarray:
        """A batch of an agent's actions in the env's own units."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """Shapes of a single env's observations and actions.

    `action_sizes` is (n,) for discrete and multi_binary, one count per sub-action for
    multi_discrete, and (dim,) for continuous. Bounded continuous actions are always [-1, 1]: the
    env rescales them, so an agent never sees the original box.

    With `frame_stack` k an observation is the last k frames along its first axis, newest last.

    An observation of several `parts` is one row of them, side by side: float32 if all of them are,
    else bytes, in which a float32 number takes four. The last `mask` columns of a frame tell which
    actions are allowed, those of all sub-actions side by side.

    The last `privileged` columns of an observation are for the critic alone: they will not be there
    when the policy is used.

    With `on_device` observations and actions are tensors on the device where the envs run.

    The `converter` belongs to the env's own spaces, which `Agent.predict` speaks.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_type: ActionType
    action_sizes: tuple[int, ...]
    action_bounded: bool = True
    frame_stack: int = 1
    privileged: int = 0
    on_device: bool = False
    parts: tuple[ObsPart, ...] = ()
    mask: int = 0
    converter: Converter | None = field(default=None, compare=False, repr=False)

    @property
    def policy_obs_shape(self) -> tuple[int, ...]:
        """Shape of the columns that a policy reads: the first ones."""
        return (self.obs_shape[0] - self.privileged, *self.obs_shape[1:])

    @property
    def critic_obs_shape(self) -> tuple[int, ...]:
        """Shape of the columns that a separate critic reads: the privileged ones, else all."""
        return (self.privileged,) if self.privileged else self.obs_shape

    @property
    def is_continuous(self) -> bool:
        """Whether actions are real numbers."""
        return self.action_type in ("continuous", "multi_continuous")

    @property
    def is_image(self) -> bool:
        """Whether an observation is one image, [C, H, W]."""
        return len(self.obs_shape) == 3

    @property
    def has_images(self) -> bool:
        """Whether an observation is an image or has one among its parts."""
        return self.is_image or any(part.is_image for part in self.parts)

    @property
    def frame_width(self) -> int:
        """Numbers in a frame of parts, the mask left out."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of every env in the batch.

    `obs` is the observation to act on next: after the end of an episode it belongs to the next one.
    `next_obs` is the true successor of this step: at the end of an episode it is the final
    observation. The arrays are the env's own buffers, valid until the following `step`: copy them
    to keep them.

    Learning reads `terminated` and `truncated`; scoring of whole episodes reads `episode_end`. They
    differ where a game goes on after a lost life that is `terminated`.
    """

    obs: Rows  # [B, *obs_shape]
    next_obs: Rows  # [B, *obs_shape]
    reward: np.ndarray  # [B] float32, raw
    terminated: np.ndarray  # [B] bool, cuts bootstrap and trace
    truncated: np.ndarray  # [B] bool, cuts the trace; the bootstrap stays
    episode_end: np.ndarray  # [B] bool, the env was reset: what was running is scored


@dataclass(frozen=True, slots=True)
class Rollout:
    """Consecutive on-policy steps, time-major.

    `obs` has one row more than the rest: row T is the observation to act on next. It is the
    successor of row T-1 unless that step ended an episode. `final_obs` holds the true successors of
    steps that were truncated, at the flat positions `final_index` (t * B + b).

    The last three are of the policy that acted: PPO compares every later policy with that one, also
    when other workers have moved the nets since. They are None until stored by acting, or filled in
    by `PPO.evaluate`.
    """

    obs: torch.Tensor  # [T+1, B, *obs_shape]
    action: torch.Tensor  # [T, B, ...] as sampled, before squashing or clipping
    reward: torch.Tensor  # [T, B] as learned from: scaled, normalised, clipped
    terminated: torch.Tensor  # [T, B] bool
    truncated: torch.Tensor  # [T, B] bool
    final_index: torch.Tensor  # [K] int64
    final_obs: torch.Tensor  # [K, *obs_shape]
    log_prob: torch.Tensor | None = None  # [T, B] of the actions
    value: torch.Tensor | None = None  # [T, B] in reward units
    next_value: torch.Tensor | None = None  # [T, B] of each step's true successor


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Rows drawn from a replay, N = minibatches * batch size.

    `reward` is the discounted sum of rewards up to the successor `next_obs`; `discount` is the
    factor of its value: gamma to the number of those rewards, or 0 after a termination.
    """

    obs: torch.Tensor  # [N, *obs_shape]
    action: torch.Tensor  # [N, ...]
    reward: torch.Tensor  # [N]
    next_obs: torch.Tensor  # [N, *obs_shape]
    discount: torch.Tensor  # [N]
    weight: torch.Tensor  # [N] importance weights, ones where sampling was uniform
    index: torch.Tensor  # [N] int64, rows of the replay


@dataclass(frozen=True, slots=True)
class PastBatch:
    """Steps of past episodes with the discounted return that followed them."""

    obs: torch.Tensor  # [N, *obs_shape]
    action: torch.Tensor  # [N, ...]
    return_: torch.Tensor  # [N]
    weight: torch.Tensor  # [N]
    index: torch.Tensor  # [N] int64


@dataclass(frozen=True, slots=True)
class ImitationBatch:
    """A rollout, and past steps to imitate once there are enough of them."""

    rollout: Rollout
    past: PastBatch | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Result of one learning call: named scalars, and how many gradient steps it took.

    `td_error` [N] is given after learning from a replay, for its priorities: the distance of each
    row from its prediction.
    """

    values: Mapping[str, float]
    opt_steps: int
    td_error: torch.Tensor | None = None
