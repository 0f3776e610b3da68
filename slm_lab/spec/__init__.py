"""Spec files become frozen, validated data, or a SpecError. Nothing here imports torch."""

from slm_lab.spec.agent import AgentSpec as AgentSpec
from slm_lab.spec.algorithm.base import (
    AlgorithmSpec as AlgorithmSpec,
    ScheduleSpec as ScheduleSpec,
    batches_per_call as batches_per_call,
    training_start_step as training_start_step,
)
from slm_lab.spec.env import EnvSpec as EnvSpec
from slm_lab.spec.error import (
    Problem as Problem,
    SpecError as SpecError,
    SpecWarning as SpecWarning,
)
from slm_lab.spec.load import (
    check_file as check_file,
    example_sets as example_sets,
    find_spec_file as find_spec_file,
    load_saved_spec as load_saved_spec,
    load_spec as load_spec,
    packaged_spec_dir as packaged_spec_dir,
    packaged_specs as packaged_specs,
    read_saved_spec as read_saved_spec,
    spec_from_dict as spec_from_dict,
    spec_names as spec_names,
    upgrade_file as upgrade_file,
)
from slm_lab.spec.memory import MemorySpec as MemorySpec
from slm_lab.spec.net import (
    ConvNetSpec as ConvNetSpec,
    DuelingConvNetSpec as DuelingConvNetSpec,
    DuelingMLPNetSpec as DuelingMLPNetSpec,
    MLPNetSpec as MLPNetSpec,
    MultiInputNetSpec as MultiInputNetSpec,
    NetSpec as NetSpec,
    RecurrentNetSpec as RecurrentNetSpec,
    TorchArcNetSpec as TorchArcNetSpec,
)
from slm_lab.spec.optim import (
    LossSpec as LossSpec,
    OptimSpec as OptimSpec,
    SchedulerSpec as SchedulerSpec,
)
from slm_lab.spec.schema import MetaSpec as MetaSpec, Spec as Spec
from slm_lab.spec.search import split_search_key as split_search_key
