"""Tune's schedulers, so that they can be rebuilt from the journal of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slm_lab.search.plan import SearchPlan
from slm_lab.search.ray_setup import ASHAScheduler, FIFOScheduler


def make_scheduler(plan: SearchPlan) -> NoEarlyStopping | ReplayableAsha:
    if plan.halving is None:
        return NoEarlyStopping()
    return ReplayableAsha(
        time_attr="frame",
        metric="score",
        mode="max",
        max_t=plan.max_frame,
        grace_period=plan.halving.grace_period,
        reduction_factor=plan.halving.reduction_factor,
    )


def trial_name(trial: Any) -> str:
    return f"t{trial.config['trial']}"


class NoEarlyStopping(FIFOScheduler):  # type: ignore[misc]  # ray publishes no types
    """Every trial runs to its end."""

    def replay(self, trial: int, result: Mapping[str, Any]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _AshaTrial:
    """A trial as ASHA sees it. Tune draws new ids at each start; the rungs remember this one."""

    trial_id: str


class ReplayableAsha(ASHAScheduler):  # type: ignore[misc]
    """Ray's ASHA, in which a trial keeps its id from one start of the search to the next."""

    def replay(self, trial: int, result: Mapping[str, Any]) -> bool:
        """Process a report from the journal; True if ASHA stops the trial there."""
        known = _AshaTrial(f"t{trial}")
        if known.trial_id not in self._trial_info:
            super().on_trial_add(None, known)
        return bool(super().on_trial_result(None, known, dict(result)) == self.STOP)

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        if trial_name(trial) not in self._trial_info:
            super().on_trial_add(controller, _AshaTrial(trial_name(trial)))

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        return super().on_trial_result(controller, _AshaTrial(trial_name(trial)), result)

    def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(controller, _AshaTrial(trial_name(trial)), result)

    def on_trial_remove(self, controller: Any, trial: Any) -> None:
        super().on_trial_remove(controller, _AshaTrial(trial_name(trial)))
