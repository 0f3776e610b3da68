"""`playground/<Name>` on JAX: the real MuJoCo Playground package, stepped as one compiled batch.

Playground's own training wrappers are not used: their auto-reset returns the first observation of
the next episode instead of the last one of the ended episode, so that a truncated episode would
bootstrap from the wrong state (mujoco_playground issue 305). Here the compiled step returns both.

These keys of `env.kwargs` are read here; every other one overrides Playground's config of the env:

    impl            `jax` (MJX) or `warp` (MJWarp). Default: jax on a CPU, Playground's own on CUDA
    full_reset      true (default): a new random state for every episode. false: each env returns
                    to the state it first began in, as Playground's wrapper does unless told so
    action_repeat   control steps per decision, instead of the task's
    dlpack          true: observations and actions are torch tensors that share JAX's memory, and
                    never leave the device. false: NumPy arrays. Default: true on CUDA
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch.utils.dlpack import from_dlpack

from slm_lab.env.error import EnvError
from slm_lab.env.playground import action_repeat, find_task
from slm_lab.env.space import BoxAction, Cast
from slm_lab.env.vector import VectorEnv, check_batch
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Rows, Transition, on_host

if TYPE_CHECKING:
    import jax

Config = tuple[tuple[str, Any], ...]


class Running(NamedTuple):
    """State of the whole batch between two steps: everything that the next step depends on."""

    state: Any  # Playground's State
    obs: jax.Array  # [B, n], laid out as rows
    key: jax.Array  # [B, 2], for the next episodes
    decisions: jax.Array  # [B] taken in the running episodes


class Outcome(NamedTuple):
    """Reward and endings of a step, before any env is reset."""

    reward: jax.Array  # [B]
    terminated: jax.Array  # [B]
    truncated: jax.Array  # [B]


class Program(NamedTuple):
    """The compiled functions of one env of Playground, shared by every batch of it.

    reset(key) -> Running
    step(running, action, limit, action_repeat) -> (Running, Outcome)
    restart(running, fresh, which, full_reset) -> Running
    """

    reset: Callable[[jax.Array], Running]
    step: Callable[..., tuple[Running, Outcome]]
    restart: Callable[..., Running]
    action_size: int
    obs_size: int
    privileged: int


class PlaygroundVectorEnv(VectorEnv):
    """A VectorEnv over a compiled batch.

    The state of the envs is a tree of arrays and is saved whole, so that a run resumes exactly;
    MJWarp keeps part of it elsewhere, and cannot be resumed exactly.

    With `dlpack` observations are read-only views of JAX's arrays, each valid while it is
    referenced. Rewards and flags are copied to the host in either case, where episodes are counted.
    """

    backend = "playground"

    def __init__(self, spec: EnvSpec, *, seed: int) -> None:
        if importlib.util.find_spec("mujoco_playground") is None:
            raise EnvError(
                "env.backend: `playground` needs MuJoCo Playground, which is not installed. Run "
                "`pip install 'slm-lab[playground]'`, or set env.backend to `envpool`."
            )
        # JAX would otherwise take most of a card's memory, which torch needs too.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        task, device, options = find_task(spec.name), _device(spec.device), dict(spec.kwargs)
        self._device = device
        self._full_reset = bool(options.pop("full_reset", True))
        impl = options.pop("impl", "jax" if device.platform == "cpu" else None)
        if impl not in (None, "jax", "warp"):
            raise EnvError(f"env.impl: found `{impl}`. Expected jax or warp.")
        self._is_restorable: bool = impl == "jax"
        self._dlpack = _shares_memory(options.pop("dlpack", None), device.platform)
        self._repeat = repeat = action_repeat(task, options)
        # Decisions per episode, each of `repeat` control steps.
        self._limit = -(-task.episode_length // repeat) if spec.max_t is None else spec.max_t
        self._program = program = _program(
            task.name, impl=impl, config=_flat(options), privileged=spec.privileged, device=device
        )
        action = BoxAction(spaces.Box(-1.0, 1.0, (program.action_size,), np.float32))
        traits = {"privileged": program.privileged, "on_device": self._dlpack}
        super().__init__(spec.num_envs, Cast((program.obs_size,)), action, seed, **traits)
        self._running: Running | None = None
        self._first: Running | None = None  # what to return to, without full resets
        # JAX's arrays are read-only and NumPy's are not: rows are copied into buffers, in turn.
        self._buffer, self._spare_buffer, self._final_obs = (self._blank_obs() for _ in range(3))
        self.obs: Rows = self._buffer
        if self._dlpack:
            with _exact(device) as jax:
                self.obs = from_dlpack(jax.numpy.zeros(self._buffer.shape))

    @property
    def restorable(self) -> bool:
        return self._is_restorable

    def reset(self) -> Rows:
        self.episodes.abandon()
        if isinstance(self.obs, torch.Tensor) and self.obs.is_cuda:
            # JAX may write next where torch has yet to read: see `_shared`.
            torch.cuda.synchronize(self.obs.device)
        with _exact(self._device) as jax:
            if self._running is None:
                key = jax.vmap(jax.random.PRNGKey)(np.array(self._seeds, np.uint32))
                # Bound to the device, as arrays from DLPack are; otherwise JAX compiles again.
                key = jax.device_put(key, self._device)
            else:
                key = self._running.key
            self._running = self._program.reset(key)
        if not self._full_reset and self._first is None:
            self._first = self._running
        return self._show(self._running.obs)

    def step(self, action: Rows) -> Transition:
        check_batch(action, self.num_envs)
        assert self._running is not None, "step before reset"
        with _exact(self._device):
            if self._dlpack:
                taken: Any = self._shared(action)
            else:
                taken = self._action_codec.decode(on_host(action))
            self._running, outcome = self._program.step(
                self._running, taken, self._limit, self._repeat
            )
        # This waits for the step, so that a shared action is let go only when it was read.
        self._reward[:] = outcome.reward
        terminated, truncated = np.array(outcome.terminated), np.array(outcome.truncated)
        ended = terminated | truncated
        self.episodes.add(self._reward, np.flatnonzero(ended))
        if not ended.any():
            obs = next_obs = self._show(self._running.obs)
        else:
            next_obs = self._show_final(self._running.obs)
            with _exact(self._device):
                fresh = self._first or self._program.reset(self._running.key)
                self._running = self._program.restart(self._running, fresh, ended, self._full_reset)
            obs = self._show(self._running.obs)
        return Transition(obs, next_obs, self._reward, terminated, truncated, ended)

    def close(self) -> None:
        self._running = self._first = None

    def state_dict(self) -> dict[str, Any]:
        import jax

        leaves = jax.tree.leaves((self._running, self._first)) if self.restorable else []
        return super().state_dict() | {
            "started": self._running is not None,
            "running": [np.asarray(leaf) for leaf in leaves],
            "obs": on_host(self.obs).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the saved episodes; with MJWarp they are lost, and new ones begin."""
        if state["started"]:
            self.reset()  # if only for the shape of the tree
        super().load_state_dict(state)
        if not state["running"]:
            self.episodes.abandon()
            return
        saved = state["running"]
        with _exact(self._device) as jax:
            leaves, tree = jax.tree.flatten((self._running, self._first))
            if [np.shape(leaf) for leaf in leaves] != [np.shape(leaf) for leaf in saved]:
                raise EnvError(
                    "env.num_envs: the saved state of the envs has another shape than these envs. "
                    "Resume with the same num_envs and the same version of MuJoCo Playground."
                )
            pairs = zip(saved, leaves, strict=True)
            same = [jax.device_put(np.asarray(new, old.dtype), self._device) for new, old in pairs]
        self._running, self._first = jax.tree.unflatten(tree, same)
        self._show(self._running.obs)

    def _show(self, obs: jax.Array) -> Rows:
        """Make these the observations to act on."""
        if self._dlpack:
            self.obs = from_dlpack(obs)
        else:
            self._buffer, self._spare_buffer = self._spare_buffer, self._buffer
            self._buffer[:] = obs
            self.obs = self._buffer
        return self.obs

    def _show_final(self, obs: jax.Array) -> Rows:
        """The observations before the reset of ended episodes."""
        if self._dlpack:
            return from_dlpack(obs)
        self._final_obs[:] = obs
        return self._final_obs

    def _shared(self, action: Rows) -> jax.Array:
        """Actions clipped to the box, in memory that only JAX uses.

        On CUDA the two libraries have separate streams. Passing an action on makes the stream of
        JAX wait for torch, which therefore has read the old observations before JAX reuses them.
        """
        tensor = torch.as_tensor(action, dtype=torch.float32, device=self.obs.device)
        return as_jax(tensor.clamp(-1.0, 1.0))


