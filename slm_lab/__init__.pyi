from slm_lab.agent.agent import Agent as Agent, make_agent as make_agent
from slm_lab.agent.learning.learner import DivergenceError as DivergenceError
from slm_lab.analysis.evaluation import Evaluation as Evaluation
from slm_lab.analysis.experiment import SearchMetrics as SearchMetrics
from slm_lab.analysis.trial import TrialMetrics as TrialMetrics
from slm_lab.api.result import Result as Result, load_result as load_result
from slm_lab.api.results import evaluate as evaluate
from slm_lab.api.run import RunStopped as RunStopped, SessionsFailed as SessionsFailed, run as run
from slm_lab.api.train import train as train
from slm_lab.env.error import EnvError as EnvError
from slm_lab.env.make import make_env as make_env
from slm_lab.env.vector import VectorEnv as VectorEnv
from slm_lab.error import LabError as LabError
from slm_lab.playback.saved_agent import load_agent as load_agent
from slm_lab.spec import (
    Spec as Spec,
    SpecError as SpecError,
    SpecWarning as SpecWarning,
    load_spec as load_spec,
)
from slm_lab.spec.run_folder import RunFolderError as RunFolderError
from slm_lab.training.options import RunOptions as RunOptions
from slm_lab.types import Metrics as Metrics, Spaces as Spaces, Transition as Transition

__all__: list[str]
__version__: str
