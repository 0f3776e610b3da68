"""The envpool back-end: C++ envs stepped as one batch, `playground/<Name>` among them.

envpool resets an ended env on the next step, whose action it ignores. Here the ended envs are reset
within the same call, so that the next episode begins at once and no action is lost.

envpool cannot save a running episode (`restorable` is False, a resumed run begins new episodes) or
report an episode that terminates on the step of its time limit as terminated (it is truncated).

The DM Control names of `playground/` are envpool's port of dm_control, the robots its port of
MuJoCo Playground itself; both are for machines without a CUDA device. One decision is
`action_repeat` steps of the pool. Every episode begins in a new random state.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast
from xml.etree import ElementTree

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.playground import Task, action_repeat, find_task
from slm_lab.env.space import ObsCodec, Parts, action_codec, obs_codec, vector_codec
from slm_lab.env.vector import VectorEnv, check_batch, grid, spawn_streams
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Rows, Transition, on_host

# Where the model files lie under envpool's `base_path`.
_MODELS = {True: "mujoco/playground/assets", False: "mujoco/assets_dmc"}

# What envpool is asked for where somebody watches; its models keep their textures then.
PICTURE: dict[str, Any] = {
    "render_mode": "rgb_array",
    "render_width": 480,
    "render_height": 360,
}

FOLLOWING, STANDING = 0, -1  # cameras: the first of a model, which follows what moves; none of it

# Keys of `env.kwargs` that only the JAX back-end knows, and why this one cannot.
_NOT_HERE = {
    "impl": "the physics here is MuJoCo's own",
    "dlpack": "the memory of these envs is NumPy's",
    "full_reset": "every episode here begins in a new random state",
}


Draw = Callable[[np.ndarray, int], np.ndarray]
"""(numbers of envs, camera) -> pictures [B, H, W, 3]."""


class Pool(Protocol):
    """The part of envpool's API that is used here; the spaces are those of a single env."""

    @property
    def observation_space(self) -> Any: ...
    @property
    def action_space(self) -> Any: ...
    def reset(self, env_id: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]: ...
    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...
    def close(self) -> None: ...


def make_envpool(spec: EnvSpec, *, seed: int) -> EnvpoolVectorEnv:
    if spec.kwargs.get("episodic_life"):
        raise EnvError(
            "env.episodic_life: envpool's key, with which a lost life ends the game that is "
            f"scored. Use env.name `ALE/{spec.name}` with life_loss_info, which keeps the score "
            "that of a whole game, or remove it."
        )
    options = dict(spec.kwargs) | ({} if spec.max_t is None else {"max_episode_steps": spec.max_t})
    return EnvpoolVectorEnv(make_pool(spec.name, spec, options, seed=seed), spec.num_envs, seed)


def make_pool(name: str, spec: EnvSpec, options: Mapping[str, Any], *, seed: int) -> Pool:
    """A synchronous pool with one seed per env. envpool must know `name` and every option."""
    try:
        import envpool
    except ImportError as error:
        raise EnvError(
            "env.backend: `envpool` is not installed. "
            "Run `pip install 'slm-lab[envpool]'`, or set env.backend to `gymnasium`."
        ) from error
    if name not in envpool.list_all_envs():
        raise EnvError(
            f"env.name: envpool has no env `{name}`. "
            "Set env.backend to `gymnasium`, or pick an id of `envpool.list_all_envs()`."
        )
    env_seeds, _ = spawn_streams(seed, spec.num_envs)
    try:
        pool: Pool = envpool.make(
            name,
            env_type="gymnasium",
            num_envs=spec.num_envs,
            num_threads=spec.num_threads or 1,
            seed=env_seeds,
            **options,
        )
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise EnvError(
            f"env.kwargs: envpool cannot make `{name}` with {dict(options)} ({error}). "
            "Remove what envpool does not support, or set env.backend to `gymnasium`."
        ) from error
    return pool


