"""Seeds of benchmark runs: derived from the spec, so that nobody picks one.

The fingerprint of a spec is the SHA-256 of its training keys as canonical JSON: one object of
dotted keys in alphabetical order, without spaces, a whole number without a decimal point. A
training key is one that changes what is trained or what is measured of it. Two kinds are left out:

- `FREE`: names, seed and number of sessions, the search, and how a machine does the work;
- keys with their default value, given or not. So a new key of the lab leaves every fingerprint as
  it is, and writing out a default draws no new seeds.

When a default changes, the old one goes into `FIRST_DEFAULTS`: fingerprints of specs that state
either value stay, and those of specs that rely on the default change, because their training does.

    seed of trial i = the first 31 bits of SHA-256("{fingerprint} {i}")
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from slm_lab.spec import Spec
from slm_lab.spec.block import Block
from slm_lab.spec.optim import OPTIMIZERS, OptimSpec

_FREE = """
name search agent.name agent.net.gpu agent.net.cuda_id agent.critic_net.gpu
agent.critic_net.cuda_id env.device env.num_threads meta.random_seed meta.max_session meta.max_trial
meta.search_resources meta.search_scheduler meta.search_sampler meta.checkpoint_frequency
meta.compile meta.compile_mode meta.threads meta.extended
"""
FREE = frozenset(_FREE.split())
_BLOCKS = frozenset(
    ["agent", "env", "meta", "agent.algorithm", "agent.memory", "agent.net", "agent.critic_net"]
)
FIRST_DEFAULTS: dict[str, Any] = {}


def fingerprint(spec: Spec) -> str:
    """SHA-256 of the training keys of a spec."""
    return hashlib.sha256(canonical(training_keys(spec)).encode()).hexdigest()


def derived_seed(fingerprint: str, trial: int) -> int:
    """The seed of a trial of the spec with this fingerprint."""
    digest = hashlib.sha256(f"{fingerprint} {trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def training_keys(spec: Spec) -> dict[str, Any]:
    """Dotted keys that shape a training, with their values, unless that is the default."""
    keys = dict(_set_keys(spec, ""))
    if not spec.meta.rigorous_eval:
        keys.pop("meta.eval_frequency", None)
    return keys


def changed_keys(spec: Spec, ran: Spec) -> list[str]:
    """Training keys in which two specs differ."""
    ours, theirs = training_keys(spec), training_keys(ran)
    keys = sorted(ours.keys() | theirs.keys())
    return [key for key in keys if canonical(ours.get(key)) != canonical(theirs.get(key))]


def canonical(value: Any) -> str:
    """JSON text of a value, the same for equal values."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _set_keys(block: Block, prefix: str) -> Iterator[tuple[str, Any]]:
    """Keys of a block that are required or not at their default, those of blocks inside dotted."""
    fields = type(block).model_fields
    for name, value in block:  # extra keys of a user's own class too
        key, field = f"{prefix}{name}", fields.get(name)
        if key in FREE:
            continue
        if key in _BLOCKS and value is not None:
            yield from _set_keys(value, f"{key}.")
        elif field is None or value != FIRST_DEFAULTS.get(key, _default(field)):
            yield key, value


def _default(field: FieldInfo) -> Any:
    """The default of a key; of a required one, what no value equals."""
    return field.get_default(call_default_factory=True, validated_data={})


def _plain(value: Any) -> Any:
    """Blocks, tuples and whole floats as JSON has them; optimisers without torch's defaults."""
    if isinstance(value, OptimSpec):
        known = OPTIMIZERS.get(value.name, {})
        given = {k: v for k, v in value.kwargs.items() if k not in known or v != known[k]}
        return {"name": value.name, **_plain(given)}
    if isinstance(value, Block):
        return _plain({key[1:]: item for key, item in _set_keys(value, ".")})
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
