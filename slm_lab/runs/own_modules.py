"""The user's own modules that a spec needs, as files to send to another machine."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slm_lab.spec import Spec
from slm_lab.spec.run_folder import run_place
from slm_lab.spec.trust import find_module, named_modules

INSTALLED = frozenset({"site-packages", "dist-packages"})


def own_modules(spec: Spec) -> list[Path]:
    """The user's own files and packages that a spec needs on another machine: the modules it names,
    as `env.name` does with `my_module:MyEnv-v0`, and those of his that they import.

    Nothing is run to find them. What is installed is not among them.
    """
    waiting = sorted({module.partition(".")[0] for module in named_modules(spec)})
    named, places = frozenset(waiting), dict[str, Path]()
    while waiting:
        top = waiting.pop()
        place = None if top in places else _own_place(top, is_named=top in named)
        if place is not None:
            places[top] = place
            for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                waiting += _imported_tops(file)
    return [places[top] for top in sorted(places)]


def _own_place(top: str, *, is_named: bool) -> Path | None:
    """File or folder of a top-level module, None if it is installed or nowhere. A folder without
    `__init__.py`, which any name may happen to have, has to be named."""
    found = find_module(top) if top.isidentifier() and top != "slm_lab" else None
    if found is None or not found.places or not (found.file or is_named):
        return None
    place = found.file or found.places[0]
    if place.name == "__init__.py":
        place = place.parent
    is_installed = INSTALLED & {*place.parts} or place.is_relative_to(sysconfig.get_path("stdlib"))
    is_code = place.is_dir() or place.suffix == ".py"
    return place if is_code and not is_installed and not run_place(place) else None


def _imported_tops(file: Path) -> Iterator[str]:
    """Top-level names of the modules that a file imports by their whole names."""
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]
