"""Converters between Gymnasium spaces and the arrays that an agent sees.

Observations become one float32 array, or uint8 for images:

    Box, float or int         the same shape, float32
    Box, uint8, 2-d or 3-d    an image, kept uint8; (H, W) gains a channel axis
    Box, 3-d, last axis 1/3/4 taken as (H, W, C) and turned to (C, H, W), whatever the dtype
    Discrete                  one-hot
    MultiDiscrete             one one-hot per entry, concatenated
    MultiBinary               a vector of 0. and 1.
    Dict, Tuple               every part as above, side by side in one row, in the order of
                              `gymnasium.spaces.flatten`: sorted keys for a Dict made from a plain
                              mapping, else the order of its keys; positions for a Tuple. With a
                              uint8 image among them the row is bytes. A key `action_mask` of a
                              Dict comes last: see action_mask.py

Actions come from the agent as [B] integers (Discrete), [B, n] integers (MultiDiscrete,
MultiBinary) or [B, dim] floats (Box). A Box with finite bounds is acted on in [-1, 1], mapped
affinely onto the box and clipped to it; any other Box takes the action as it is, clipped to the
sides that are finite.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.env.error import EnvError
from slm_lab.types import ActionType, ObsPart

Path = tuple[Hashable, ...]
ACTION_MASK = "action_mask"
CHANNEL_COUNTS = (1, 3, 4)  # grey, RGB, RGBA


class ObsCodec:
    """Writes observations into an array. `out` is one row or a whole batch, as `obs` is."""

    parts: tuple[ObsPart, ...] = ()
    mask = 0  # columns of an action mask

    def __init__(self, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, dtype
        self.env_shape = shape  # of one observation as the env gives it

    def count(self, obs: Any) -> int | None:
        """How many observations there are in a batch; None for a single one."""
        shape, expected = np.shape(obs), self.env_shape
        if shape != expected and shape[1:] != expected:
            raise ValueError(
                f"found an observation of shape {shape}; expected {expected}, or a batch of them, "
                f"(B, {', '.join(map(str, expected))})"
            )
        return None if shape == expected else shape[0]

    def write(self, obs: Any, out: np.ndarray) -> None:
        raise NotImplementedError

    def read(self, rows: np.ndarray) -> Any:
        """The inverse of `write`: a batch as the env itself would return it."""
        return rows


class ActionCodec:
    """Turns a batch of agent actions into the env's own units."""

    type: ActionType
    sizes: tuple[int, ...]
    bounded = True

    def decode(self, action: np.ndarray) -> np.ndarray:
        """A new [B, ...] array: callers keep it, so it must not alias the agent's buffer."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, num_envs: int) -> np.ndarray:
        """Uniform agent actions (standard normal where a Box has no bounds)."""
        raise NotImplementedError

    def sample_allowed(self, rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
        """Uniform agent actions among those that a mask [B, sum of sizes] allows."""
        splits = np.split(mask, np.cumsum(self.sizes)[:-1], -1)
        # The largest of random numbers, all of them below those that are not allowed.
        drawn = [(rng.random(part.shape) + (part > 0)).argmax(-1) for part in splits]
        return drawn[0] if self.type == "discrete" else np.stack(drawn, -1)


@dataclass(frozen=True, slots=True)
class Codecs:
    """The converters of an env's observations and actions."""

    obs: ObsCodec
    action: ActionCodec

    def encode(self, obs: Any) -> tuple[np.ndarray, bool]:
        """One observation of the env, or a batch of them, as rows; and whether it was one."""
        count = self.obs.count(obs)
        rows = np.zeros((count or 1, *self.obs.shape), self.obs.dtype)
        self.obs.write(obs, rows[0] if count is None else rows)
        return rows, count is None

    def decode(self, action: np.ndarray) -> np.ndarray:
        """A batch of an agent's actions in the env's own units."""
        return self.action.decode(action)


