"""Trained nets as plain state dicts, under the file names that existing tools know."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.saved_run import RunFolderError

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
        states[f"{name}_model"] = {k: v.cpu().clone() for k, v in statistics.items()}
    return states


def save_models(
    states: StateDicts, layout: RunLayout, trial: int, session: int, *, best: bool
) -> None:
    """Write all files beside, then rename them in a row: a failure leaves the older set whole.

    A kill between two renames mixes two sets, until a resume writes all of them again.
    """
    paths = {}
    for stem, state in states.items():
        net, _, kind = stem.rpartition("_")
        path = layout.model_path(
            trial, session, net, "model" if kind == "model" else "optim", best=best
        )
        paths[path.with_suffix(".tmp")] = path
        torch.save(state, path.with_suffix(".tmp"))
    for beside, path in paths.items():
        os.replace(beside, path)


def warn_of_unmoved_parameters(agent: Agent, before: StateDicts) -> None:
    """A parameter that updates leave untouched is cut off from the loss: say which."""
    for name, module in agent.algorithm.modules.items():
        first = before[f"{name}_model"]
        unmoved = [k for k, v in module.named_parameters() if torch.equal(v.cpu(), first[k])]
        if unmoved:
            logger.warning(f"{name}: the first updates did not move {', '.join(unmoved)}")


def load_model(path: Path) -> dict[str, Tensor]:
    """A saved state dict, whoever saved it: plain finite tensors by name, or a RunFolderError.

    Nothing in the file is executed, and reading takes no more memory than the file has bytes.
    """
    _check_archive(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle raises nearly anything
        reason = str(error).strip().partition("\n")[0][:200]
        raise RunFolderError(
            f"{path}: refused by torch's weights-only reader, which takes plain tensors and runs "
            f"no code ({type(error).__name__}: {reason}). Expected a state dict."
        ) from None
    if not isinstance(state, dict):
        raise RunFolderError(f"{path}: holds a {type(state).__name__}, expected a state dict.")
    for name, tensor in state.items():
        if not isinstance(name, str) or not _is_plain(tensor):
            raise RunFolderError(
                f"{path}: `{name!s:.80}` is no plain tensor. Expected a state dict."
            )
        # A view may repeat one stored number to any shape, until somebody copies it.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise RunFolderError(
                f"{path}: `{name:.80}` claims a shape of {list(tensor.shape)}, more numbers than "
                "the file holds. Not loaded."
            )
    return state


def _is_plain(value: object) -> bool:
    """Real numbers in memory: not sparse, quantised or complex, and not without data."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
    )


def _check_archive(path: Path) -> None:
    """torch saves an uncompressed zip; a compressed one could unfold into any size."""
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except FileNotFoundError:
        raise RunFolderError(f"{path}: no such file.") from None
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise RunFolderError(
            f"{path}: cannot be read as a file of torch.save ({error}). It may be damaged, or only "
            "partly downloaded."
        ) from None
    if sum(entry.file_size for entry in entries) > size:
        raise RunFolderError(f"{path}: would unfold to more than its own size. Not loaded.")
