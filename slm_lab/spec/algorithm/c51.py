"""C51, and Rainbow, which is all extensions of DQN around it."""

from __future__ import annotations

from pydantic import Field, model_validator

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.dqn import Q_NET, DistributionalDQNSpec, dqn_record
from slm_lab.spec.block import Count, Flag, Key, Number, SmallCount, invalid
from slm_lab.spec.memory import replay
from slm_lab.spec.net import REPLACE

_HOW = "of r a step it is r / (1 - gamma)"


class C51Spec(DistributionalDQNSpec):
    """DQN that learns the probabilities of returns, on atoms between two bounds."""

    num_atoms: SmallCount = Key(51, "Atoms of the support, at least 2.")
    v_min: Number = Field(
        description="Smallest return on the support: discounted, of the rewards that are learned "
        f"from; {_HOW}. Atari with clipped rewards: -10."
    )
    v_max: Number = Field(description=f"Largest return on the support; {_HOW}. Atari: 10.")

    @model_validator(mode="after")
    def _support_is_a_range(self) -> C51Spec:
        if self.v_max <= self.v_min:
            raise invalid(
                f"found {self.v_max:g}; expected more than v_min = {self.v_min:g}", "v_max"
            )
        if self.num_atoms < 2:
            raise invalid(f"found {self.num_atoms}; expected at least 2", "num_atoms")
        return self


class RainbowSpec(C51Spec):
    """C51 with double selection and n-step returns; its nets are dueling and noisy unless given."""

    double: Flag = Key(True, "Choose next actions by the online net, as DoubleDQN does.")
    n_step: Count = Key(3, "Rewards summed before the bootstrap.")


RECORDS = (
    dqn_record(
        *("C51", "C51", base.Style("brown", "^"), 34),
        spec_class=C51Spec,
        implementation="slm_lab.agent.algorithm.c51:C51",
        aliases=("CategoricalDQN",),
        target_net=True,
    ),
    dqn_record(
        *("Rainbow", "Rainbow", base.Style("pink", "v"), 35),
        spec_class=RainbowSpec,
        implementation="slm_lab.agent.algorithm.c51:C51",
        target_net=True,
        defaults=base.Defaults(
            {**replay(64, 100_000), "name": "PrioritizedReplay", "alpha": 0.5},
            Q_NET | {"type": "DuelingMLPNet", "noisy": True},
            target=REPLACE,
        ),
    ),
)
