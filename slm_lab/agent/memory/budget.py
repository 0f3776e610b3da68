"""Estimate the replay's memory before allocating it."""

from __future__ import annotations

import math
import os

import torch

from slm_lab.spec import Problem, SpecError


def replay_bytes(
    capacity: int,
    obs_shape: tuple[int, ...],
    obs_dtype: str,
    action_shape: tuple[int, ...],
    action_dtype: torch.dtype,
    frame_stack: int = 1,
) -> int:
    """Bytes of a replay: obs and next_obs, action, reward and two flags per row.

    Of stacked frames a row keeps one, and the places of all (`FrameReplay`); frames of the starts
    of episodes are not counted.
    """
    obs_item: int = getattr(torch, obs_dtype).itemsize
    obs = 2 * math.prod(obs_shape) * obs_item
    if frame_stack > 1:
        obs = math.prod(obs_shape) // frame_stack * obs_item + 2 * frame_stack * 4
    action = math.prod(action_shape) * action_dtype.itemsize
    return capacity * (obs + action + 4 + 2)


def check_fits(size: int) -> None:
    """Refuse a replay that the free memory of the machine cannot hold."""
    free = available_bytes()
    if free is not None and size > 0.9 * free:
        raise SpecError(
            [
                Problem(
                    "agent.memory.max_size",
                    f"the replay would take {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free. "
                    "Lower max_size, or run fewer sessions at once.",
                )
            ]
        )


def available_bytes() -> int | None:
    """Free memory as the kernel counts it, or None where it does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if "SC_AVPHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
