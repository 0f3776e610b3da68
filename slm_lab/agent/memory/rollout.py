"""On-policy memories: steps in order, used once."""

from __future__ import annotations

import numpy as np
import torch

from slm_lab.types import Rollout, Transition


class RolloutMemory:
    """T steps of B envs in preallocated [T, B] arrays; full after T `add`s, emptied by `take`."""

    def __init__(
        self,
        length: int,
        num_envs: int,
        obs_shape: tuple[int, ...],
        obs_dtype: str,
        action_shape: tuple[int, ...],
        action_dtype: torch.dtype,
    ) -> None:
        self.length = length
        self._num_envs = num_envs
        lead = (length, num_envs)
        # One obs row more: the successor of the last step, which becomes the next rollout's first.
        self._obs = torch.zeros((length + 1, num_envs, *obs_shape), dtype=_torch_dtype(obs_dtype))
        self._action = torch.zeros((*lead, *action_shape), dtype=action_dtype)
        self._reward = torch.zeros(lead)
        self._terminated = torch.zeros(lead, dtype=torch.bool)
        self._truncated = torch.zeros(lead, dtype=torch.bool)
        # NumPy views of the same storage: assigning a row through them is several times cheaper.
        self._rows = tuple(
            x.numpy()
            for x in (self._obs, self._action, self._reward, self._terminated, self._truncated)
        )
        self._final_index: list[int] = []
        self._final_obs: list[np.ndarray] = []
        self._size = 0

    @property
    def ready(self) -> bool:
        return self._size == self.length

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        t = self._size
        obs_rows, action_rows, reward_rows, terminated_rows, truncated_rows = self._rows
        obs_rows[t] = obs
        action_rows[t] = action
        reward_rows[t] = transition.reward
        terminated_rows[t] = transition.terminated
        truncated_rows[t] = transition.truncated
        if transition.truncated.any():
            for env in np.flatnonzero(transition.truncated):
                self._final_index.append(t * self._num_envs + int(env))
                self._final_obs.append(transition.next_obs[env].copy())
        self._size = t + 1
        if self._size == self.length:
            obs_rows[self.length] = transition.obs

    def take(self) -> Rollout:
        """The full rollout, in this memory's own tensors: learn from them before the next `add`."""
        rollout = Rollout(
            obs=self._obs,
            action=self._action,
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_index=torch.tensor(self._final_index, dtype=torch.int64),
            final_obs=_stack(self._final_obs, self._obs),
        )
        self._final_index, self._final_obs = [], []
        self._size = 0
        return rollout


class EpisodeMemory:
    """Whole episodes; ready after `episodes` of them have ended, on any of the B envs.

    `take` lays the finished episodes end to end as one lane, [T, 1]: the endings between them cut
    returns just as they do inside a rollout. Running episodes stay for the next time.

    With `keep_above` < 1 only episodes whose total reward reaches that quantile of the batch are
    kept, as in the cross-entropy method: 0.5 learns from the better half.
    """

    def __init__(
        self, episodes: int, num_envs: int, obs_dtype: str, keep_above: float = 1.0
    ) -> None:
        self._episodes = episodes
        self._obs_dtype = _torch_dtype(obs_dtype)
        self._keep_above = keep_above
        self._running: list[list[_Step]] = [[] for _ in range(num_envs)]
        self._finished: list[list[_Step]] = []

    @property
    def ready(self) -> bool:
        return len(self._finished) >= self._episodes

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        ended = transition.terminated | transition.truncated
        for env, steps in enumerate(self._running):
            step = _Step(obs[env].copy(), action[env].copy(), transition, env)
            steps.append(step)
            if ended[env]:
                self._finished.append(steps)
                self._running[env] = []

    def take(self) -> Rollout:
        steps = [step for episode in self._kept() for step in episode]
        self._finished = []
        obs = torch.from_numpy(np.stack([s.obs for s in steps] + [steps[-1].next_obs]))
        truncated = torch.tensor([s.truncated for s in steps])
        final = [i for i, step in enumerate(steps) if step.truncated]
        return Rollout(
            obs=obs.to(self._obs_dtype).unsqueeze(1),
            action=torch.from_numpy(np.stack([s.action for s in steps])).unsqueeze(1),
            reward=torch.tensor([s.reward for s in steps], dtype=torch.float32).unsqueeze(1),
            terminated=torch.tensor([s.terminated for s in steps]).unsqueeze(1),
            truncated=truncated.unsqueeze(1),
            final_index=torch.tensor(final, dtype=torch.int64),
            final_obs=_stack([steps[i].next_obs for i in final], obs[:, None].to(self._obs_dtype)),
        )

    def _kept(self) -> list[list[_Step]]:
        if self._keep_above >= 1:
            return self._finished
        totals = [sum(step.reward for step in episode) for episode in self._finished]
        bar = np.quantile(totals, self._keep_above)
        return [e for e, total in zip(self._finished, totals, strict=True) if total >= bar]


class _Step:
    """One env's share of a transition, copied out of the env's buffers."""

    __slots__ = ("action", "next_obs", "obs", "reward", "terminated", "truncated")

    def __init__(
        self, obs: np.ndarray, action: np.ndarray, transition: Transition, env: int
    ) -> None:
        self.obs = obs
        self.action = action
        self.reward = float(transition.reward[env])
        self.terminated = bool(transition.terminated[env])
        self.truncated = bool(transition.truncated[env])
        # Within an episode the next step's obs is the successor; only the last one keeps its own.
        ended = self.terminated or self.truncated
        self.next_obs = transition.next_obs[env].copy() if ended else obs


def _stack(observations: list[np.ndarray], like: torch.Tensor) -> torch.Tensor:
    if not observations:
        return like.new_zeros((0, *like.shape[2:]))
    return torch.from_numpy(np.stack(observations)).to(like.dtype)


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