def obs_codec(space: spaces.Space[Any], mask: int = 0) -> ObsCodec:
    """The codec of an observation space, by the table at the top of this file.

    With `mask` columns the space is a Dict whose key `action_mask` fills them.
    """
    if isinstance(space, spaces.Box):
        return _box_codec(space)
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return OneHots(space)
    if isinstance(space, spaces.MultiBinary):
        return Reshape((int(np.prod(space.shape)),), "float32", space.shape)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        leaves = {path: _part_codec(leaf) for path, leaf in _leaves(space)}
        if mask:
            leaves = {path: codec for path, codec in leaves.items() if path[0] != ACTION_MASK}
            leaves[ACTION_MASK,] = MaskCodec(mask)  # behind the others
        return Parts(leaves)
    raise EnvError(
        f"env.name: observation space {space} cannot become an array of fixed shape. "
        "Expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these. "
        "Wrap the env so that it observes one of them."
    )


def vector_codec(space: spaces.Space[Any]) -> ObsCodec:
    """The codec of one part of a Dict or Tuple: a float32 vector, never an image."""
    if isinstance(space, spaces.Box):
        return Reshape((int(np.prod(space.shape)),), "float32", space.shape)
    return obs_codec(space)


def _leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """The arrays of nested Dicts and Tuples, with the keys that lead to them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        for key, part in inner:
            yield from _leaves(part, (*path, key))
    else:
        yield path, space


def _part_codec(space: spaces.Space[Any]) -> ObsCodec:
    """An image stays one; anything else becomes a vector."""
    if isinstance(space, spaces.Box):
        codec = _box_codec(space)
        return codec if len(codec.shape) == 3 else vector_codec(space)
    return obs_codec(space)


def _box_codec(space: spaces.Box) -> ObsCodec:
    shape = space.shape
    dtype = "uint8" if space.dtype == np.uint8 and len(shape) in (2, 3) else "float32"
    if len(shape) == 3 and shape[-1] in CHANNEL_COUNTS:
        return ChannelsFirst(shape, dtype)
    if shape == () or (dtype == "uint8" and len(shape) == 2):
        return Reshape((1, *shape), dtype, shape)
    return Cast(shape, dtype)


class Cast(ObsCodec):
    """Same shape, other dtype."""

    def write(self, obs: Any, out: np.ndarray) -> None:
        out[...] = obs


class Reshape(ObsCodec):
    """Same numbers in the same order, other shape."""

    def __init__(self, shape: tuple[int, ...], dtype: str, env_shape: tuple[int, ...]) -> None:
        super().__init__(shape, dtype)
        self.env_shape = env_shape

    def write(self, obs: Any, out: np.ndarray) -> None:
        out[...] = np.asarray(obs).reshape(out.shape)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(rows), *self.env_shape)


class ChannelsFirst(ObsCodec):
    """(H, W, C) to (C, H, W), the layout of torch's convolutions."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__((shape[2], *shape[:2]), dtype)
        self.env_shape = shape

    def write(self, obs: Any, out: np.ndarray) -> None:
        out[...] = np.moveaxis(obs, -1, -3)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return np.moveaxis(rows, -3, -1)


class OneHot(ObsCodec):
    """An integer in start..start+n-1 as a vector with a single 1."""

    def __init__(self, n: int, start: int) -> None:
        super().__init__((n,))
        self.start, self.env_shape = start, ()
        self._rows = np.eye(n, dtype=np.float32)

    def write(self, obs: Any, out: np.ndarray) -> None:
        out[...] = self._rows[np.asarray(obs) - self.start]

    def read(self, rows: np.ndarray) -> Any:
        return rows.argmax(-1) + self.start


