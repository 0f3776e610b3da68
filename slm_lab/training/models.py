"""Save and load trained nets as plain state dicts, under the file names of the original SLM Lab."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import torch
from loguru import logger
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.runs.files import open_for_reading, replacing
from slm_lab.runs.layout import RunLayout
from slm_lab.spec.run_folder import RunFolderError

StateDicts = dict[str, dict[str, Any]]  # file stem ("net_model") -> state dict
READ_BYTES = 1 << 20


def snapshot(agent: Agent) -> StateDicts:
    """Copies of the agent's nets, optimiser slots and statistics, to be written now or later."""
    algorithm = agent.algorithm
    states: StateDicts = {}
    for name, module in algorithm.modules.items():
        states[f"{name}_model"] = _copies(module.state_dict())
        prefix = f"{name}.slot."
        state = algorithm.learner.state.items()
        slots = {k.removeprefix(prefix): v for k, v in state if k.startswith(prefix)}
        states[f"{name}_optim"] = _copies(slots)
    for name, tensors in (agent.target_nets() | agent.statistics()).items():
        states[f"{name}_model"] = _copies(tensors)
    return states


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def save_models(
    states: StateDicts, layout: RunLayout, trial: int, session: int, *, best: bool
) -> None:
    """Write all files under other names, then rename them: a failure leaves the older set whole. A
    kill between two renames mixes two sets, until a resume writes all of them again."""
    with ExitStack() as beside:
        for stem, state in states.items():
            net, _, kind = stem.rpartition("_")
            path = layout.model_path(
                trial, session, net, "model" if kind == "model" else "optim", best=best
            )
            file = beside.enter_context(replacing(layout.predir, path))
            torch.save(state, file)
            file.flush()


def warn_of_unmoved_parameters(agent: Agent, before: StateDicts) -> None:
    """Warn of parameters that the first updates left unchanged: no loss depends on them."""
    for name, module in agent.algorithm.modules.items():
        first = before[f"{name}_model"]
        unmoved = [k for k, v in module.named_parameters() if torch.equal(v.cpu(), first[k])]
        if unmoved:
            logger.warning(f"{name}: the first updates did not move {', '.join(unmoved)}")


def load_model(path: Path, *, folder: Path | None = None) -> dict[str, Tensor]:
    """Load plain tensors by name from a file of unknown origin, or raise a RunFolderError.

    Nothing in the file is executed, and reading takes no more memory than the file has bytes.
    `folder` is the run folder, by default that of the file.
    """
    with open_for_reading(folder or path.parent, path) as file:
        _check_archive(path, file)
        file.seek(0)
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged or hostile pickle raises nearly anything
            reason = str(error).strip().partition("\n")[0][:200]
            raise RunFolderError(
                f"{path}: refused by torch's weights-only reader, which takes plain tensors and "
                f"runs no code ({type(error).__name__}: {reason}). Expected a state dict."
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
    """Whether a value is a dense tensor of real numbers in memory."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
    )


def _check_archive(path: Path, file: IO[bytes]) -> None:
    """Refuse a file that torch.save did not write, or that has changed since.

    torch saves an uncompressed zip; a compressed one could unfold to any size. torch's reader
    ignores the checksums in it: a flipped bit would load as other weights.
    """
    try:
        size = file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > size:
                raise RunFolderError(f"{path}: would unfold to more than its own size. Not loaded.")
            for entry in entries:
                with archive.open(entry) as member:
                    while member.read(READ_BYTES):  # the end compares the checksum
                        pass
    except RunFolderError:
        raise
    except Exception as error:  # a damaged zip raises nearly anything
        raise RunFolderError(
            f"{path}: cannot be read as a file of torch.save ({error!s:.200}). It is damaged, or "
            "only partly downloaded: copy it again, or use another session's."
        ) from None
