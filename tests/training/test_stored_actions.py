"""Actions in a checkpoint that the env does not have; its checksums may have been made to fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from slm_lab.agent.memory.ring import Ring
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session


def _actions(state: Any) -> Tensor:
    """The column of actions, wherever the memory keeps it."""
    columns = state.columns if isinstance(state, Ring) else state
    if "action" in columns:
        found: Tensor = columns["action"]
        return found
    return next(_actions(part) for part in columns.values() if isinstance(part, Mapping | Ring))


@pytest.mark.parametrize("action", [2, -1, 2**39])
@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_a_stored_action_that_the_env_does_not_have_is_refused(
    every_spec: Callable[..., Spec], tmp_path: Path, algorithm: str, action: int
) -> None:
    layout = RunLayout.create("tiny", "now", tmp_path)
    session = Session(every_spec(algorithm), layout, 0, 0, RunOptions())
    session.advance(52)
    state = session.state_dict()
    session.load_state_dict(state)
    _actions(state["experience"])[1] = action
    with pytest.raises(ValueError, match=r"stored actions: found .* less than"):
        session.load_state_dict(state)
    session.close()
