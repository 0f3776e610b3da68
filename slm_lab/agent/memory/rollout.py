"""On-policy memories: steps in order, each learned from once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.ring import make_columns, pack, unpack
from slm_lab.agent.preprocessor import Preprocessor
from slm_lab.types import Metrics, Rollout, Rows, Spaces, Transition, on_host

Evaluated = Sequence[Tensor]
"""(log-probs, values) of the actions explored last, where acting gives them; or ()."""


class StoredRows(NamedTuple):
    """Raw rows [T, B, ...] that a memory still holds, and the vector steps since the env gave them:
    empty for episodes laid end to end."""

    key: Literal["obs", "reward"]
    rows: np.ndarray
    ages: np.ndarray


class ExperienceBuffer:
    """Collects steps until there are enough to learn from.

    Its state is complete after every `add`, so that it can be saved there. This one, of an agent
    that only acts, keeps nothing, so the agent never changes.
    """

    @property
    def ready(self) -> bool:
        return False

    def add(
        self, obs: np.ndarray, action: np.ndarray, transition: Transition, evaluated: Evaluated = ()
    ) -> None:
        pass

    def batch(self, frame: int) -> Any:
        raise RuntimeError("this agent was made to act only (learns=False) and cannot be updated")

    def learned(self, metrics: Metrics) -> None:
        pass

    def stored(self) -> list[StoredRows]:
        """Rows to look for the cause of a divergence in."""
        return []

    def truncate_episodes(self, successors: np.ndarray) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class RolloutBuffer(ExperienceBuffer):
    """Raw steps in, one preprocessed rollout out as soon as the memory is full.

    With a memory on the device of the nets, an env's tensors never leave it.
    """

    def __init__(self, memory: RolloutMemory | EpisodeMemory, preprocessor: Preprocessor) -> None:
        self._memory = memory
        self._preprocessor = preprocessor
        self._raw_obs: Tensor | None = None

    @property
    def ready(self) -> bool:
        return self._memory.ready

    def add(
        self, obs: Rows, action: Rows, transition: Transition, evaluated: Evaluated = ()
    ) -> None:
        self._memory.add(obs, action, transition, evaluated)

    def batch(self, frame: int) -> Rollout:
        raw = self._memory.take()
        self._raw_obs = raw.obs
        return self._preprocessor.rollout(raw)

    def learned(self, metrics: Metrics) -> None:
        assert self._raw_obs is not None
        self._preprocessor.observe_learned(self._raw_obs[:-1], metrics)

    def stored(self) -> list[StoredRows]:
        return self._memory.stored()

    def truncate_episodes(self, successors: np.ndarray) -> None:
        self._memory.truncate_episodes(successors)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self._memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.load_state_dict(state["memory"])


class RolloutMemory:
    """T steps of B envs in preallocated [T, B] arrays; full after T `add`s, emptied by `take`.

    With a `device` observations and actions are kept there, and copied from tensor to tensor as
    they come; rewards and endings, which come from the host, follow once per rollout.

    Where acting evaluates its actions, their log-probs and the values of the states are stored with
    the row. A rollout has them only if all of its rows do.
    """

    def __init__(
        self, length: int, num_envs: int, spaces: Spaces, device: torch.device | None = None
    ) -> None:
        self.length = length
        self._num_envs = num_envs
        lead = (length, num_envs)
        # One obs row more: the successor of the last step, which becomes the next rollout's first.
        acted_on = make_columns(spaces, (length + 1, num_envs), ["obs"], device)
        acted_on |= make_columns(spaces, lead, ["action"], device)
        outcomes = make_columns(spaces, lead, ["reward", "terminated", "truncated"])
        self._columns = acted_on | outcomes
        self._obs, self._action = acted_on.values()
        # NumPy views of the same storage: assigning a row through them is several times cheaper.
        self._host_rows = (self._obs.numpy(), self._action.numpy()) if device is None else None
        self._outcome_rows = tuple(column.numpy() for column in outcomes.values())
        # One block per step on which something was truncated: flat positions, and successors.
        self._final_index: list[np.ndarray] = []
        self._final_obs: list[Tensor] = []
        self._size = 0
        # Log-probs and values [T, B], where the nets are; made with the first evaluated row.
        self._evaluated: dict[str, Tensor] = {}
        self._evaluated_rows = 0

    @property
    def ready(self) -> bool:
        """Whether all rows are filled."""
        return self._size == self.length

    def add(
        self, obs: Rows, action: Rows, transition: Transition, evaluated: Evaluated = ()
    ) -> None:
        """Store a step; `evaluated` are log-probs and values where acting gives them."""
        t = self._size
        self._size = t + 1
        if evaluated:
            if not self._evaluated:
                self._evaluated = self._evaluated_columns(evaluated[0].device)
            for column, values in zip(self._evaluated.values(), evaluated, strict=True):
                column[t] = values
            self._evaluated_rows += 1
        if self._host_rows is None:
            self._obs[t].copy_(torch.as_tensor(obs))
            self._action[t].copy_(torch.as_tensor(action))
            if self._size == self.length:
                self._obs[self.length].copy_(torch.as_tensor(transition.obs))
        else:
            obs_rows, action_rows = self._host_rows
            obs_rows[t] = obs
            action_rows[t] = action
            if self._size == self.length:
                obs_rows[self.length] = transition.obs
        reward_rows, terminated_rows, truncated_rows = self._outcome_rows
        reward_rows[t] = transition.reward
        terminated_rows[t] = transition.terminated
        truncated_rows[t] = transition.truncated
        if transition.truncated.any():
            self._add_finals(t, transition.truncated, transition.next_obs)

    def take(self) -> Rollout:
        """Hand out the full rollout, in this memory's own tensors, valid until the next `add`."""
        rollout = Rollout(
            **self._columns,
            final_index=torch.from_numpy(self._all_final_indices()),
            final_obs=self._all_final_obs(),
            **(self._evaluated if self._evaluated_rows == self.length else {}),
        )
        self._final_index, self._final_obs = [], []
        self._size = self._evaluated_rows = 0
        return rollout

    def stored(self) -> list[StoredRows]:
        """The newest rows, also those that were taken, the oldest first."""
        order = (np.arange(self.length) + self._size) % self.length
        ages = np.arange(self.length)[::-1]
        obs, reward = self._obs.cpu().numpy(), self._outcome_rows[0]
        newest = [] if self._size else [StoredRows("obs", obs[-1:], np.zeros(1, np.int64))]
        return [
            StoredRows("reward", reward[order], ages),
            StoredRows("obs", obs[order], ages + 1),  # given by the step before
            *newest,
        ]

    def truncate_episodes(self, successors: np.ndarray) -> None:
        """Count the newest steps of running episodes as truncated, with these successors."""
        if self._size == 0:
            return
        t = self._size - 1
        _, terminated, truncated = self._outcome_rows
        running = ~(terminated[t] | truncated[t])
        truncated[t] |= running
        self._add_finals(t, running, successors)

    def state_dict(self) -> dict[str, Any]:
        """The rows of the rollout so far."""
        rows = {name: column[: self._size] for name, column in self._columns.items()}
        finals = {"index": self._all_final_indices().tolist(), "obs": self._all_final_obs()}
        evaluated = {name: column[: self._size] for name, column in self._evaluated.items()}
        return {
            "rows": rows,
            "final": finals,
            "evaluated": evaluated,
            "evaluated_rows": self._evaluated_rows,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rows, finals = state["rows"], state["final"]
        size = len(rows["reward"])
        if size >= self.length:
            raise ValueError(f"found {size} steps of a rollout of {self.length}")
        for name, column in self._columns.items():
            if rows[name].shape != column[:size].shape:
                raise ValueError(f"{name}: found {tuple(rows[name].shape)} in a saved rollout")
            column[:size] = rows[name]
        self._final_index = [np.array(finals["index"], np.int64)]
        self._final_obs = [finals["obs"].to(self._obs.device)]
        self._size = size
        self._evaluated_rows = int(state["evaluated_rows"])
        if saved := state["evaluated"]:
            self._evaluated = self._evaluated_columns(saved["value"].device)
            for name, column in self._evaluated.items():
                column[:size] = saved[name]

    def _evaluated_columns(self, device: torch.device) -> dict[str, Tensor]:
        shape = self.length, self._num_envs
        return {name: torch.zeros(shape, device=device) for name in ("log_prob", "value")}

    def _add_finals(self, t: int, chosen: np.ndarray, successors: Rows) -> None:
        index = np.flatnonzero(chosen)
        self._final_index.append(t * self._num_envs + index)
        rows = successors[index]  # a copy, as every choice by index is
        self._final_obs.append(torch.as_tensor(rows, device=self._obs.device))

    def _all_final_indices(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *self._final_index])

    def _all_final_obs(self) -> Tensor:
        if not self._final_obs:
            return self._obs.new_zeros((0, *self._obs.shape[2:]))
        return torch.cat(self._final_obs).to(self._obs.dtype)


