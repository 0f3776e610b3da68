"""Batched envs. Importing this package registers the `probe/...` envs."""

from slm_lab.env.check import EnvReport, check_env
from slm_lab.env.error import EnvError
from slm_lab.env.make import make_env
from slm_lab.env.probe import register_probes
from slm_lab.env.vector import EpisodeStats, VectorEnv

__all__ = ["EnvError", "EnvReport", "EpisodeStats", "VectorEnv", "check_env", "make_env"]

register_probes()
