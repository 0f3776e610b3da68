"""What a class of your own is made of: an algorithm, net, memory, schedule, loss or distribution.

A spec names it as `module:Class`. The pages docs/how-to/your-own-*.md show each kind; these names
are public as those of `slm_lab` are, and are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slm_lab.agent.algorithm.actor import Actor, Choice, Noise, QExploration, SampledPolicy
    from slm_lab.agent.algorithm.base import (
        SavedInParts,
        Setup,
        initialising,
        make_loss,
        on_policy_learner,
    )
    from slm_lab.agent.algorithm.distribution import (
        ActionDistribution,
        Distribution,
        make_action_distribution,
    )
    from slm_lab.agent.algorithm.nets import (
        ActorCriticNets,
        Critic,
        make_policy_net,
        make_q_net,
    )
    from slm_lab.agent.algorithm.replay_actor_critic import TargetUpdate, TwinCritic
    from slm_lab.agent.algorithm.schedule import LearningRate, LearningRates, scheduled_value
    from slm_lab.agent.learning.learner import (
        Learner,
        NetState,
        State,
        check_finite,
        gradient_update,
        gradients,
        minibatches,
        optimizer_steps,
        replay_minibatches,
    )
    from slm_lab.agent.learning.optimizer import Optimizer
    from slm_lab.agent.memory.make import make_episodes, make_replay, make_rollout
    from slm_lab.agent.memory.replay import FrameReplay, Replay
    from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
    from slm_lab.agent.memory.sampler import PrioritizedSampler, UniformSampler
    from slm_lab.agent.net.mlp import HeadedNet, linear_layers, make_activation, make_net
    from slm_lab.spec import Problem, Spec, SpecError
    from slm_lab.spec.algorithm.base import (
        AlgorithmInfo,
        AlgorithmSpec,
        Defaults,
        DiscountedSpec,
        OffPolicySpec,
        OnPolicySpec,
        Pace,
        ScheduleSpec,
        Style,
        mlp,
    )
    from slm_lab.spec.block import (
        Block,
        Count,
        CountOrZero,
        Findings,
        Flag,
        Fraction,
        Key,
        NonNegative,
        Number,
        Positive,
    )
    from slm_lab.spec.callback import CallbackSpec
    from slm_lab.spec.memory import MemoryInfo, MemorySpec, ReplaySpec, replay
    from slm_lab.spec.net import POLYAK, REPLACE, MLPNetSpec, NetInfo, NetSpec, Widths
    from slm_lab.training.callback import Callback
    from slm_lab.types import Metrics, ReplayBatch, Rollout, Spaces, Transition

_HOMES = {
    "agent.algorithm.actor": "Actor Choice Noise QExploration SampledPolicy",
    "agent.algorithm.base": "SavedInParts Setup initialising make_loss on_policy_learner",
    "agent.algorithm.distribution": "ActionDistribution Distribution make_action_distribution",
    "agent.algorithm.nets": "ActorCriticNets Critic make_policy_net make_q_net",
    "agent.algorithm.replay_actor_critic": "TargetUpdate TwinCritic",
    "agent.algorithm.schedule": "LearningRate LearningRates scheduled_value",
    "agent.learning.learner": (
        "Learner NetState State check_finite gradient_update gradients minibatches optimizer_steps "
        "replay_minibatches"
    ),
    "agent.learning.optimizer": "Optimizer",
    "agent.memory.make": "make_episodes make_replay make_rollout",
    "agent.memory.replay": "FrameReplay Replay",
    "agent.memory.rollout": "EpisodeMemory RolloutMemory",
    "agent.memory.sampler": "PrioritizedSampler UniformSampler",
    "agent.net.mlp": "HeadedNet linear_layers make_activation make_net",
    "spec": "Problem Spec SpecError",
    "spec.algorithm.base": (
        "AlgorithmInfo AlgorithmSpec Defaults DiscountedSpec OffPolicySpec OnPolicySpec Pace "
        "ScheduleSpec Style mlp"
    ),
    "spec.block": (
        "Block Count CountOrZero Findings Flag Fraction Key NonNegative Number Positive"
    ),
    "spec.callback": "CallbackSpec",
    "training.callback": "Callback",
    "spec.memory": "MemoryInfo MemorySpec ReplaySpec replay",
    "spec.net": "MLPNetSpec NetInfo NetSpec POLYAK REPLACE Widths",
    "types": "Metrics ReplayBatch Rollout Spaces Transition",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "POLYAK",
    "REPLACE",
    "ActionDistribution",
    "Actor",
    "ActorCriticNets",
    "AlgorithmInfo",
    "AlgorithmSpec",
    "Block",
    "Callback",
    "CallbackSpec",
    "Choice",
    "Count",
    "CountOrZero",
    "Critic",
    "Defaults",
    "DiscountedSpec",
    "Distribution",
    "EpisodeMemory",
    "Findings",
    "Flag",
    "Fraction",
    "FrameReplay",
    "HeadedNet",
    "Key",
    "Learner",
    "LearningRate",
    "LearningRates",
    "MLPNetSpec",
    "MemoryInfo",
    "MemorySpec",
    "Metrics",
    "NetInfo",
    "NetSpec",
    "NetState",
    "Noise",
    "NonNegative",
    "Number",
    "OffPolicySpec",
    "OnPolicySpec",
    "Optimizer",
    "Pace",
    "Positive",
    "PrioritizedSampler",
    "Problem",
    "QExploration",
    "Replay",
    "ReplayBatch",
    "ReplaySpec",
    "Rollout",
    "RolloutMemory",
    "SampledPolicy",
    "SavedInParts",
    "ScheduleSpec",
    "Setup",
    "Spaces",
    "Spec",
    "SpecError",
    "State",
    "Style",
    "TargetUpdate",
    "Transition",
    "TwinCritic",
    "UniformSampler",
    "Widths",
    "check_finite",
    "gradient_update",
    "gradients",
    "initialising",
    "linear_layers",
    "make_action_distribution",
    "make_activation",
    "make_episodes",
    "make_loss",
    "make_net",
    "make_policy_net",
    "make_q_net",
    "make_replay",
    "make_rollout",
    "minibatches",
    "mlp",
    "on_policy_learner",
    "optimizer_steps",
    "replay",
    "replay_minibatches",
    "scheduled_value",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"slm_lab.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
