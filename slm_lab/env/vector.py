"""The batched env that the other packages see, its episode statistics and its Gymnasium back-end.

Every back-end resets an ended env within the same step: `Transition.obs` is the first observation
of the next episode, to act on, and `Transition.next_obs` the last one of the ended episode.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise, repeat
from typing import Any

import gymnasium as gym
import numpy as np
from loguru import logger

from slm_lab.card import card
from slm_lab.env.action_mask import observe_masks
from slm_lab.env.episode_log import NOT_RESTORED, EpisodeLog
from slm_lab.env.error import EnvError
from slm_lab.env.space import ActionCodec, Codecs, ObsCodec, action_codec, obs_codec, quicken
from slm_lab.types import Rows, Spaces, Transition, on_host

WINDOW = 100  # finished episodes in the score
RESET_OPTIONS = "reset_options"  # in the origin of an episode that began with some


class EpisodeStats:
    """Returns, from raw rewards, and lengths of finished episodes; totals of unfinished ones.

    A step on which no episode ended costs one vector addition, because a length is the difference
    of two step counts. Thousands of envs that end together are counted together.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.count = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self._step = 0
        self._running = np.zeros(num_envs)  # float64: long episodes add up many small rewards
        self._began_at = np.zeros(num_envs, np.int64)

    def add(self, reward: np.ndarray, ended: Sequence[int] | np.ndarray) -> None:
        """Count one step of every env; `ended` lists the slots whose episode it finished."""
        self._step += 1
        self._running += reward
        if len(ended):
            slots = np.asarray(ended)
            self.count += len(slots)
            self.returns.extend(self._running[slots].tolist())
            self.lengths.extend((self._step - self._began_at[slots]).tolist())
            self._running[slots] = 0.0
            self._began_at[slots] = self._step

    def abandon(self, slots: Sequence[int] | slice = slice(None)) -> None:
        """Forget unfinished episodes that will not be continued."""
        self._running[slots] = 0.0
        self._began_at[slots] = self._step

    def resume(self, slot: int, length: int) -> None:
        """Count an episode that was restored as one that has run for `length` steps."""
        self._began_at[slot] = self._step - length

    def running_length(self, slot: int = 0) -> int:
        return self._step - int(self._began_at[slot])

    def total_reward(self) -> float:
        """Score of a checkpoint.

        One env: the last finished return, 0 before the first. Several envs: the mean of the last
        100 finished returns over all slots, NaN before the first.
        """
        if self.num_envs == 1:
            return self.returns[-1] if self.returns else 0.0
        return self.last_100()[0]

    def last_100(self) -> tuple[float, float]:
        """(mean return, mean length) of the last 100 finished episodes, or of as many as there
        are; NaN before the first."""
        count = len(self.returns)
        if not count:
            return math.nan, math.nan
        return math.fsum(self.returns) / count, sum(self.lengths) / count

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "step": self._step,
            "running": self._running.tolist(),
            "began_at": self._began_at.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.returns = deque(map(float, state["returns"]), maxlen=WINDOW)
        self.lengths = deque(map(int, state["lengths"]), maxlen=WINDOW)
        self._step = int(state["step"])
        self._running = np.array(state["running"], dtype=np.float64)
        self._began_at = np.array(state["began_at"], dtype=np.int64)


