"""SLM Lab: a laboratory for deep reinforcement learning.

    from slm_lab import train
    result = train("PPO", env="CartPole-v1", frames=50_000)

The names in __init__.pyi are the public surface; anything else may move without notice. They are
imported when first used, so that looking at specs or results never waits for torch.
"""

from slm_lab.lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
