from slm_lab.agent.algorithm.actor import (
    Actor as Actor,
    Choice as Choice,
    Noise as Noise,
    QExploration as QExploration,
    SampledPolicy as SampledPolicy,
)
from slm_lab.agent.algorithm.base import (
    SavedInParts as SavedInParts,
    Setup as Setup,
    initialising as initialising,
    make_loss as make_loss,
    on_policy_learner as on_policy_learner,
)
from slm_lab.agent.algorithm.distribution import (
    ActionDistribution as ActionDistribution,
    Distribution as Distribution,
    make_action_distribution as make_action_distribution,
)
from slm_lab.agent.algorithm.nets import (
    ActorCriticNets as ActorCriticNets,
    Critic as Critic,
    make_policy_net as make_policy_net,
    make_q_net as make_q_net,
)
from slm_lab.agent.algorithm.replay_actor_critic import (
    ReplayActorCritic as ReplayActorCritic,
    TargetUpdate as TargetUpdate,
    TwinCritic as TwinCritic,
)
from slm_lab.agent.algorithm.schedule import (
    LearningRate as LearningRate,
    LearningRates as LearningRates,
    scheduled_value as scheduled_value,
)
from slm_lab.agent.learning.learner import (
    Learner as Learner,
    NetState as NetState,
    ReplayRows as ReplayRows,
    State as State,
    check_finite as check_finite,
    gradient_update as gradient_update,
    gradients as gradients,
    minibatches as minibatches,
    optimizer_steps as optimizer_steps,
    replay_minibatches as replay_minibatches,
)
from slm_lab.agent.learning.optimizer import Optimizer as Optimizer
from slm_lab.agent.memory.make import (
    make_episodes as make_episodes,
    make_replay as make_replay,
    make_rollout as make_rollout,
)
from slm_lab.agent.memory.replay import FrameReplay as FrameReplay, Replay as Replay
from slm_lab.agent.memory.rollout import (
    EpisodeMemory as EpisodeMemory,
    RolloutMemory as RolloutMemory,
)
from slm_lab.agent.memory.sampler import (
    PrioritizedSampler as PrioritizedSampler,
    UniformSampler as UniformSampler,
)
from slm_lab.agent.net.mlp import (
    HeadedNet as HeadedNet,
    linear_layers as linear_layers,
    make_activation as make_activation,
    make_net as make_net,
)
from slm_lab.spec import Problem as Problem, Spec as Spec, SpecError as SpecError
from slm_lab.spec.algorithm.base import (
    AlgorithmInfo as AlgorithmInfo,
    AlgorithmSpec as AlgorithmSpec,
    Defaults as Defaults,
    DiscountedSpec as DiscountedSpec,
    OffPolicySpec as OffPolicySpec,
    OnPolicySpec as OnPolicySpec,
    Pace as Pace,
    ScheduleSpec as ScheduleSpec,
    Style as Style,
    mlp as mlp,
)
from slm_lab.spec.block import (
    Block as Block,
    Count as Count,
    CountOrZero as CountOrZero,
    Findings as Findings,
    Flag as Flag,
    Fraction as Fraction,
    Key as Key,
    NonNegative as NonNegative,
    Number as Number,
    Positive as Positive,
)
from slm_lab.spec.callback import CallbackSpec as CallbackSpec
from slm_lab.spec.memory import (
    MemoryInfo as MemoryInfo,
    MemorySpec as MemorySpec,
    ReplaySpec as ReplaySpec,
    replay as replay,
)
from slm_lab.spec.net import (
    POLYAK as POLYAK,
    REPLACE as REPLACE,
    MLPNetSpec as MLPNetSpec,
    NetInfo as NetInfo,
    NetSpec as NetSpec,
    Widths as Widths,
)
from slm_lab.training.callback import Callback as Callback
from slm_lab.types import (
    Metrics as Metrics,
    ReplayBatch as ReplayBatch,
    Rollout as Rollout,
    Spaces as Spaces,
    Transition as Transition,
)

__all__: list[str]