class OneHots(ObsCodec):
    """Several integers, one one-hot each, concatenated."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        ranges = zip(space.nvec.ravel(), space.start.ravel(), strict=True)
        self.digits = [OneHot(int(n), int(start)) for n, start in ranges]
        self._edges = np.cumsum([0, *space.nvec.ravel()]).tolist()
        super().__init__((self._edges[-1],))
        self.env_shape = space.shape

    def write(self, obs: Any, out: np.ndarray) -> None:
        entries = np.asarray(obs).reshape(*out.shape[:-1], len(self.digits))
        for i, part in enumerate(self.digits):
            part.write(entries[..., i], out[..., self._edges[i] : self._edges[i + 1]])

    def read(self, rows: np.ndarray) -> np.ndarray:
        columns = zip(self.digits, np.split(rows, self._edges[1:-1], axis=-1), strict=True)
        return np.stack([part.read(piece) for part, piece in columns], -1)


class Parts(ObsCodec):
    """The parts of nested Dicts and Tuples side by side; an action mask may be the last."""

    def __init__(self, leaves: Mapping[Path, ObsCodec]) -> None:
        in_bytes = any(codec.dtype == "uint8" for codec in leaves.values())
        self.leaves: list[Leaf] = []
        parts, end = [], 0
        for path, codec in leaves.items():
            is_mask = isinstance(codec, MaskCodec)
            is_wide = in_bytes and codec.dtype == "float32" and not is_mask
            start, end = end, end + math.prod(codec.shape) * (4 if is_wide else 1)
            self.leaves.append(Leaf(path, slice(start, end), codec, is_wide))
            if is_mask:
                self.mask = codec.shape[0]
            else:
                parts.append(ObsPart(".".join(map(str, path)), codec.shape, codec.dtype))
        super().__init__((end,), "uint8" if in_bytes else "float32")
        self.parts = tuple(parts)

    def write(self, obs: Any, out: np.ndarray) -> None:
        for leaf in self.leaves:
            value = obs
            for key in leaf.path:
                value = value[key]
            leaf.codec.write(value, leaf.place(out))

    def count(self, obs: Any) -> int | None:
        first = self.leaves[0]
        for key in first.path:
            try:
                obs = obs[key]
            except (KeyError, IndexError, TypeError):
                where = ".".join(map(str, first.path))
                raise ValueError(f"found no part `{where}` in the observation") from None
        return first.codec.count(obs)

    def read(self, rows: np.ndarray) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for leaf in self.leaves:
            *outer, last = leaf.path
            place = found
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = leaf.codec.read(leaf.place(rows))
        return found


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a row: the keys that lead to it, and where it lies."""

    path: Path
    columns: slice
    codec: ObsCodec
    is_wide: bool  # float32 in a row of bytes

    def place(self, rows: np.ndarray) -> np.ndarray:
        """A view of this part in a row or a batch of rows, in its own shape."""
        place = rows[..., self.columns]
        if self.is_wide:
            place = place.view(np.float32)
        if len(self.codec.shape) == 1:
            return place
        return place.reshape(*place.shape[:-1], *self.codec.shape)


class MaskCodec(ObsCodec):
    """The mask of all actions; None allows every action. Sub-actions may each have their own."""

    def __init__(self, size: int) -> None:
        super().__init__((size,))

    def write(self, obs: Any, out: np.ndarray) -> None:
        if obs is None:
            out[...] = 1
            return
        if isinstance(obs, tuple | list):
            obs = np.concatenate([np.ravel(part) for part in obs])
        mask = np.asarray(obs)
        if mask.size != out.size:
            raise EnvError(
                f"env.action_mask: the env gave a mask of {mask.size} entries, expected "
                f"{self.shape[0]}, one per action. Set it to false to play without masks."
            )
        out[...] = (mask != 0).reshape(out.shape)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return rows.astype(np.int8)


