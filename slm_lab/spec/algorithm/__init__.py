"""`agent.algorithm`: one file per algorithm, with its spec class and its record.

Adding an algorithm is adding a file: the `RECORDS` of every module of this package are found.
"""

import pkgutil
from importlib import import_module

from slm_lab.spec.algorithm.base import AlgorithmInfo
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.record import Registry

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
_RECORDS = [record for module in _MODULES for record in getattr(module, "RECORDS", ())]
ALGORITHMS: Registry[AlgorithmInfo] = Registry(
    sorted(_RECORDS, key=lambda record: (record.order, record.name)), any_spelling=True
)


def algorithm_label(algorithm: str, memory: str = "") -> str:
    """Label an algorithm for tables and legends, such as `DDQN+PER`; unknown names stay.

    A class of the user's own is labelled by its name, `TD3` of `td3:TD3`, unless one of ours has
    the same.
    """
    info, stored = ALGORITHMS.find(algorithm), MEMORIES.find(memory)
    if info is not None and memory == info.defaults.memory.get("name"):
        return info.label
    label = info.label if info else algorithm.rpartition(":")[2] or algorithm
    if info is None and (label in ALGORITHMS or algorithm_with_label(label)):
        label = algorithm
    return label + (stored.label_suffix if stored else "")


def algorithm_with_label(label: str) -> AlgorithmInfo | None:
    """Find the first record with a label, whatever the memory adds; None for an unknown one."""
    own = label.partition("+")[0]
    return next((info for info in ALGORITHMS.values() if info.label == own), None)
