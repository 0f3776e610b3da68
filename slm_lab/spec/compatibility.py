"""Compatibility of features with each other and with algorithms, for specs, docs and tests.

A pair of features, or of a feature and an algorithm, is one of three: *refused* because `REFUSALS`
lists it, *not applicable* because no algorithm has both keys, or *accepted*. Every accepted pair is
trained, resumed and evaluated by tests/test_compatibility.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.algorithm.base import AlgorithmInfo
from slm_lab.spec.error import Problem

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec


class Algorithms(frozenset[str]):
    """Names of our learning algorithms whose record has something; `has` asks that of any other."""

    has: Callable[[AlgorithmInfo], bool]


def _algorithms(has: Callable[[AlgorithmInfo], bool]) -> Algorithms:
    names = Algorithms(name for name, info in ALGORITHMS.items() if info.learns and has(info))
    names.has = has
    return names


LEARNING = tuple(name for name, info in ALGORITHMS.items() if info.learns)
"""The algorithms of the table."""
_SAMPLING = _algorithms(lambda info: info.imitates or "replay" in info.memories)
_EPISODIC = _algorithms(lambda info: "episodes" in info.memories)
_PRIVILEGED = _algorithms(lambda info: info.privileged_critic)
_DISCRETE = _algorithms(lambda info: "discrete" in info.actions)  # the games that have lives, too


@dataclass(frozen=True, slots=True)
class Feature:
    """An option that changes what is stored, sampled or learned."""

    name: str
    key: str  # the spec key that turns it on
    is_on: Callable[[Spec], object]  # truthy where the spec has it
    algorithms: frozenset[str] = frozenset(LEARNING)  # those that have the key


def _having(*keys: str) -> frozenset[str]:
    """The algorithms whose block has one of these keys."""
    return _algorithms(lambda info: bool(info.spec_class.model_fields.keys() & set(keys)))


def _algorithm_flag(key: str) -> Feature:
    """The feature that a flag of the algorithm's block turns on, or a number in place of null."""

    def is_on(spec: Spec) -> bool:
        return bool(getattr(spec.agent.algorithm, key, False))

    return Feature(key, f"agent.algorithm.{key}", is_on, _having(key))


def _sums_rewards(spec: Spec) -> bool:
    algorithm: Any = spec.agent.algorithm
    if getattr(algorithm, "n_step", 1) > 1:
        return True
    return getattr(algorithm, "num_step_returns", None) is not None and algorithm.lam is None


def _has_unit_weights(spec: Spec) -> bool:
    return spec.agent.net.unit_weights or spec.agent.critic.unit_weights


def _reads_parts(spec: Spec) -> bool:
    return spec.agent.net.reads_parts(())


FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature("recurrent net", "agent.net.type", lambda s: s.agent.net.sequence_length),
        Feature(
            "n-step", "agent.algorithm.n_step", _sums_rewards, _having("n_step", "num_step_returns")
        ),
        Feature("PER", "agent.memory.name", lambda s: s.agent.memory.prioritizes, _SAMPLING),
        Feature("CER", "agent.memory.use_cer", lambda s: s.agent.memory.use_cer, _SAMPLING),
        Feature(
            "whole episodes",
            "agent.memory.name",
            lambda s: s.agent.memory_info.kind == "episodes",
            _EPISODIC,
        ),
        Feature("frame stack", "env.frame_stack", lambda s: s.env.frame_stack > 1),
        Feature(
            "life loss",
            "env.life_loss_info",
            lambda s: s.env.kwargs.get("life_loss_info"),
            _DISCRETE,
        ),
        Feature("normalize_obs", "env.normalize_obs", lambda s: s.env.normalize_obs),
        Feature("normalize_reward", "env.normalize_reward", lambda s: s.env.normalize_reward),
        _algorithm_flag("normalize_v_targets"),
        Feature("privileged critic", "env.privileged", lambda s: s.env.privileged),
        Feature("distributed", "meta.distributed", lambda s: s.meta.distributed),
        Feature("parallel learners", "meta.threads", lambda s: (s.meta.threads or 1) > 1),
        Feature("shared net", "agent.net.shared", lambda s: s.agent.net.shared, _having("lam")),
        Feature(
            "batch norm",
            "agent.net.batch_norm",
            lambda s: s.agent.net.normalizes_batches or s.agent.critic.normalizes_batches,
        ),
        Feature("unit weights", "agent.net.unit_weights", _has_unit_weights),
        Feature(
            "noisy net", "agent.net.noisy", lambda s: s.agent.net.noisy or s.agent.critic.noisy
        ),
        Feature(
            "categorical critic",
            "agent.algorithm.critic",
            lambda s: s.agent.algorithm.largest_return is not None,
            _having("critic"),
        ),
        _algorithm_flag("symlog"),
        _algorithm_flag("clip_vloss"),
        _algorithm_flag("target_kl"),
        Feature("multi-discrete actions", "env.name", lambda s: False),  # seen once there is an env
        Feature("action masks", "env.action_mask", lambda s: False),  # so are these
        Feature("dict observations", "agent.net.type", _reads_parts),
        Feature("rows on a device", "env.dlpack", lambda s: s.env.kwargs.get("dlpack")),
        Feature("several envs", "env.num_envs", lambda s: s.env.num_envs > 1),
        Feature("compiled", "meta.compile", lambda s: s.meta.compile == "on"),
        Feature("bfloat16", "meta.precision", lambda s: s.meta.precision == "bfloat16"),
    )
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pair that a spec cannot combine: a feature, and another feature or some algorithms."""

    feature: str
    other: str | Algorithms
    why: str  # and what to do


REFUSALS = (
    Refusal(
        "recurrent net",
        _algorithms(lambda info: not info.recurrent),
        "it learns from single transitions and has no recurrent form. "
        "Use MLPNet, or PPO or DQN with RecurrentNet.",
    ),
    Refusal(
        "batch norm",
        _algorithms(lambda info: "replay" not in info.memories),
        "a policy that learns under batch statistics is not the one that acted. "
        "Set batch_norm to false, or use layer_norm.",
    ),
    Refusal(
        "noisy net",
        _algorithms(lambda info: not info.noisy_nets),
        "it explores in a way of its own. Set noisy to false, or use DQN, QRDQN or Rainbow.",
    ),
    Refusal(
        "privileged critic",
        _algorithms(lambda info: not info.privileged_critic),
        f"it is for {' and '.join(name for name in LEARNING if name in _PRIVILEGED)}. "
        "Set env.privileged to false.",
    ),
    Refusal(
        "privileged critic",
        "shared net",
        "it needs a critic net of its own. Set agent.net.shared to false.",
    ),
    Refusal(
        "privileged critic",
        "recurrent net",
        "it has no recurrent form. Use MLPNet or TorchArcNet, or set env.privileged to false.",
    ),
    Refusal(
        "recurrent net",
        "life loss",
        "lives are lost in Atari games, and a RecurrentNet reads vectors, not images. "
        "Use ConvNet with env.frame_stack.",
    ),
    Refusal(
        "privileged critic",
        "frame stack",
        "an observation that is partly privileged cannot be stacked. "
        "Set env.frame_stack to 1, or env.privileged to false.",
    ),
    Refusal(
        "normalize_v_targets",
        "distributed",
        "the value scale would be each worker's own. Set one of them to false.",
    ),
    Refusal(
        "normalize_obs",
        "distributed",
        "the statistics would be each worker's own under nets that all share. "
        "Set one of them to false.",
    ),
    Refusal(
        "normalize_reward",
        "distributed",
        "the statistics would be each worker's own under nets that all share. "
        "Set one of them to false, or use env.reward_scale.",
    ),
    Refusal(
        "normalize_v_targets",
        "unit weights",
        "it rescales the value head, whose rows have norm 1. Set one of them to false.",
    ),
    Refusal(
        "categorical critic",
        "symlog",
        "its loss is the cross-entropy of atoms, not of one number. Set symlog to false.",
    ),
    Refusal(
        "multi-discrete actions",
        _algorithms(lambda info: "multi_discrete" not in info.actions),
        "it has no form for several discrete actions at once. Use PPO.",
    ),
    Refusal(
        "action masks",
        _algorithms(lambda info: not info.action_masks),
        "a mask says which of several discrete actions are allowed, and its actions are numbers. "
        "Set env.action_mask to false, or use PPO or DQN.",
    ),
)

# Pairs that no spec can write: the net has no such key, or no env has both.
_APART = (
    {"recurrent net", "batch norm"},
    {"recurrent net", "dict observations"},
    {"batch norm", "dict observations"},
    {"life loss", "dict observations"},
    {"privileged critic", "dict observations"},
    {"rows on a device", "dict observations"},
    {"multi-discrete actions", "dict observations"},
    {"life loss", "privileged critic"},
    {"life loss", "multi-discrete actions"},
    {"life loss", "action masks"},
    {"privileged critic", "action masks"},
    {"rows on a device", "action masks"},
)

Verdict = Literal["accepted", "refused", "not applicable"]


def refusal_of(feature: str, other: str) -> Refusal | None:
    """Find the refusal of a feature with another one or an algorithm; None if there is none."""
    for refusal in REFUSALS:
        if isinstance(refusal.other, frozenset):
            if refusal.feature == feature and other in refusal.other:
                return refusal
        elif {refusal.feature, refusal.other} == {feature, other}:
            return refusal
    return None


def verdict_with_algorithm(feature: str, algorithm: str) -> Verdict:
    if algorithm not in FEATURES[feature].algorithms:
        return "not applicable"
    return "refused" if refusal_of(feature, algorithm) else "accepted"


def algorithms_with(*features: str) -> list[str]:
    """The algorithms that take all of these features."""
    return [
        name
        for name in LEARNING
        if all(verdict_with_algorithm(feature, name) == "accepted" for feature in features)
    ]


def verdict(feature: str, other: str) -> Verdict:
    """Decide whether one spec can have two features."""
    if refusal_of(feature, other):
        return "refused"
    is_apart = {feature, other} in _APART
    return "accepted" if algorithms_with(feature, other) and not is_apart else "not applicable"


def problems_of(spec: Spec) -> Iterator[Problem]:
    """Problems for every refusal that applies to a spec, naming both keys."""
    algorithm = spec.agent.algorithm_info
    on = {name for name, feature in FEATURES.items() if feature.is_on(spec)}
    for refusal in REFUSALS:
        if refusal.feature not in on:
            continue
        if isinstance(refusal.other, Algorithms):
            is_refused = algorithm.learns and refusal.other.has(algorithm)
            other = f"agent.algorithm.name: {algorithm.name}" if is_refused else None
        else:
            other = FEATURES[refusal.other].key if refusal.other in on else None
        if other is not None:
            key = FEATURES[refusal.feature].key
            yield Problem(key, f"does not go with {other}: {refusal.why}")


_PAGE = """\
# Compatibility

