"""Public names that are imported when first used, as the stub beside a module lists them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def names_of_stub(
    module: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module whose .pyi file imports its names."""
    homes = homes_of_stub(file)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find, lambda: sorted(homes), sorted(homes)


def homes_of_stub(file: str) -> dict[str, str]:
    """The module of each name that the stub beside a module imports."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text())
    return {
        name.name: str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