def action_codec(space: spaces.Space[Any]) -> ActionCodec:
    """The codec of an action space, by the paragraph at the top of this file."""
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscreteAction(space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinaryAction(space.shape)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return BoxAction(space)
    raise EnvError(
        f"env.name: action space {space} is not supported. Expected Discrete, MultiDiscrete "
        "(1-d), MultiBinary, or Box of floats. Wrap the env so that it takes one of them."
    )


def _integers(action: np.ndarray, ndim: int, kind: str) -> np.ndarray:
    if action.ndim != ndim or action.dtype.kind not in "iub":
        raise EnvError(
            f"action: found shape {action.shape} of {action.dtype} for a {kind} action space. "
            f"Expected {ndim}-d integers, one row per env."
        )
    return action


class DiscreteAction(ActionCodec):
    """[B] integers from 0; the env may count from elsewhere."""

    type: ActionType = "discrete"

    def __init__(self, n: int, start: int) -> None:
        self.sizes = (n,)
        self.start = start

    def decode(self, action: np.ndarray) -> np.ndarray:
        return _integers(action, 1, "discrete") + self.start

    def sample(self, rng: np.random.Generator, num_envs: int) -> np.ndarray:
        return rng.integers(self.sizes[0], size=num_envs)


class MultiDiscreteAction(ActionCodec):
    """[B, n] integers, each from 0."""

    type: ActionType = "multi_discrete"

    def __init__(self, sizes: np.ndarray, starts: np.ndarray) -> None:
        self.sizes = tuple(int(n) for n in sizes)
        self.starts = starts

    def decode(self, action: np.ndarray) -> np.ndarray:
        decoded: np.ndarray = _integers(action, 2, "multi-discrete") + self.starts
        return decoded

    def sample(self, rng: np.random.Generator, num_envs: int) -> np.ndarray:
        return rng.integers(self.sizes, size=(num_envs, len(self.sizes)))


class MultiBinaryAction(ActionCodec):
    """[B, n] zeros and ones."""

    type: ActionType = "multi_binary"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sizes = (int(np.prod(shape)),)
        self.env_shape = shape

    def decode(self, action: np.ndarray) -> np.ndarray:
        bits = _integers(action, 2, "multi-binary").astype(np.int8)
        return bits.reshape(len(action), *self.env_shape)

    def sample(self, rng: np.random.Generator, num_envs: int) -> np.ndarray:
        return rng.integers(2, size=(num_envs, *self.sizes), dtype=np.int8)


class BoxAction(ActionCodec):
    """[B, dim] floats; [-1, 1] stands for the whole box when the box is finite."""

    def __init__(self, space: spaces.Box) -> None:
        dim = int(np.prod(space.shape))
        self.type = "continuous" if dim == 1 else "multi_continuous"
        self.sizes = (dim,)
        self.bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
        self.low, self.high, self.dtype = space.low, space.high, space.dtype
        self.center, self.half_width = np.zeros_like(space.low), np.ones_like(space.high)
        if self.bounded:
            # Halved before adding, so that a box as wide as float32 itself does not overflow.
            self.center = space.high / 2 + space.low / 2
            self.half_width = space.high / 2 - space.low / 2

    def decode(self, action: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = action.astype(self.dtype).reshape(len(action), *self.low.shape)
        scaled *= self.half_width
        scaled += self.center
        return np.clip(scaled, self.low, self.high, out=scaled)

    def sample(self, rng: np.random.Generator, num_envs: int) -> np.ndarray:
        size = (num_envs, *self.sizes)
        if self.bounded:
            return rng.uniform(-1.0, 1.0, size).astype(np.float32)
        return rng.standard_normal(size, dtype=np.float32)


class QuickDiscrete(spaces.Discrete):
    """A Discrete space whose `contains` tests a plain int without NumPy.

    Many envs ask at every step whether the action is in their space, a quarter of CartPole's time.
    """

    def contains(self, x: Any) -> bool:
        if type(x) is int:
            return bool(self.start <= x < self.start + self.n)
        return super().contains(x)


def quicken(space: spaces.Space[Any]) -> None:
    """Change the space in place, because an env and its wrappers may all refer to it."""
    if type(space) is spaces.Discrete:
        space.__class__ = QuickDiscrete