Written by `slm-lab spec --compatibility > docs/COMPATIBILITY.md` from the file that refuses specs,
`slm_lab/spec/compatibility.py`; a test keeps the two equal. Every cell marked `yes` is trained,
stopped, resumed bit for bit and evaluated by `tests/test_compatibility.py`: a feature with each
algorithm, and each pair of features with one of the algorithms that take both
(`pytest -m compatibility` takes all of them, and compiled steps). `no` is refused by name, with the
reason below. `-` does not apply: no algorithm has both keys.
"""


def compatibility_page() -> str:
    """Write the tables of all pairs in Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield _PAGE
    yield "## Features and algorithms\n"
    yield from _markdown(LEARNING, verdict_with_algorithm)
    yield "\n## Features and features\n"
    yield from _markdown(tuple(FEATURES), verdict)
    pairs = [verdict(*pair) for pair in itertools.combinations(FEATURES, 2)]
    both = pairs + [verdict_with_algorithm(f, a) for f in FEATURES for a in LEARNING]
    counts = ", ".join(f"{both.count(each)} {each}" for each in get_args(Verdict))
    yield f"\n{len(both)} pairs: {counts}.\n"
    yield "## What turns a feature on\n"
    yield "| feature | key |\n|---|---|"
    yield from (f"| {feature.name} | `{feature.key}` |" for feature in FEATURES.values())
    yield "\n## Why not\n"
    for refusal in REFUSALS:
        others = [refusal.other] if isinstance(refusal.other, str) else sorted(refusal.other)
        yield f"- **{refusal.feature}** and {', '.join(others)}: {refusal.why}"


def _markdown(others: tuple[str, ...], judge: Callable[[str, str], Verdict]) -> Iterator[str]:
    cells = {"accepted": "yes", "refused": "no", "not applicable": "-"}
    yield "| | " + " | ".join(others) + " |"
    yield "|---" * (len(others) + 1) + "|"
    for feature in FEATURES:
        row = ["" if feature == other else cells[judge(feature, other)] for other in others]
        yield f"| **{feature}** | " + " | ".join(row) + " |"