def as_jax(tensor: torch.Tensor) -> jax.Array:
    """The same memory as JAX sees it; `from_dlpack` is the way back."""
    import jax

    return jax.dlpack.from_dlpack(tensor)


@lru_cache(maxsize=4)
def _program(
    name: str, *, impl: str | None, config: Config, privileged: bool, device: jax.Device
) -> Program:
    """Compile an env. Cached: it takes tens of seconds, and an evaluation env is the same again."""
    import jax
    import jax.numpy as jp

    with jax.default_device(device):
        env = _load(name, {**dict(config), **({} if impl is None else {"impl": impl})})

    row = partial(_row, privileged=privileged)

    @partial(jax.jit)  # bare, it would be an untyped decorator where jax is not installed
    def reset(key: jax.Array) -> Running:
        pairs = jax.vmap(jax.random.split)(key)
        state = jax.vmap(env.reset)(pairs[:, 0])
        return Running(state, row(state.obs), pairs[:, 1], jp.zeros(len(key), jp.int32))

    @partial(jax.jit, static_argnums=3)
    def step(
        running: Running, action: jax.Array, limit: int, action_repeat: int
    ) -> tuple[Running, Outcome]:
        state = running.state.replace(done=jp.zeros_like(running.state.done))
        state, reward = jax.vmap(partial(_decide, env, repeat=action_repeat))(state, action)
        decisions = running.decisions + 1
        terminated = state.done > 0
        truncated = (decisions >= limit) & ~terminated
        # A simulation that blew up is terminated by Playground; its last reward means nothing.
        reward = jp.where(jp.isfinite(reward), reward, 0.0)
        after = Running(state, row(state.obs), running.key, decisions)
        return after, Outcome(reward, terminated, truncated)

    @partial(jax.jit, static_argnums=3)
    def restart(running: Running, fresh: Running, which: jax.Array, full_reset: bool) -> Running:
        if full_reset:
            key = fresh.key
        else:
            # As in Playground's wrapper, what an env keeps in `info` outlives its episode.
            kept = running.state.replace(data=fresh.state.data, obs=fresh.state.obs)
            fresh, key = fresh._replace(state=kept, decisions=0 * fresh.decisions), running.key
        merged: Running = jax.tree.map(lambda new, old: _where(which, new, old), fresh, running)
        return merged._replace(key=key)

    with jax.default_device(device):
        shapes = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
    has_more = privileged and isinstance(shapes, Mapping) and "privileged_state" in shapes
    return Program(
        reset,
        step,
        restart,
        action_size=int(env.action_size),
        obs_size=int(jax.eval_shape(row, shapes).shape[-1]),
        privileged=int(shapes["privileged_state"].shape[-1]) if has_more else 0,
    )


