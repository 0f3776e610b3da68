"""SLM Lab: a laboratory for deep reinforcement learning.

    from slm_lab import train
    result = train("PPO", env="CartPole-v1", frames=50_000)

These names are the public surface; anything else may move without notice. They are imported when
first used, so that looking at specs or results never waits for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slm_lab.agent.agent import Agent, make_agent
    from slm_lab.agent.learning.learner import DivergenceError
    from slm_lab.analysis.evaluation import Evaluation
    from slm_lab.analysis.experiment import SearchMetrics
    from slm_lab.analysis.trial import TrialMetrics
    from slm_lab.api.result import Result, load_result
    from slm_lab.api.results import evaluate
    from slm_lab.api.run import RunStopped, SessionsFailed, run
    from slm_lab.api.train import train
    from slm_lab.env.error import EnvError
    from slm_lab.env.make import make_env
    from slm_lab.env.vector import VectorEnv
    from slm_lab.error import LabError
    from slm_lab.playback.saved_agent import load_agent
    from slm_lab.spec import Spec, SpecError, SpecWarning, load_spec
    from slm_lab.spec.run_folder import RunFolderError
    from slm_lab.training.options import RunOptions
    from slm_lab.types import Metrics, Spaces, Transition

_HOME = {
    "Agent": "agent.agent",
    "DivergenceError": "agent.learning.learner",
    "EnvError": "env.error",
    "Evaluation": "analysis.evaluation",
    "LabError": "error",
    "Metrics": "types",
    "Result": "api.result",
    "RunFolderError": "spec.run_folder",
    "RunOptions": "training.options",
    "RunStopped": "api.run",
    "SearchMetrics": "analysis.experiment",
    "SessionsFailed": "api.run",
    "Spaces": "types",
    "Spec": "spec",
    "SpecError": "spec",
    "SpecWarning": "spec",
    "Transition": "types",
    "TrialMetrics": "analysis.trial",
    "VectorEnv": "env.vector",
    "evaluate": "api.results",
    "load_agent": "playback.saved_agent",
    "load_result": "api.result",
    "load_spec": "spec",
    "make_agent": "agent.agent",
    "make_env": "env",
    "run": "api.run",
    "train": "api.train",
}

__all__ = [
    "Agent",
    "DivergenceError",
    "EnvError",
    "Evaluation",
    "LabError",
    "Metrics",
    "Result",
    "RunFolderError",
    "RunOptions",
    "RunStopped",
    "SearchMetrics",
    "SessionsFailed",
    "Spaces",
    "Spec",
    "SpecError",
    "SpecWarning",
    "Transition",
    "TrialMetrics",
    "VectorEnv",
    "evaluate",
    "load_agent",
    "load_result",
    "load_spec",
    "make_agent",
    "make_env",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
