"""NaN and infinite values that an env gives: which env, at which step, under which key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.space import ObsCodec, Parts
from slm_lab.env.vector import VectorEnv
from slm_lab.types import Rows, Transition, on_host

FIX = (
    "A net that is fed such a value learns NaN. Find where the env makes it, often a division by "
    "zero or a simulation that diverges: end the episode there, or clip the value."
)


class NonFiniteError(EnvError):
    """An env gave NaN or an infinite value while an agent trained in it."""

    exit_code = 1


class FiniteEnv:
    """What a training loop sees of an env of which every observation and reward is checked."""

    def __init__(self, env: VectorEnv, name: str) -> None:
        self._env, self._name = env, name
        self.num_envs = env.num_envs
        self._steps = 0

    @property
    def obs(self) -> Rows:
        return self._env.obs

    def reset(self) -> Rows:
        obs = self._env.reset()
        self._check(obs=obs)
        return obs

    def step(self, action: Rows) -> Transition:
        step = self._env.step(action)
        self._steps += 1
        self._check(obs=step.next_obs, reward=step.reward)
        if step.obs is not step.next_obs:
            self._check(obs=step.obs)
        return step

    def _check(self, **values: Rows) -> None:
        if (bad := first_non_finite(self._env.codecs.obs, **values)) is not None:
            slot, key = bad
            raise NonFiniteError(describe(self._name, key, self._steps, f"env {slot}"))


def describe(name: str, key: str, step: int, where: str) -> str:
    """What an env gave, and where; `step` counts those of the whole batch."""
    at = f"step {step:,}" if step else "the first reset"
    return f"env.name: `{name}` gave {key} in {where}, at {at} of this session. {FIX}"


def first_non_finite(
    codec: ObsCodec, obs: Rows | None = None, reward: Rows | None = None
) -> tuple[int, str] | None:
    """(env, `key = value`) of a value in rows [B, ...] that is NaN or infinite; None if all are
    finite. A sum is finite only if every term is, which most rows are told by."""
    for key, rows in _columns(codec, obs, reward):
        with np.errstate(over="ignore", invalid="ignore"):
            if rows.dtype.kind != "f" or np.isfinite(rows.sum()):
                continue
        where = np.argwhere(~np.isfinite(rows))
        if len(where):
            slot, *index = where[0].tolist()
            place = f"{key}[{', '.join(map(str, index))}]" if index else key
            return slot, f"{place} = {rows[tuple(where[0])]}"
    return None


def _columns(
    codec: ObsCodec, obs: Rows | None, reward: Rows | None
) -> Iterator[tuple[str, np.ndarray]]:
    if reward is not None:
        yield "reward", on_host(reward)
    if obs is None:
        return
    rows = on_host(obs)
    if isinstance(codec, Parts):
        for leaf in codec.leaves:
            yield f"observation `{'.'.join(map(str, leaf.path))}`", leaf.place(rows)
    else:
        yield "observation", rows
