"""Preprocessing of raw observations and rewards, and the running statistics that it uses.

Acting never moves the statistics. A rollout moves them after it was learned from, so that the
acting policy and the loss read the same numbers; a replay keeps raw rows, moves them with every
step, and preprocesses each batch by the latest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from slm_lab.agent.learning.returns import discounted_scan
from slm_lab.spec import EnvSpec
from slm_lab.types import Metrics, PastBatch, ReplayBatch, Rollout

State = dict[str, Tensor]
ObsTransform = Callable[[Tensor], Tensor]
Batch = TypeVar("Batch", Rollout, ReplayBatch, PastBatch)


class Preprocessor:
    """Raw observations and rewards -> those that nets act on and learn from, on their device.

    Observations are transformed where they are, then moved. With `on_device` they are moved first,
    and their statistics are on the device too.
    """

    def __init__(
        self,
        obs_transform: ObsTransform | None,
        reward_transform: RewardTransform | None,
        device: torch.device,
        *,
        on_device: bool = False,
    ) -> None:
        self._obs_transform = obs_transform
        self._reward_transform = reward_transform
        self._device = device
        self._on_cpu = device.type == "cpu"
        self.on_device = on_device
        self._statistics: dict[str, ObsNormalizer | RewardTransform] = {}
        if isinstance(obs_transform, ObsNormalizer):
            self._statistics["obs_normalizer"] = obs_transform
        if reward_transform is not None:
            self._statistics["reward_transform"] = reward_transform

    @property
    def has_statistics(self) -> bool:
        return bool(self._statistics)

    @property
    def rescales_rewards(self) -> bool:
        """Whether the scale of rewards changes as training goes on."""
        return self._reward_transform is not None and self._reward_transform.follows_rewards

    @property
    def keeps_obs(self) -> bool:
        """Whether observations are neither transformed nor moved."""
        return self._on_cpu and self._obs_transform is None

    def in_env_units(self, metrics: Metrics) -> Metrics:
        """Q values of a learning call as returns of the env, if rewards were scaled for it."""
        unit = 1.0 if self._reward_transform is None else self._reward_transform.unit
        if unit == 1.0 or "q_value" not in metrics.values:
            return metrics
        q_value = {"q_value": metrics.values["q_value"] * unit}
        return replace(metrics, values={**metrics.values, **q_value})

    def obs(self, obs: Tensor) -> Tensor:
        if self.on_device:
            obs = obs.to(self._device)
        if self._obs_transform is not None:
            obs = self._obs_transform(obs)
        return obs if self._on_cpu else obs.to(self._device)

    def reward(self, reward: Tensor) -> Tensor:
        return reward if self._reward_transform is None else self._reward_transform(reward)

    def rollout(self, raw: Rollout) -> Rollout:
        """Preprocess a rollout; its rewards update the statistics first.

        Those of observations follow in `observe_learned`: the loss must read what the policy acted
        on, while no policy depends on the scale of rewards.
        """
        self.observe_rewards(raw.reward, raw.terminated | raw.truncated)
        obs, final_obs = self.obs(raw.obs), self.obs(raw.final_obs)
        reward = self.reward(raw.reward)
        return self.to_device(replace(raw, obs=obs, final_obs=final_obs, reward=reward))

    def observe_learned(self, raw_obs: Tensor, metrics: Metrics) -> None:
        """Update the statistics by the observations [T, B, ...] of an update."""
        if can_adapt(metrics):
            self.observe_obs(raw_obs.flatten(0, 1))

    def to_device(self, batch: Batch) -> Batch:
        if self._on_cpu:
            return batch
        columns = {f.name: getattr(batch, f.name) for f in fields(batch)}
        moved = {k: v.to(self._device) for k, v in columns.items() if v is not None}
        return replace(batch, **moved)

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:
        if self._reward_transform is not None:
            self._reward_transform.observe(reward, ended)

    def observe_obs(self, obs: Tensor) -> None:
        """obs: [N, *obs_shape], raw."""
        if isinstance(self._obs_transform, ObsNormalizer):
            self._obs_transform.update(obs)

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics by the name of their owner."""
        return {name: owner.state_dict() for name, owner in self._statistics.items()}

    def load_statistics(self, state: dict[str, dict[str, Tensor]]) -> None:
        for name, owner in self._statistics.items():
            owner.load_state_dict(state[name])


class RecurrentPreprocessor(Preprocessor):
    """Preprocesses the observation at the front of a row; restart and memory stay as they are."""

    def __init__(
        self,
        obs_transform: ObsTransform | None,
        reward_transform: RewardTransform | None,
        device: torch.device,
        obs_shape: tuple[int, ...],
    ) -> None:
        super().__init__(obs_transform, reward_transform, device)
        self._obs_shape = obs_shape
        self._obs_width = math.prod(obs_shape)

    def obs(self, obs: Tensor) -> Tensor:
        if self._obs_transform is None:
            return super().obs(obs)
        bare, past = obs[..., : self._obs_width], obs[..., self._obs_width :]
        transformed = super().obs(bare.reshape(*bare.shape[:-1], *self._obs_shape))
        return torch.cat([transformed.reshape(bare.shape), past.to(transformed.device)], -1)

    def observe_obs(self, obs: Tensor) -> None:
        super().observe_obs(obs[:, : self._obs_width].reshape(-1, *self._obs_shape))


