"""`agent.algorithm`: one file per algorithm, with its spec class and its record."""

from slm_lab.spec.algorithm.base import AlgorithmInfo
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.record import Registry

ALGORITHMS: Registry[AlgorithmInfo] = Registry(__name__, __path__, any_spelling=True)


def algorithm_label(algorithm: str, memory: str = "") -> str:
    """Label an algorithm for tables and legends, such as `DDQN+PER`; unknown names stay."""
    info, stored = ALGORITHMS.find(algorithm), MEMORIES.find(memory)
    return (info.label if info else algorithm) + (stored.label_suffix if stored else "")


def algorithm_with_label(label: str) -> AlgorithmInfo | None:
    """Find the first record with a label, whatever the memory adds; None for an unknown one."""
    own = label.partition("+")[0]
    return next((info for info in ALGORITHMS.values() if info.label == own), None)
