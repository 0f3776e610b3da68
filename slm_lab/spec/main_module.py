"""Classes and functions of the main module, a script or a notebook, that a spec names.

A spec names them as those of any module, `__main__:MyNet`. Another process has another main module:
sessions in processes of their own get them by value, and nobody else can import them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from slm_lab.spec.error import Problem, SpecError
from slm_lab.spec.schema import Spec
from slm_lab.spec.trust import MAIN, module_of, own_names


def names_in_main(spec: Spec) -> dict[str, str]:
    """Map names of the main module that a spec holds to the keys that hold them."""
    own = (
        (name.rpartition(":")[2], key) for key, name in own_names(spec) if module_of(name) == MAIN
    )
    return dict(own)


def objects_of_main(spec: Spec) -> dict[str, Any]:
    """The objects themselves, by name."""
    main = sys.modules[MAIN]
    return {name: getattr(main, name) for name in names_in_main(spec) if hasattr(main, name)}


def put_into_main(objects: Mapping[str, Any]) -> None:
    """Let specs that are built from now on find these objects in the main module."""
    vars(sys.modules[MAIN]).update(objects)


@contextmanager
def without_main_module() -> Iterator[None]:
    """Hide the main module, which a spawned process would import first, and so run again."""
    main = sys.modules[MAIN]
    sys.modules[MAIN] = ModuleType(MAIN)
    try:
        yield
    finally:
        sys.modules[MAIN] = main


def place_of(thing: Any, key: str) -> str:
    """The `module:Name` of a class or function, by which a spec names it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if is_importable(thing):
        return f"{module}:{name}"
    fix = "Define it at the top of a module or of a notebook cell, under a name of its own."
    found = f"{module}:{name} cannot be found by its name"
    raise SpecError([Problem(key, f"{found}. {fix}")], "train")


def is_importable(thing: Any) -> bool:
    """Whether a class or function is what its module has under its name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    return bool(name) and getattr(sys.modules.get(str(module)), name, None) is thing
