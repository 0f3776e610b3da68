"""Trained nets as plain state dicts, under the file names that existing tools know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.experiment.layout import RunLayout

StateDicts = dict[str, dict[str, Any]]  # file stem ("net_model") -> state dict


def snapshot(agent: Agent) -> StateDicts:
    """Copies of what the agent has learned, to be written now or later."""
    algorithm = agent.algorithm
    states: StateDicts = {}
    for name, module in algorithm.modules.items():
        states[f"{name}_model"] = {
            k: v.detach().cpu().clone() for k, v in module.state_dict().items()
        }
        prefix = f"{name}.slot."
        slots = {
            k.removeprefix(prefix): v
            for k, v in algorithm.learner.state.items()
            if k.startswith(prefix)
        }
        states[f"{name}_optim"] = {k: v.detach().cpu().clone() for k, v in slots.items()}
    for name, parameters in agent.target_nets().items():
        states[f"{name}_model"] = {k: v.detach().cpu().clone() for k, v in parameters.items()}
    for name, statistics in agent.statistics().items():
        states[f"{name}_model"] = {k: v.clone() for k, v in statistics.items()}
    return states


def save_models(
    states: StateDicts, layout: RunLayout, trial: int, session: int, *, best: bool
) -> None:
    for stem, state in states.items():
        net, _, kind = stem.rpartition("_")
        path = layout.model_path(
            trial, session, net, "model" if kind == "model" else "optim", best=best
        )
        _write(state, path)


def warn_of_unmoved_parameters(agent: Agent, before: StateDicts) -> None:
    """A parameter that updates leave untouched is cut off from the loss: say which."""
    for name, module in agent.algorithm.modules.items():
        first = before[f"{name}_model"]
        unmoved = [k for k, v in module.named_parameters() if torch.equal(v.cpu(), first[k])]
        if unmoved:
            logger.warning(f"{name}: the first updates did not move {', '.join(unmoved)}")


def load_model(path: Path) -> dict[str, Tensor]:
    """A saved state dict; never unpickles anything but tensors and plain containers."""
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _write(state: dict[str, Any], path: Path) -> None:
    """Beside, then renamed: a kill leaves the old file or the new one, never half of one."""
    beside = path.with_suffix(".tmp")
    torch.save(state, beside)
    os.replace(beside, path)
