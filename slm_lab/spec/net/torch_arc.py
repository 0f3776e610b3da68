"""Nets that a spec declares layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import model_validator

from slm_lab.spec.block import FreeMapping, invalid, shown, spec_key
from slm_lab.spec.net.base import Activation, NetInfo, NetSpec


class TorchArcNetSpec(NetSpec):
    """A body declared layer by layer in the spec."""

    hid_layers_activation: Activation = spec_key("relu", "Picks the gain of init_fn.")
    arc: FreeMapping | None = spec_key(None, "The body: modules and the graph over them.")
    arc_file: str | None = spec_key(None, "File that holds the arc instead.")

    @model_validator(mode="after")
    def _one_arc(self) -> TorchArcNetSpec:
        if (self.arc is None) == (self.arc_file is None):
            raise invalid("expected exactly one of arc and arc_file", key="arc")
        if self.arc is not None:
            for part in ("modules", "graph"):
                if not isinstance(self.arc.get(part), Mapping):
                    raise invalid(
                        f"found {shown(self.arc.get(part))}; expected a mapping", key=f"arc.{part}"
                    )
        return self

    @property
    def normalizes_batches(self) -> bool:
        return _names_batch_layer(self.arc)


def _names_batch_layer(arc: object) -> bool:
    if isinstance(arc, Mapping):
        layers = [key for key in arc if isinstance(key, str)]
        is_here = any("BatchNorm" in key or "BatchRenorm" in key for key in layers)
        return is_here or any(_names_batch_layer(part) for part in arc.values())
    return isinstance(arc, list | tuple) and any(_names_batch_layer(part) for part in arc)


RECORDS = (NetInfo("TorchArcNet", TorchArcNetSpec, "slm_lab.agent.net.arc:TorchArcNet", order=60),)