class VectorEnv:
    """B envs stepped together; one env is a batch of one. The back-ends share what stands here.

    The arrays that an env returns are its own buffers. The `obs` of a step stays valid through the
    next `step` call, so that a caller can store both; every other array only until that call.
    """

    backend: str
    obs: Rows  # to act on: the last of `reset`, `step` or `load_state_dict`

    def __init__(
        self,
        num_envs: int,
        obs: ObsCodec,
        action: ActionCodec,
        seed: int | Sequence[int],
        **traits: Any,
    ) -> None:
        """`traits` are those fields of `Spaces` that the codecs do not tell."""
        self.num_envs = num_envs
        self._obs_codec, self._action_codec = obs, action
        self.codecs = Codecs(obs, action)
        sizes = action.type, action.sizes, action.bounded
        traits = {"parts": obs.parts, "mask": obs.mask, "converter": self.codecs, **traits}
        self.spaces = Spaces(obs.shape, obs.dtype, *sizes, **traits)
        self.episodes = EpisodeStats(num_envs)
        self._seeds, self._action_rng = spawn_streams(seed, num_envs)
        self._reward = np.zeros(num_envs, np.float32)

    @property
    def restorable(self) -> bool:
        """Whether `load_state_dict` continues the running episodes bit for bit."""
        return False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(map(str, self._facts().values()))}>"

    def _repr_html_(self) -> str:
        return card(type(self).__name__, self._facts())

    def _facts(self) -> dict[str, object]:
        spaces = self.spaces
        return {
            "envs": f"{self.num_envs} ({self.backend})",
            "observation": f"{spaces.obs_shape} {spaces.obs_dtype}",
            "action": f"{spaces.action_type} {spaces.action_sizes}",
            "episodes": f"{self.episodes.count} episodes",
        }

    def reset(self) -> Rows:
        """Begin a new episode everywhere. The first call seeds the envs, later ones do not."""
        raise NotImplementedError

    def step(self, action: Rows) -> Transition:
        """Step every env; an env whose episode ends begins the next one at once."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the envs; nothing may be called after."""
        raise NotImplementedError

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Begin every episode from now on by `reset(options=...)`."""
        raise EnvError(
            f"meta.callbacks: envs of the back-end `{self.backend}` take no reset options, which "
            "a curriculum changes. Use env.backend: gymnasium."
        )

    def sample_action(self) -> np.ndarray:
        """Random actions in the agent's units, allowed ones if the env has a mask."""
        if self.spaces.mask:
            mask = on_host(self.obs)[:, -self.spaces.mask :]
            return self._action_codec.sample_allowed(self._action_rng, mask)
        return self._action_codec.sample(self._action_rng, self.num_envs)

    def render(self) -> np.ndarray | None:
        """All envs side by side as one RGB array, or None when made without rendering."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """State of numbers, strings, lists and arrays only, so that it needs no pickle."""
        return {
            "episodes": self.episodes.state_dict(),
            "action_rng": self._action_rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes.load_state_dict(state["episodes"])
        self._action_rng.bit_generator.state = state["action_rng"]

    def _blank_obs(self) -> np.ndarray:
        return np.zeros((self.num_envs, *self.spaces.obs_shape), self.spaces.obs_dtype)


def spawn_streams(
    seed: int | Sequence[int], num_envs: int
) -> tuple[list[int], np.random.Generator]:
    """Independent random streams of one seed: an int per env and a generator for random actions.

    A sequence gives the ints of the envs themselves: they are part of a batch seeded elsewhere.
    """
    if isinstance(seed, Sequence):
        return list(seed), np.random.default_rng(seed)
    *per_env, actions = np.random.SeedSequence(seed).spawn(num_envs + 1)
    # 31 bits, because envpool keeps seeds in a signed int.
    env_seeds = [int(stream.generate_state(1)[0] >> 1) for stream in per_env]
    return env_seeds, np.random.default_rng(actions)


def check_batch(action: Rows, num_envs: int) -> None:
    if len(action) != num_envs:
        raise EnvError(
            f"action: found {len(action)} rows for env.num_envs = {num_envs}. "
            "Expected one row per env."
        )


def check_saved_batch(state: Mapping[str, Any], num_envs: int) -> None:
    if len(state["obs"]) != num_envs:
        raise EnvError(
            f"env.num_envs: found {num_envs}, but the saved state holds "
            f"{len(state['obs'])} envs. Resume with the num_envs the run was started with."
        )


def is_same_obs(obs: np.ndarray, saved: np.ndarray) -> bool:
    return np.array_equal(obs, saved, equal_nan=obs.dtype != np.uint8)


class GymnasiumVectorEnv(VectorEnv):
    """A loop over Gymnasium env objects.

    It leaves out info dicts, per-step copies of the batch, per-env array conversions and reset
    steps. CartPole x 4, random actions, frames/s: 123k; `gymnasium.vector.SyncVectorEnv` 97k; a
    bare loop over `env.step` 147k. `quicken` came later and took 7.8 us a frame to 5.8.

    The saved state of a running episode is the state of the random generator it began with and the
    actions since. Loading replays them, which is exact for every env that draws from its
    `np_random`. The saved observations show whether the replay is exact.

    With several threads each steps a range of neighbouring envs; the numbers stay the same. Threads
    help where a step leaves Python for long. 16 envs, two threads on two cores, frames/s: Humanoid
    2.9k -> 4.7k, Ant 3.9k -> 6.4k, Hopper 9.3k -> 10k, HalfCheetah 20k -> 14k.
    """

    backend = "gymnasium"
    obs: np.ndarray

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        *,
        seed: int | Sequence[int],
        threads: int = 1,
        action_mask: bool = True,
    ) -> None:
        self._envs = list(envs)
        env_seeds, _ = spawn_streams(seed, len(envs))
        for env, env_seed in zip(self._envs, env_seeds, strict=True):
            env.action_space.seed(env_seed)
            quicken(env.unwrapped.action_space)
        mask, self._first_reset = 0, None
        if action_mask:
            self._envs, mask, self._first_reset = observe_masks(self._envs, env_seeds[0])
        codecs = (
            obs_codec(self._envs[0].observation_space, mask),
            action_codec(envs[0].action_space),
        )
        super().__init__(len(envs), *codecs, seed)
        # Two observation buffers in turn: the last one handed out survives the next step.
        self.obs, self._spare_obs, self._final_obs = (self._blank_obs() for _ in range(3))
        self._rows, self._spare_rows = list(self.obs), list(self._spare_obs)
        flags = (np.zeros(self.num_envs, bool) for _ in range(3))
        self._terminated, self._truncated, self._episode_end = flags
        self._flags_are_set = False

        self._log = EpisodeLog(self.num_envs, self.episodes.running_length)
        self._started = False
        self._reset_options: dict[str, Any] | None = None
        self._replays_exactly = all(_is_deterministic(env) for env in self._envs)
        self._shares = shares(self.num_envs, threads)
        self._pool = ThreadPoolExecutor(threads, "env") if len(self._shares) > 1 else None

    @property
    def restorable(self) -> bool:
        return self._replays_exactly and self._log.complete

    def reset(self) -> np.ndarray:
        self.episodes.abandon()
        self._swap_obs_buffers()
        for slot in range(self.num_envs):
            self._begin_episode(slot, None if self._started else self._seeds[slot])
        self._started = True
        return self.obs

    def step(self, action: Rows) -> Transition:
        check_batch(action, self.num_envs)
        rows = action if isinstance(action, np.ndarray) else on_host(action)
        return self.step_decoded(self._action_codec.decode(rows))

    def step_decoded(self, actions: Any) -> Transition:
        """Step with actions in the envs' own units, an array that belongs to this env from now."""
        if self._action_codec.type == "discrete":
            actions = actions.tolist()  # envs compare and index faster with plain ints
        self._log.actions.append(actions)
        self._swap_obs_buffers()
        if self._flags_are_set:
            self._terminated[:] = self._truncated[:] = self._episode_end[:] = False
            self._flags_are_set = False

        if self._pool is None:
            ended = self._step_some(self._shares[0], actions)
        else:
            parts = self._pool.map(self._step_some, self._shares, repeat(actions))
            ended = list(chain.from_iterable(parts))

        self.episodes.add(self._reward, ended)
        next_obs = self.obs
        if ended:
            self._flags_are_set = True
            next_obs = self._final_obs
            next_obs[:] = self.obs
            for slot in ended:
                self._begin_episode(slot)
        ends = self._terminated, self._truncated, self._episode_end
        return Transition(self.obs, next_obs, self._reward, *ends)

    def _step_some(self, slots: range, actions: Sequence[Any]) -> list[int]:
        """Step the envs of these slots and return those whose episode ended."""
        envs, write, rows = self._envs, self._obs_codec.write, self._rows
        ended: list[int] = []
        for slot in slots:
            obs, reward, terminated, truncated, _ = envs[slot].step(actions[slot])
            write(obs, rows[slot])
            self._reward[slot] = reward
            if terminated or truncated:
                ended.append(slot)
                self._terminated[slot], self._truncated[slot] = terminated, truncated
                self._episode_end[slot] = True
        return ended

    def render(self) -> np.ndarray | None:
        if self._envs[0].render_mode is None:
            return None
        frames: list[Any] = [env.render() for env in self._envs]
        return grid(np.stack(frames))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for env in self._envs:
            env.close()

    def state_dict(self) -> dict[str, Any]:
        slots = range(self.num_envs) if self._started and self.restorable else ()
        return super().state_dict() | {
            "started": self._started,
            "running": [self._log.running(slot) for slot in slots],
            "obs": self.obs.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the saved episodes; warn and begin new ones where a replay is not exact."""
        check_saved_batch(state, self.num_envs)
        super().load_state_dict(state)
        if not state["started"]:
            return
        self.replay(state["running"])
        self.episodes.load_state_dict(state["episodes"])
        if not is_same_obs(self.obs, state["obs"]):
            logger.warning(NOT_RESTORED)
            self.begin_anew()

    def replay(self, running: Sequence[Mapping[str, Any]]) -> None:
        """Play the saved episodes to where they were, one per env; none if there are none."""
        if not self._started:
            self.reset()  # seeds whatever the env keeps beside its np_random
        for slot, episode in enumerate(running):
            self._replay_episode(slot, episode)

    def begin_anew(self) -> None:
        """Begin new episodes after a replay that was not exact; no later save is exact either."""
        self._replays_exactly = False
        self.reset()

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        self._reset_options = dict(options)

    def _swap_obs_buffers(self) -> None:
        self.obs, self._spare_obs = self._spare_obs, self.obs
        self._rows, self._spare_rows = self._spare_rows, self._rows

    def _begin_episode(self, slot: int, seed: int | None = None) -> None:
        env = self._envs[slot]
        rng = env.unwrapped.np_random if self._replays_exactly and seed is None else None
        origin = {"seed": seed} if rng is None else rng.bit_generator.state
        options = self._reset_options
        self._log.begin(slot, origin if options is None else {**origin, RESET_OPTIONS: options})
        given = {} if options is None else {"options": options}  # an env may know no options
        if self._first_reset is not None and not given:
            obs, _ = self._first_reset
        else:
            obs, _ = env.reset(seed=seed, **given)
        self._first_reset = None
        self._obs_codec.write(obs, self._rows[slot])

    def _replay_episode(self, slot: int, episode: Mapping[str, Any]) -> None:
        env, origin = self._envs[slot], {**episode["origin"]}
        given = {"options": origin.pop(RESET_OPTIONS)} if RESET_OPTIONS in origin else {}
        if "seed" in origin:
            obs, _ = env.reset(seed=origin["seed"], **given)
        else:
            env.unwrapped.np_random.bit_generator.state = origin
            obs, _ = env.reset(**given)
        origin = episode["origin"]
        actions = np.asarray(episode["actions"])
        for action in actions.tolist() if self._action_codec.type == "discrete" else actions:
            obs, *_ = env.step(action)
        self._obs_codec.write(obs, self._rows[slot])
        self.episodes.resume(slot, len(actions))
        self._log.begin(slot, origin, actions)


def shares(count: int, among: int) -> list[range]:
    """The numbers 0 to count-1 as `among` ranges of nearly equal length, none of them empty."""
    bounds = np.linspace(0, count, min(count, among) + 1).round().astype(int).tolist()
    return [range(*pair) for pair in pairwise(bounds)]


def grid(frames: np.ndarray) -> np.ndarray:
    """Tile [B, H, W, 3] into one picture, as square as B allows; unused tiles stay black."""
    count, height, width, channels = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    canvas = np.zeros((rows * columns, height, width, channels), frames.dtype)
    canvas[:count] = frames
    tiles = canvas.reshape(rows, columns, height, width, channels)
    return tiles.swapaxes(1, 2).reshape(rows * height, columns * width, channels)


def _is_deterministic(env: gym.Env[Any, Any]) -> bool:
    declared_random = env.spec is not None and env.spec.nondeterministic
    return not declared_random and isinstance(env.unwrapped.np_random, np.random.Generator)
