"""Running statistics of observations and rewards: part of the agent, saved and frozen with it.

Acting never moves them. A rollout moves them after it was learned from, so that the acting policy
and the loss see it through the same lens; a replay keeps raw rows, moves them with every step, and
sees each batch through the latest. At a learning rate of zero the agent's lens stands still
(experience.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slm_lab.agent.learning.moments import RunningMoments, State
from slm_lab.agent.learning.scan import discounted_scan

if TYPE_CHECKING:
    from slm_lab.spec import EnvSpec


class ObsNormalizer:
    """(obs - mean) / std, clipped. Constant dimensions stay at zero instead of exploding."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        clip: float | None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._moments = RunningMoments(obs_shape, device)
        self._clip = clip
        self._mean = torch.zeros(obs_shape, device=device)
        self._inv_std = torch.ones(obs_shape, device=device)

    def __call__(self, obs: Tensor) -> Tensor:
        normalized = (obs - self._mean).mul_(self._inv_std)
        return normalized if self._clip is None else normalized.clamp_(-self._clip, self._clip)

    def update(self, obs: Tensor) -> None:
        """obs: [N, *obs_shape], raw."""
        self._moments.update(obs)
        self._refresh()

    def state_dict(self) -> State:
        return self._moments.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._moments.load_state_dict(state)
        self._refresh()

    def _refresh(self) -> None:
        self._mean.copy_(self._moments.mean)
        self._inv_std.copy_((self._moments.var + 1e-8).rsqrt())


class ObsClip:
    """`clip_obs` without normalisation."""

    def __init__(self, clip: float) -> None:
        self._clip = clip

    def __call__(self, obs: Tensor) -> Tensor:
        return obs.clamp(-self._clip, self._clip)


class RewardTransform:
    """Raw reward -> what is learned from: scale, divide by the std of the discounted return, clip.

    Dividing without centring keeps the sign of a reward, and so which behaviour is good.
    """

    def __init__(
        self,
        lanes: int,
        gamma: float,
        *,
        scale: float,
        normalize: bool,
        clip: tuple[float, float] | None,
    ) -> None:
        self._gamma = gamma
        self._scale = scale
        self._clip = clip
        self._moments = RunningMoments(()) if normalize else None
        self._return = torch.zeros(lanes)

    @property
    def follows_rewards(self) -> bool:
        """Whether the scale moves with the rewards that are observed."""
        return self._moments is not None

    def observe(self, reward: Tensor, ended: Tensor) -> None:
        """Let the statistics follow raw rewards: [T, B], in order of time."""
        if self._moments is not None:
            self._moments.update(self._discounted(reward * self._scale, ended).reshape(-1))

    def __call__(self, reward: Tensor) -> Tensor:
        """Raw rewards of any shape -> what is learned from, under the current statistics."""
        if self._scale != 1.0:
            reward = reward * self._scale
        if self._moments is not None:
            reward = reward * float((self._moments.var + 1e-8).rsqrt())
        return reward if self._clip is None else reward.clamp(*self._clip)

    def _discounted(self, reward: Tensor, ended: Tensor) -> Tensor:
        """G_t = r_t + gamma * G_{t-1}, restarting after each ending; carried over between calls."""
        decay = self._gamma * (~ended).to(reward.dtype)
        carried = reward[:1] + self._gamma * self._return
        # The same scan as for returns, walked forward in time instead of backward.
        backward = discounted_scan(
            torch.cat([carried, reward[1:]]).flip(0),
            torch.cat([decay[:-1].flip(0), torch.zeros_like(decay[:1])]),
        )
        returns = backward.flip(0)
        self._return = returns[-1] * ~ended[-1]
        return returns

    def state_dict(self) -> State:
        moments = {} if self._moments is None else self._moments.state_dict()
        return moments | {"return": self._return.clone()}

    def load_state_dict(self, state: State) -> None:
        if self._moments is not None:
            self._moments.load_state_dict(state)
        self._return = state["return"].clone()


def make_obs_transform(
    spec: EnvSpec, obs_shape: tuple[int, ...], device: torch.device | str = "cpu"
) -> ObsNormalizer | ObsClip | None:
    if spec.normalize_obs:
        return ObsNormalizer(obs_shape, spec.clip_obs, device)
    return None if spec.clip_obs is None else ObsClip(spec.clip_obs)


def make_reward_transform(spec: EnvSpec, gamma: float, lanes: int) -> RewardTransform | None:
    if not spec.normalize_reward and spec.clip_reward is None and spec.reward_scale == 1.0:
        return None
    return RewardTransform(
        lanes,
        gamma,
        scale=spec.reward_scale,
        normalize=spec.normalize_reward,
        clip=spec.clip_reward,
    )