class EpisodeMemory:
    """Whole episodes; ready after `episodes` of them have ended, on any of the B envs.

    `take` lays the finished episodes end to end as one lane, [T, 1]; endings between
    them cut returns as inside a rollout. Running episodes stay for the next time.

    With `keep_above` < 1 only episodes whose total reward reaches that quantile of the batch are
    kept, as in the cross-entropy method: 0.5 learns from the better half.
    """

    def __init__(
        self, episodes: int, num_envs: int, obs_dtype: str, keep_above: float = 1.0
    ) -> None:
        self._episodes = episodes
        self._obs_dtype: torch.dtype = getattr(torch, obs_dtype)
        self._keep_above = keep_above
        self._running: list[list[_Step]] = [[] for _ in range(num_envs)]
        self._finished: list[list[_Step]] = []
        self._taken: list[_Step] = []  # valid until the next `take`

    @property
    def ready(self) -> bool:
        """Whether enough episodes have ended."""
        return len(self._finished) >= self._episodes

    def add(
        self, obs: Rows, action: Rows, transition: Transition, evaluated: Evaluated = ()
    ) -> None:
        """Store a step of every running episode."""
        obs, action = on_host(obs), on_host(action)
        ended = transition.terminated | transition.truncated
        for env, steps in enumerate(self._running):
            step = _Step.of(obs[env].copy(), action[env].copy(), transition, env)
            steps.append(step)
            if ended[env]:
                self._finished.append(steps)
                self._running[env] = []

    def take(self) -> Rollout:
        """Hand out the finished episodes that are kept, end to end."""
        steps = [step for episode in self._kept() for step in episode]
        self._finished, self._taken = [], steps
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

    def stored(self) -> list[StoredRows]:
        """Rows of the episodes taken last."""
        if not self._taken:
            return []
        unknown = np.zeros(0, np.int64)
        rewards = np.array([[step.reward] for step in self._taken])
        obs = np.stack([step.obs for step in self._taken])[:, None]
        return [StoredRows("reward", rewards, unknown), StoredRows("obs", obs, unknown)]

    def truncate_episodes(self, successors: np.ndarray) -> None:
        """End each running episode where it is, truncated, with these successors."""
        for env, steps in enumerate(self._running):
            if steps:
                steps[-1] = steps[-1]._replace(truncated=True, next_obs=successors[env].copy())
                self._finished.append(steps)
                self._running[env] = []

    def state_dict(self) -> dict[str, Any]:
        return {"running": pack(self._running), "finished": pack(self._finished)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._running, self._finished = (
            [[_Step._make(row) for row in steps] for steps in unpack(state[name])]
            for name in ("running", "finished")
        )

    def _kept(self) -> list[list[_Step]]:
        if self._keep_above >= 1:
            return self._finished
        totals = [sum(step.reward for step in episode) for episode in self._finished]
        bar = np.quantile(totals, self._keep_above)
        return [e for e, total in zip(self._finished, totals, strict=True) if total >= bar]


class _Step(NamedTuple):
    """One env's share of a transition, copied out of the env's buffers."""

    obs: np.ndarray
    action: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    # Within an episode the next step's obs is the successor; only the last one keeps its own.
    next_obs: np.ndarray

    @classmethod
    def of(cls, obs: np.ndarray, action: np.ndarray, transition: Transition, env: int) -> _Step:
        terminated, truncated = bool(transition.terminated[env]), bool(transition.truncated[env])
        ended = terminated or truncated
        next_obs = on_host(transition.next_obs)[env].copy() if ended else obs
        return cls(obs, action, float(transition.reward[env]), terminated, truncated, next_obs)


def _stack(observations: list[np.ndarray], like: Tensor) -> Tensor:
    if not observations:
        return like.new_zeros((0, *like.shape[2:]))
    return torch.from_numpy(np.stack(observations)).to(like.dtype)
