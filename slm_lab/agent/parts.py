"""Rows of several parts, from what an env and a memory hold to the numbers that nets read."""

from __future__ import annotations

import torch
from torch import Tensor

from slm_lab.agent.preprocessor import ObsNormalizer, ObsTransform, make_obs_transform
from slm_lab.spec import EnvSpec
from slm_lab.types import Spaces


class FloatRows:
    """Raw rows [..., *obs_shape] -> float32 rows [..., W] with the same parts.

    Rows of bytes hold images as they are and a vector as the bytes of its float32 numbers.
    """

    def __init__(self, spaces: Spaces, device: torch.device | str = "cpu") -> None:
        self._dims = len(spaces.obs_shape)
        self._frames = spaces.frame_stack
        self._is_bytes = spaces.obs_dtype == "uint8"
        self._widths = [
            part.size * (4 if self._is_bytes and part.dtype == "float32" else 1)
            for part in spaces.parts
        ]
        self._is_wide = [part.dtype == "float32" for part in spaces.parts]
        if spaces.mask:
            self._widths.append(spaces.mask)
            self._is_wide.append(False)
        is_vector = [[not part.is_image] * part.size for part in spaces.parts]
        in_frame = [flag for flags in is_vector for flag in flags] + [False] * spaces.mask
        chosen = torch.tensor(in_frame * self._frames, device=device)
        self.vectors = chosen.nonzero().squeeze(1)
        """Columns of float32 rows that are neither of an image nor of a mask."""

    def __call__(self, obs: Tensor) -> Tensor:
        rows = obs.flatten(-self._dims) if self._dims > 1 else obs
        if rows.dtype != torch.uint8:  # also those of an exported policy, which reads no bytes
            return rows
        frames = rows.reshape(*rows.shape[:-1], self._frames, sum(self._widths))
        parts = zip(torch.split(frames, self._widths, -1), self._is_wide, strict=True)
        floats = [
            part.clone(memory_format=torch.contiguous_format).view(torch.float32)
            if is_wide
            else part.float()
            for part, is_wide in parts
        ]
        return torch.cat(floats, -1).flatten(-2)


class PartsTransform:
    """Float rows with their vectors clipped."""

    def __init__(self, rows: FloatRows, clip: float | None) -> None:
        self._rows, self._clip = rows, clip

    def __call__(self, obs: Tensor) -> Tensor:
        floats = self._rows(obs)
        if self._clip is None:
            return floats
        at = self._rows.vectors
        clipped = floats[..., at].clamp(-self._clip, self._clip)
        return floats.index_copy(-1, at, clipped)


class PartsNormalizer(ObsNormalizer):
    """Normalises every number of the vectors of float rows; images and masks stay as they are."""

    def __init__(
        self, rows: FloatRows, clip: float | None, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__((len(rows.vectors),), clip, device)
        self._rows = rows

    def __call__(self, obs: Tensor) -> Tensor:
        floats, at = self._rows(obs), self._rows.vectors
        return floats.index_copy(-1, at, super().__call__(floats[..., at]))

    def update(self, x: Tensor) -> None:
        super().update(self._rows(x)[..., self._rows.vectors])


def make_rows_transform(
    spec: EnvSpec, spaces: Spaces, device: torch.device | str = "cpu"
) -> ObsTransform | None:
    """The transform of raw rows, part by part where they are not one array of numbers."""
    changes = spec.normalize_obs or spec.clip_obs is not None
    is_mixed = spaces.obs_dtype == "uint8" or (changes and (spaces.mask or spaces.has_images))
    if not (spaces.parts and is_mixed):
        return make_obs_transform(spec, spaces.obs_shape, device)
    rows = FloatRows(spaces, device)
    if spec.normalize_obs:
        return PartsNormalizer(rows, spec.clip_obs, device)
    return PartsTransform(rows, spec.clip_obs)