def _row(obs: Any, *, privileged: bool) -> Any:
    """Lay out an observation as one row, with the privileged part last if it is asked for."""
    import jax.numpy as jp

    if not isinstance(obs, Mapping):
        return obs
    keys = ["state"] if "state" in obs else sorted(obs)
    if privileged and "privileged_state" in obs:
        keys = ["state", "privileged_state"]
    return jp.concatenate([obs[key] for key in keys], -1)


def _decide(env: Any, state: Any, action: jax.Array, *, repeat: int) -> tuple[Any, jax.Array]:
    """Take one decision in one env; returns its next state and the sum of rewards."""
    import jax
    import jax.numpy as jp

    def again(_: int, so_far: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        state, total = so_far
        over = state.done > 0  # an ended env keeps its state
        after = env.step(state, action)
        kept = jax.tree.map(lambda old, new: jp.where(over, old, new), state, after)
        return kept, total + jp.where(over, 0.0, after.reward)

    if repeat == 1:
        after = env.step(state, action)
        return after, after.reward
    done: tuple[Any, jax.Array] = jax.lax.fori_loop(0, repeat, again, (state, jp.zeros(())))
    return done


def _where(ended: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Rows of `new` where an episode ended; arrays that MJWarp keeps for the whole batch stay."""
    import jax.numpy as jp

    if old.shape[:1] != ended.shape:
        return old
    return jp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def _load(name: str, config: dict[str, Any]) -> Any:
    """Load an env of Playground, or raise an EnvError that says what is missing."""
    from mujoco_playground import registry
    from mujoco_playground._src import mjx_env

    try:
        return registry.load(name, config_overrides=config)
    except (subprocess.CalledProcessError, OSError) as error:
        if not find_task(name).needs_menagerie:
            raise
        raise EnvError(
            f"env.name: `playground/{name}` needs robot models that MuJoCo Playground downloads "
            f"from GitHub with git at first use, and that failed ({error}). Connect this machine "
            "once, or copy a clone of https://github.com/google-deepmind/mujoco_menagerie (commit "
            f"{mjx_env.MENAGERIE_COMMIT_SHA}) to {mjx_env.MENAGERIE_PATH}. "
            "Or set env.backend to `envpool`, which brings its own."
        ) from error
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise EnvError(
            f"env.kwargs: MuJoCo Playground cannot make `{name}` with {config} ({error}). Expected "
            "keys of the env's config, and a version of mujoco that this Playground was made for. "
            "Remove or rename the wrong key, or set env.backend to `envpool`."
        ) from error


def _device(asked: str | None) -> jax.Device:
    import jax

    if asked == "cpu":
        return jax.devices("cpu")[0]
    found = jax.devices()[0]
    if asked is not None and found.platform == "cpu":
        raise EnvError(
            f"env.device: found `{asked}`, but JAX sees no such device here. "
            "Run `pip install 'jax[cuda12]'`, or set env.device to `cpu`."
        )
    return found


def _shares_memory(asked: bool | None, platform: str) -> bool:
    """Whether to use DLPack: `env.dlpack`, by default where it saves copies to and from a GPU."""
    on_shared_card = platform != "cpu" and torch.cuda.is_available()
    if asked is None:
        return on_shared_card
    if asked and platform != "cpu" and not on_shared_card:
        raise EnvError(
            f"env.dlpack: found true, but JAX runs on a {platform} that torch does not see. "
            "Install torch with CUDA, or set env.dlpack to false."
        )
    return bool(asked)


@contextmanager
def _exact(device: jax.Device) -> Iterator[Any]:
    """JAX on this device with matrix products in full float32, because TF32 changes results."""
    import jax

    with jax.default_device(device), jax.default_matmul_precision("highest"):
        yield jax


def _flat(options: Mapping[str, Any], prefix: str = "") -> Config:
    """Nested keys as dotted ones, hashable."""
    pairs: list[tuple[str, Any]] = []
    for key, value in options.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", tuple(value) if isinstance(value, list) else value))
    return tuple(sorted(pairs))
