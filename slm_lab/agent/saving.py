"""An agent as files: copies of its nets and statistics, and a folder that `load_agent` reads.

Nets are plain state dicts under the file names of the original SLM Lab.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from slm_lab.runs.files import make_folder, replacing
from slm_lab.runs.layout import RunLayout, new_timestamp
from slm_lab.runs.provenance import save_spec
from slm_lab.spec import Spec
from slm_lab.spec.run_folder import RunFolderError, listed

if TYPE_CHECKING:
    from slm_lab.agent.agent import Agent

StateDicts = dict[str, dict[str, Any]]  # file stem ("net_model") -> state dict


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
    states: StateDicts,
    layout: RunLayout,
    trial: int,
    session: int,
    *,
    best: bool = False,
    checkpoint: str = "",
) -> None:
    """Write all files under other names, then rename them: a failure leaves the older set whole. A
    kill between two renames mixes two sets, until a resume writes all of them again."""
    with ExitStack() as beside:
        for stem, state in states.items():
            net, _, kind = stem.rpartition("_")
            which: Literal["model", "optim"] = "model" if kind == "model" else "optim"
            place = (trial, session, net, which)
            path = layout.model_path(*place, best=best, checkpoint=checkpoint)
            file = beside.enter_context(replacing(layout.predir, path))
            torch.save(state, file)
            file.flush()


def save_agent(agent: Agent, spec: Spec, folder: Path) -> None:
    """Write an agent and its spec as the session 0 of a run folder, over one saved there before.

    Of an agent that was loaded only to act, nets that it does not act with are left out.
    """
    name = spec.name
    layout = RunLayout(folder, name)
    specs = (layout.spec_path(), layout.trial_spec_path(0))
    kept = {"model", *(path.with_suffix(end).name for path in specs for end in (".json", ".yaml"))}
    if others := sorted({path.name for path in listed(folder)} - kept):
        fix = "Give a new folder, or one that holds nothing but an agent of that name."
        raise RunFolderError(f"{folder}: holds {', '.join(others[:3])}. {fix}")
    states = snapshot(agent)
    if not agent.learns:
        acting = {"net_model", *(f"{name}_model" for name in agent.statistics())}
        states = {stem: state for stem, state in states.items() if stem in acting}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        make_folder(folder, folder / "model")
        for best in (False, True):
            save_models(states, layout, 0, 0, best=best)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise RunFolderError(f"{folder}: the agent cannot be written ({error})") from None
    for path in specs:
        save_spec(spec, path, layout, 0, new_timestamp(), 0)
