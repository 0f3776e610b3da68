"""`agent.memory`: one file per kind of memory, with its spec classes and their records."""

from slm_lab.spec.memory.base import MemoryInfo
from slm_lab.spec.record import Registry

MEMORIES: Registry[MemoryInfo] = Registry(__name__, __path__)
