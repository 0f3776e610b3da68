"""Spec files become frozen, validated data, or a SpecError. Nothing here imports torch."""

from slm_lab.spec.agent import AgentSpec
from slm_lab.spec.algorithm.a2c import ActorCriticSpec
from slm_lab.spec.algorithm.base import (
    AlgorithmSpec,
    ScheduleSpec,
    batches_per_call,
    training_start_step,
)
from slm_lab.spec.algorithm.crossq import CrossQSpec
from slm_lab.spec.algorithm.dqn import DQNSpec
from slm_lab.spec.algorithm.ppo import PPOSpec, ppo_minibatch_size
from slm_lab.spec.algorithm.random import RandomSpec
from slm_lab.spec.algorithm.reinforce import ReinforceSpec
from slm_lab.spec.algorithm.sac import EntropyAnnealSpec, SoftActorCriticSpec
from slm_lab.spec.algorithm.sarsa import SARSASpec
from slm_lab.spec.algorithm.sil import PPOSILSpec, SILSpec
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.error import Problem, SpecError, SpecWarning
from slm_lab.spec.load import (
    SpecCheck,
    UpgradedFile,
    check_file,
    example_sets,
    find_spec_file,
    load_saved_spec,
    load_spec,
    packaged_spec_dir,
    packaged_specs,
    spec_from_dict,
    spec_names,
    upgrade_file,
)
from slm_lab.spec.memory.base import MemorySpec
from slm_lab.spec.memory.on_policy import (
    OnPolicyBatchReplaySpec,
    OnPolicyCrossEntropySpec,
    OnPolicyReplaySpec,
)
from slm_lab.spec.memory.replay import PrioritizedReplaySpec, ReplaySpec
from slm_lab.spec.meta import MetaSpec
from slm_lab.spec.net.base import NetSpec
from slm_lab.spec.net.conv import ConvNetSpec, DuelingConvNetSpec
from slm_lab.spec.net.mlp import DuelingMLPNetSpec, MLPNetSpec
from slm_lab.spec.net.recurrent import RecurrentNetSpec
from slm_lab.spec.net.torch_arc import TorchArcNetSpec
from slm_lab.spec.optim import LossSpec, OptimSpec, SchedulerSpec
from slm_lab.spec.schema import Spec
from slm_lab.spec.search import split_search_key

__all__ = [
    "ActorCriticSpec",
    "AgentSpec",
    "AlgorithmSpec",
    "ConvNetSpec",
    "CrossQSpec",
    "DQNSpec",
    "DuelingConvNetSpec",
    "DuelingMLPNetSpec",
    "EntropyAnnealSpec",
    "EnvSpec",
    "LossSpec",
    "MLPNetSpec",
    "MemorySpec",
    "MetaSpec",
    "NetSpec",
    "OnPolicyBatchReplaySpec",
    "OnPolicyCrossEntropySpec",
    "OnPolicyReplaySpec",
    "OptimSpec",
    "PPOSILSpec",
    "PPOSpec",
    "PrioritizedReplaySpec",
    "Problem",
    "RandomSpec",
    "RecurrentNetSpec",
    "ReinforceSpec",
    "ReplaySpec",
    "SARSASpec",
    "SILSpec",
    "ScheduleSpec",
    "SchedulerSpec",
    "SoftActorCriticSpec",
    "Spec",
    "SpecCheck",
    "SpecError",
    "SpecWarning",
    "TorchArcNetSpec",
    "UpgradedFile",
    "batches_per_call",
    "check_file",
    "example_sets",
    "find_spec_file",
    "load_saved_spec",
    "load_spec",
    "packaged_spec_dir",
    "packaged_specs",
    "ppo_minibatch_size",
    "spec_from_dict",
    "spec_names",
    "split_search_key",
    "training_start_step",
    "upgrade_file",
]