def can_adapt(metrics: Metrics) -> bool:
    """Whether the policy can still adapt to moving statistics; at a rate of zero it cannot.

    The better a policy balances, the less observations vary, and shrinking variance makes
    normalisation amplify them: under frozen weights that took InvertedPendulum from 1,000 steps
    to 4.
    """
    return metrics.values.get("lr") != 0.0


class RunningMoments:
    """Mean and variance of all rows so far, merged batch by batch (Chan et al. 1979).

    They stay on the device of the rows: copies would wait for it.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, x: Tensor) -> None:
        """x: [N, *shape]."""
        x = x.double()
        n = x.shape[0]
        var, mean = torch.var_mean(x, 0, correction=0)
        total = self.count + n
        delta = mean - self.mean
        # A fresh normaliser's unit variance is a placeholder and carries no weight.
        spread = self.var * self.count + var * n + delta.square() * (self.count * n / total)
        self.mean += delta * (n / total)
        self.var.copy_(spread / total)
        self.count.copy_(total)

    def state_dict(self) -> State:
        return {"mean": self.mean.clone(), "var": self.var.clone(), "count": self.count.clone()}

    def load_state_dict(self, state: State) -> None:
        self.mean.copy_(state["mean"])
        self.var.copy_(state["var"])
        self.count.copy_(state["count"])


class ObsNormalizer(RunningMoments):
    """Computes (obs - mean) / std, clipped. Constant dimensions give zero."""

    def __init__(
        self, obs_shape: tuple[int, ...], clip: float | None, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(obs_shape, device)
        self._clip = clip
        self._mean = torch.zeros(obs_shape, device=device)
        self._inv_std = torch.ones(obs_shape, device=device)

    def __call__(self, obs: Tensor) -> Tensor:
        normalized = (obs - self._mean).mul_(self._inv_std)
        return normalized if self._clip is None else normalized.clamp_(-self._clip, self._clip)

    def update(self, x: Tensor) -> None:
        super().update(x)
        self._refresh()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._refresh()

    def _refresh(self) -> None:
        self._mean.copy_(self.mean)
        self._inv_std.copy_((self.var + 1e-8).rsqrt())


class RewardTransform:
    """Scales raw rewards, divides them by the std of the discounted return, and clips them.

    Rewards are not centred: that would change their sign, and so which behaviour is good. With
    `largest_return` the divisor is at least what keeps all returns so far within that (SimbaV2, Lee
    et al. 2025).
    """

    def __init__(
        self,
        lanes: int,
        gamma: float,
        *,
        scale: float,
        normalize: bool,
        clip: tuple[float, float] | None,
        largest_return: float | None = None,
    ) -> None:
        self._gamma = gamma
        self._bound = largest_return
        self._largest = 0.0  # return so far
        self._scale = scale
        self._clip = clip
        self._moments = RunningMoments(()) if normalize else None
        self.follows_rewards = normalize  # whether the scale moves with observed rewards
        self._return = torch.zeros(lanes)

    def observe(self, reward: Tensor, ended: Tensor) -> None:
        """Update the statistics by raw rewards [T, B], in order of time."""
        if self._moments is not None:
            returns = self._discounted(reward * self._scale, ended)
            self._moments.update(returns.reshape(-1))
            if self._bound is not None:
                self._largest = max(self._largest, float(returns.abs().max()))

    def __call__(self, reward: Tensor) -> Tensor:
        """Transform raw rewards of any shape by the current statistics."""
        if self._scale != 1.0:
            reward = reward * self._scale
        if self._moments is not None:
            reward = reward * self._factor(self._moments)
        return reward if self._clip is None else reward.clamp(*self._clip)

    @property
    def unit(self) -> float:
        """What one unit of the rewards to learn from is in rewards of the env."""
        factor = 1.0 if self._moments is None else self._factor(self._moments)
        return 1 / (self._scale * factor)

    def _factor(self, moments: RunningMoments) -> float:
        factor = float((moments.var + 1e-8).rsqrt())
        if self._bound is None or self._largest * factor <= self._bound:
            return factor
        return self._bound / self._largest

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
        state = moments | {"return": self._return.clone()}
        if self._bound is not None:
            state["largest"] = torch.tensor(self._largest, dtype=torch.float64)
        return state

    def load_state_dict(self, state: State) -> None:
        if self._moments is not None:
            self._moments.load_state_dict(state)
        self._return = state["return"].clone()
        self._largest = float(state.get("largest", 0.0))


def make_obs_transform(
    spec: EnvSpec, obs_shape: tuple[int, ...], device: torch.device | str = "cpu"
) -> ObsTransform | None:
    if spec.normalize_obs:
        return ObsNormalizer(obs_shape, spec.clip_obs, device)
    clip = spec.clip_obs
    return None if clip is None else lambda obs: obs.clamp(-clip, clip)


def make_reward_transform(
    spec: EnvSpec, gamma: float, lanes: int, largest_return: float | None = None
) -> RewardTransform | None:
    if not spec.normalize_reward and spec.clip_reward is None and spec.reward_scale == 1.0:
        return None
    return RewardTransform(
        lanes,
        gamma,
        scale=spec.reward_scale,
        normalize=spec.normalize_reward,
        clip=spec.clip_reward,
        largest_return=largest_return,
    )
