"""What a class of your own is made of: an algorithm, net, memory, schedule, loss or distribution.

A spec names it as `module:Class`. The pages docs/how-to/your-own-*.md show each kind; the names in
extend.pyi are public as those of `slm_lab` are, and are imported when first used.
"""

from slm_lab.lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
