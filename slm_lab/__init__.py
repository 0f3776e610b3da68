"""SLM Lab: a laboratory for deep reinforcement learning.

    from slm_lab import train
    result = train("PPO", env="CartPole-v1", frames=50_000)

The names in __init__.pyi are the public surface; anything else may move without notice. They are
imported when first used, so that looking at specs or results never waits for torch.
"""

from typing import Any

from slm_lab.lazy import names_of_stub

_find, __dir__, __all__ = names_of_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("slm-lab")
    return _find(name)
