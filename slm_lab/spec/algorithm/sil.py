"""Self-imitation learning beside A2C and PPO."""

from __future__ import annotations

from typing import Any

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.a2c import A2C_COLUMNS, A2C_NET, ActorCriticSpec
from slm_lab.spec.algorithm.ppo import PPO_COLUMNS, PPO_NET, PPOSpec
from slm_lab.spec.block import Block, Count, Key, NonNegative

SIL_COLUMNS = ("sil_policy_loss", "sil_value_loss")


class _SelfImitation(Block):
    sil_policy_loss_coef: NonNegative = Key(1.0, "Weight of the self-imitation policy loss.")
    sil_val_loss_coef: NonNegative = Key(0.1, "Weight of the self-imitation value loss.")
    training_iter: Count = Key(1, "Replay batches per training call.")
    training_batch_iter: Count = Key(1, "Gradient steps per replay batch.")


class SILSpec(_SelfImitation, ActorCriticSpec):
    """Actor-critic with self-imitation."""


class PPOSILSpec(_SelfImitation, PPOSpec):
    """PPO with self-imitation."""


def _record(net: base.Tree, **keys: Any) -> base.AlgorithmInfo:
    memory = {"name": "OnPolicyBatchReplay", "batch_size": 64, "max_size": 100_000}
    return base.AlgorithmInfo(
        implementation="slm_lab.agent.algorithm.sil:SelfImitation",
        critic="keys",
        imitates=True,
        action_masks=True,
        defaults=base.Defaults(memory, net),
        **keys,
    )


RECORDS = (
    _record(
        A2C_NET,
        name="SIL",
        spec_class=SILSpec,
        label="SIL",
        style=base.Style("grey", "P"),
        order=50,
        memories=frozenset({"rollout", "episodes"}),
        columns=A2C_COLUMNS + SIL_COLUMNS,
    ),
    _record(
        PPO_NET,
        name="PPOSIL",
        spec_class=PPOSILSpec,
        label="PPO-SIL",
        style=base.Style("grey", "X"),
        order=70,
        memories=frozenset({"rollout"}),
        columns=PPO_COLUMNS + SIL_COLUMNS,
    ),
)
