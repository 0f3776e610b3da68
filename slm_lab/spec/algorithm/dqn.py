"""The DQN family: VanillaDQN, DQN and DoubleDQN, and what their distributional kin share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from slm_lab.spec.algorithm import base
from slm_lab.spec.block import Count, CountOrZero, Findings, Flag, Key
from slm_lab.spec.memory import MemoryKind, replay
from slm_lab.spec.net import REPLACE, TARGET_KEYS
from slm_lab.spec.optim import LossSpec

EXPLORED_SHARE = 0.2
"""Share of env.max_frame over which epsilon falls, where a spec gives no schedule."""
Q_NET = base.mlp([64, 64], "relu", 1e-3, clip_grad_val=10.0)


class ValueBasedSpec(base.DiscountedSpec):
    """Keys of algorithms that act by their Q values."""

    action_policy: Literal["default", "random", "epsilon_greedy", "boltzmann"] = Key(
        "default",
        "How an action is chosen from the Q values; default is epsilon_greedy, or "
        "boltzmann where action_pdtype is Categorical.",
    )
    explore_var_spec: base.ScheduleSpec | None = Key(
        None,
        "Schedule of epsilon (epsilon_greedy) or temperature (boltzmann); null is "
        "from 1 to 0.05 over the first fifth of env.max_frame, or 0 with agent.net.noisy.",
    )

    @classmethod
    def fill(
        cls,
        tree: base.Tree,
        kind: MemoryKind | None,
        env: Mapping[str, Any],
        net: Mapping[str, Any],
    ) -> None:
        max_frame: Any = env.get("max_frame")
        has_budget = isinstance(max_frame, int | float) and max_frame > 0
        if tree.get("explore_var_spec") is not None:
            return
        if net.get("noisy") in (True, 1, "true"):
            tree["explore_var_spec"] = {"name": "no_decay", "start_val": 0.0}
        elif has_budget:
            tree["explore_var_spec"] = {
                "name": "linear_decay",
                "start_val": 1.0,
                "end_val": 0.05,
                "start_step": 0,
                "end_step": max(1, int(EXPLORED_SHARE * max_frame)),
            }


class DQNSpec(ValueBasedSpec):
    """The DQN family; VanillaDQN and DQNBase have no target net, DoubleDQN decouples selection."""

    training_frequency: Count = Key(4, "Transitions between training calls.")
    training_start_step: CountOrZero | None = Key(
        None, "Transitions before the first training call; null is one batch."
    )
    training_iter: Count = Key(1, "Batches per training call.")
    training_batch_iter: Count = Key(1, "Gradient steps per batch.")
    n_step: Count = Key(1, "Rewards summed before the bootstrap.")

    @property
    def is_double(self) -> bool:
        """Whether the online net chooses the action whose value the target net gives."""
        return self.name == "DoubleDQN"

    def pace(self, spec: base.Spec) -> base.Pace:
        return base.Pace(self.training_frequency, self.training_iter * self.training_batch_iter)

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        if not spec.agent.algorithm_info.target_net:
            for key in TARGET_KEYS:
                if getattr(spec.agent.net, key) is not None:
                    message = f"{self.name} has no target net; remove it, or use DQN."
                    findings.problem(f"agent.net.{key}", message)
        base.check_off_policy(spec, findings)


class DistributionalDQNSpec(DQNSpec):
    """Keys of the DQN family where a net says more of the return than its mean."""

    double: Flag = Key(False, "Choose next actions by the online net, as DoubleDQN does.")

    @property
    def is_double(self) -> bool:
        return self.double

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        if spec.agent.net.loss_spec != LossSpec():
            findings.inert.append(f"agent.net.loss_spec ({self.name} has a loss of its own)")


def dqn_record(
    name: str, label: str, style: base.Style, order: int, **keys: Any
) -> base.AlgorithmInfo:
    """Write the record of an algorithm that learns as DQN does."""
    target = REPLACE if keys.get("target_net") else {}
    shared: dict[str, Any] = {
        "spec_class": DQNSpec,
        "implementation": "slm_lab.agent.algorithm.dqn:DQN",
        "memories": frozenset({"replay"}),
        "actions": frozenset({"discrete"}),
        "columns": ("explore_var", "q_value"),
        "action_masks": True,
        "noisy_nets": True,
        "defaults": base.Defaults(replay(64, 100_000), Q_NET, target=target),
    }
    return base.AlgorithmInfo(name=name, label=label, style=style, order=order, **(shared | keys))


RECORDS = (
    dqn_record("VanillaDQN", "DQN", base.Style("orange", "^"), 30, aliases=("DQNBase",)),
    dqn_record("DQN", "DQN", base.Style("orange", "^"), 31, target_net=True),
    dqn_record(
        *("DoubleDQN", "DDQN", base.Style("lightgreen", "<"), 32),
        aliases=("DDQN",),
        per_style=base.Style("vermillion", "v"),
        target_net=True,
    ),
)