class EnvpoolVectorEnv(VectorEnv):
    """A VectorEnv over a pool of envpool."""

    backend = "envpool"
    obs: np.ndarray

    def __init__(
        self,
        pool: Pool,
        num_envs: int,
        seed: int,
        *,
        codec: ObsCodec | None = None,
        privileged: int = 0,
        draw: Draw | None = None,
    ) -> None:
        """`codec` replaces the layout of observations that space.py would choose."""
        self._pool, self._draw = pool, draw
        with warnings.catch_warnings():
            # envpool states the bounds of float32 boxes in float64; gymnasium warns of the cast.
            warnings.filterwarnings("ignore", message=".*precision lowered.*")
            codecs = codec or obs_codec(pool.observation_space), action_codec(pool.action_space)
        super().__init__(num_envs, *codecs, seed, privileged=privileged)
        self.obs, self._spare_obs, self._final_obs = (self._blank_obs() for _ in range(3))

    def reset(self) -> np.ndarray:
        self.episodes.abandon()
        self.obs, self._spare_obs = self._spare_obs, self.obs
        obs, _ = self._pool.reset()
        self._obs_codec.write(obs, self.obs)
        return self.obs

    def step(self, action: Rows) -> Transition:
        check_batch(action, self.num_envs)
        self.obs, self._spare_obs = self._spare_obs, self.obs
        decoded = self._action_codec.decode(on_host(action))
        obs, reward, terminated, truncated, _ = self._pool.step(decoded)
        self._obs_codec.write(obs, self.obs)
        self._reward[:] = reward

        episode_end = terminated | truncated
        ended = np.flatnonzero(episode_end)
        self.episodes.add(self._reward, ended)
        next_obs = self.obs
        if len(ended):
            next_obs = self._final_obs
            next_obs[:] = self.obs
            self._begin_episodes(ended)
        return Transition(self.obs, next_obs, self._reward, terminated, truncated, episode_end)

    def render(self) -> np.ndarray | None:
        if self._draw is None:
            return None
        slots = np.arange(self.num_envs, dtype=np.int32)
        try:
            return grid(self._draw(slots, FOLLOWING))
        except IndexError:  # a model without a camera of its own
            return grid(self._draw(slots, STANDING))

    def close(self) -> None:
        self._pool.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the statistics of finished episodes; the running ones are lost."""
        super().load_state_dict(state)
        self.reset()

    def _begin_episodes(self, slots: np.ndarray) -> None:
        obs, info = self._pool.reset(slots.astype(np.int32))
        first_obs = np.zeros((len(slots), *self.spaces.obs_shape), self.spaces.obs_dtype)
        self._obs_codec.write(obs, first_obs)
        self.obs[info["env_id"]] = first_obs


def make_playground_pool(spec: EnvSpec, *, seed: int, render: bool = False) -> EnvpoolVectorEnv:
    """`env.kwargs` are envpool's, except for `action_repeat`, which overrides the task's."""
    task, options = find_task(spec.name), dict(spec.kwargs)
    for key in options:
        if key in _NOT_HERE:
            raise EnvError(
                f"env.{key}: is for the JAX back-end, and `playground/{task.name}` runs on "
                f"envpool: {_NOT_HERE[key]}. Remove it, or set env.backend to `playground`."
            )
    repeat = action_repeat(task, options)
    config = _pool_config(task)
    if "action_repeat" in config:
        options["action_repeat"] = 1  # envpool has the key for one task, where it does nothing
    options["max_episode_steps"] = (
        task.episode_length if spec.max_t is None else spec.max_t * repeat
    )
    if render:
        draw_without_a_window()
        pool = make_pool(task.pool_id, spec, PICTURE | options, seed=seed)
    else:
        with tempfile.TemporaryDirectory(prefix="slm_lab_models_") as folder:
            models = _MODELS[task.needs_menagerie]
            copy_without_textures(Path(config["base_path"], models), Path(folder, models))
            # Models are read only while the pool is made.
            pool = make_pool(task.pool_id, spec, {"base_path": folder, **options}, seed=seed)
    codec, extra = _layout(task, pool.observation_space, privileged=spec.privileged)
    repeating = RepeatingPool(pool, repeat) if repeat > 1 else pool
    draw: Draw | None = cast(Any, pool).render if render else None
    layout: dict[str, Any] = {"codec": codec, "privileged": extra}
    return EnvpoolVectorEnv(repeating, spec.num_envs, seed, draw=draw, **layout)


@functools.cache
def draw_without_a_window() -> object:
    """Open MuJoCo's offscreen context of OpenGL in this thread, for a pool to draw in.

    envpool opens none of its own but on Windows, and ends the process where there is none. The
    context is kept, because it is lost with its last reference. `MUJOCO_GL` chooses its kind, as
    for MuJoCo's own renderer; without it no display is asked for.
    """
    kind = os.environ.get("MUJOCO_GL") or ("egl" if sys.platform == "linux" else "")
    try:
        if kind == "glfw" and sys.platform == "linux" and "DISPLAY" not in os.environ:
            raise OSError("MUJOCO_GL=glfw needs a display")
        place = f"mujoco.{kind}" if kind in ("egl", "osmesa") else "mujoco"
        make = importlib.import_module(place).GLContext
        context: Any = make(PICTURE["render_width"], PICTURE["render_height"])
        context.make_current()
        atexit.register(context.free)  # later the modules that it needs are gone
    except Exception as error:  # missing packages and libraries, drivers: each raises its own
        raise EnvError(
            f"--video, --render: MuJoCo cannot draw here ({type(error).__name__}: {error}). It "
            "needs `pip install 'slm-lab[mujoco]'` and a library of OpenGL: `apt-get install "
            "libegl1`, or libosmesa6 and MUJOCO_GL=osmesa."
        ) from error
    return context


class RepeatingPool:
    """A pool that takes every action several times and adds up the rewards.

    An episode that ends on the way keeps its last observation. The wrapped pool begins a new
    episode by itself; it is never shown, because the caller resets the ended envs.
    """

    def __init__(self, pool: Pool, times: int) -> None:
        self._pool = pool
        self._times = times
        self.observation_space, self.action_space = pool.observation_space, pool.action_space
        self.reset, self.close = pool.reset, pool.close

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._pool.step(action)
        for _ in range(self._times - 1):
            running = ~(terminated | truncated)
            next_obs, more, ends, is_cut, info = self._pool.step(action)
            obs = next_obs if running.all() else _choose(running, next_obs, obs)
            reward = reward + more * running
            terminated = terminated | (ends & running)
            truncated = truncated | (is_cut & running)
        return obs, reward, terminated, truncated, info


class Backwards(ObsCodec):
    """A part of an observation with its columns in reverse order."""

    def __init__(self, part: ObsCodec) -> None:
        super().__init__(part.shape, part.dtype)
        self._part = part

    def write(self, obs: Any, out: np.ndarray) -> None:
        self._part.write(obs, out[..., ::-1])

    def read(self, rows: np.ndarray) -> Any:
        return self._part.read(rows[..., ::-1])


def _choose(mask: np.ndarray, yes: Any, no: Any) -> Any:
    """Rows of `yes` where the mask is set, else of `no`; part by part for a dict."""
    if isinstance(yes, Mapping):
        return {key: _choose(mask, yes[key], no[key]) for key in yes}
    return np.where(mask.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)


def _layout(task: Task, space: Any, *, privileged: bool) -> tuple[ObsCodec, int]:
    """The codec of an observation, and its number of privileged columns."""
    if task.parts:
        parts = {part: vector_codec(space[part]) for part in task.parts}
        return _side_by_side(parts | {part: Backwards(parts[part]) for part in task.backwards}), 0
    if not hasattr(space, "spaces"):
        return vector_codec(space), 0
    parts = {"state": vector_codec(space["state"])}
    if privileged:
        parts["privileged_state"] = vector_codec(space["privileged_state"])
        return _side_by_side(parts), parts["privileged_state"].shape[0]
    return _side_by_side(parts), 0


def _side_by_side(parts: Mapping[str, ObsCodec]) -> Parts:
    """One vector, of which policy and critic read columns by their number."""
    codec = Parts({(name,): part for name, part in parts.items()})
    codec.parts = ()
    return codec


def _pool_config(task: Task) -> dict[str, Any]:
    try:
        import envpool
    except ImportError as error:
        raise EnvError(
            f"env.name: `playground/{task.name}` runs on envpool where there is no CUDA device, "
            "and envpool is not installed. Run `pip install 'slm-lab[envpool]'`."
        ) from error
    return dict(envpool.make_spec(task.pool_id).config._asdict())


def copy_without_textures(source: Path, target: Path) -> None:
    """Rewrite the model files under `source` below `target`, and link all other files there.

    Every env of a pool compiles its own model, and nearly all of a model's size is its textures,
    which only a camera needs: a cartpole takes 12 MB with its sky and 0.3 MB without, and a 50th of
    the time. Bodies, joints, contacts and meshes stay, so every step gives the same numbers.
    """
    for folder, _, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            original = Path(folder, name)
            if original.suffix != ".xml" or not _write_bare(original, here / name):
                _link(original, here / name)


def _write_bare(model: Path, target: Path) -> bool:
    """Write the model with one-pixel textures; False for a file that is no model."""
    try:
        tree = ElementTree.parse(model)
    except ElementTree.ParseError:
        return False
    for texture in tree.iter("texture"):
        # Materials refer to a texture by its name, else by that of its file.
        name = texture.get("name") or Path(texture.get("file", "")).stem
        kept = {"type": texture.get("type", "cube"), "name": name}
        texture.attrib.clear()
        texture.attrib.update(
            {"builtin": "flat", "width": "1", "height": "1"}
            | {key: value for key, value in kept.items() if value}
        )
    tree.write(target)
    return True


def _link(original: Path, target: Path) -> None:
    try:
        target.symlink_to(original)
    except OSError:  # Windows grants links to few
        shutil.copyfile(original, target)
