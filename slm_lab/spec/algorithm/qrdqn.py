"""QR-DQN."""

from __future__ import annotations

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.dqn import DistributionalDQNSpec, dqn_record
from slm_lab.spec.block import Key, Positive, SmallCount


class QRDQNSpec(DistributionalDQNSpec):
    """DQN that learns quantiles of the return of each action."""

    num_quantiles: SmallCount = Key(50, "Quantiles of each action's return; the paper has 200.")
    kappa: Positive = Key(1.0, "Error up to which the quantile Huber loss is quadratic.")


RECORDS = (
    dqn_record(
        *("QRDQN", "QR-DQN", base.Style("sky", "^"), 33),
        spec_class=QRDQNSpec,
        implementation="slm_lab.agent.algorithm.qrdqn:QRDQN",
        target_net=True,
        seconds_saved=4e-3,
    ),
)
