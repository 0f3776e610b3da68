"""Fine-tuning: an agent that begins with the weights and statistics of another run's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from loguru import logger
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.runs.init_from import source_agent
from slm_lab.spec import Problem, SpecError
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.schema import InitFrom
from slm_lab.training.saving import load_model

TARGET = "target_"
RUNNING = "return"  # of reward statistics: that of episodes which are not continued
SHOWN = 3  # reasons of each part


def begin_with(agent: Agent, source: InitFrom, session: int) -> None:
    """Copy what fits of a saved agent into a new one, and log what does and what does not.

    Optimisers, schedules and memories begin anew. A target net that the other run lacks becomes a
    copy of the net that it follows.
    """
    other = source_agent(source, session)
    files = other.files()
    states = {name: load_model(path, folder=other.layout.predir) for name, path in files.items()}
    parts = own_parts(agent)
    logger.info(f"init_from {source.folder}: {other.name}, sha256 {other.sha256()[:16]}")
    taken = 0
    for name, tensors in parts.items():
        given, whence = states.get(name), name
        if given is None and TARGET in name:
            whence = name.replace(TARGET, "")
            given = states.get(whence)
        if given is None:
            logger.info(f"init_from: {name} begins anew, the run has none")
            continue
        fresh = {key: tensor for key, tensor in tensors.items() if key != RUNNING}
        count, reasons = copy_fitting(given, fresh, f"{files[whence]}")
        taken += count
        left = f"; not {_some(reasons)}" if reasons else ""
        of = "" if whence == name else f" of {whence}"
        logger.info(f"init_from: {name} takes {count} of {len(fresh)} tensors{of}{left}")
    for name in sorted(states.keys() - parts.keys()):
        logger.info(f"init_from: {name} is not taken, this agent has none")
    if not taken:
        found = f"nothing of {source.folder} fits this agent: see the log"
        raise SpecError([Problem("meta.init_from", found)], "init_from")
    agent.load_statistics({name: parts[name] for name in agent.statistics()})


def own_parts(agent: Agent) -> dict[str, dict[str, Tensor]]:
    """The tensors of an agent by their owner's name: of nets and target nets those in use."""
    nets = {name: module.state_dict() for name, module in agent.algorithm.modules.items()}
    return nets | agent.target_nets() | agent.statistics()


def copy_fitting(
    given: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: str
) -> tuple[int, list[str]]:
    """Copy tensors of the same name and shape; returns how many, and why others were not."""
    count, reasons = 0, []
    for key, tensor in tensors.items():
        other = given.get(key)
        if other is None:
            reasons.append(f"{key} (absent)")
        elif other.shape != tensor.shape:
            reasons.append(f"{key} ({list(other.shape)}, here {list(tensor.shape)})")
        elif other.is_floating_point() and not other.isfinite().all():
            raise RunFolderError(f"{path}: `{key}` is not finite; training had diverged.")
        else:
            count += 1
            with torch.no_grad():
                tensor.copy_(other)
    unknown = given.keys() - tensors.keys() - {RUNNING}
    return count, [*reasons, *(f"{key} (unknown here)" for key in sorted(unknown))]


def _some(reasons: list[str]) -> str:
    more = f" and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return ", ".join(reasons[:SHOWN]) + more
