"""Modules that a spec names, such as `my_package.envs` of `env.name: my_package.envs:MyEnv-v0`.

`import_named_module` is the one way in which a name in a spec becomes running code. A module is
found without running any of it, its packages included, and refused where it lies below a run
folder or a data folder. A spec that was read from a run folder carries a `SpecOrigin`, and has only
those modules imported that the user trusts (`trust.py`).
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from slm_lab.spec.block import shown
from slm_lab.spec.error import Problem, SpecError
from slm_lab.spec.run_places import run_folder_above, run_place

TRUST_VARIABLE = "SLM_LAB_TRUST"


@dataclass(frozen=True, slots=True)
class SpecOrigin:
    """The file below a run folder that a spec was read from, and the modules trusted to it."""

    file: Path
    trusted: frozenset[str]


@dataclass(frozen=True, slots=True)
class FoundModule:
    """A module that has not been imported: `file` is what importing it would run, `places` are the
    files and folders of the module and of every package it is in."""

    file: Path | None
    places: tuple[Path, ...]


def module_of(name: str) -> str:
    """Module part of a name, `my_envs` of `my_envs:MyEnv-v0`; empty without a colon."""
    return name.rpartition(":")[0]


def import_named_module(module: str, key: str, origin: SpecOrigin | None) -> None:
    """Import the module that a spec names under `key`, or refuse it.

    `origin` is None for a spec of the user's own: one in a file of his, or built in Python. Raises
    SpecError for a module that is refused, ModuleNotFoundError for one that is not there.
    """
    check_named_module(module, key, origin)
    _settle_search_path()
    for name in _with_packages(module):
        # Found again one by one: a package that has been imported may have changed its path.
        found = find_module(name)
        if found is not None:
            _refuse_run_places(module, key, origin, found)
        elif name not in sys.modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        importlib.import_module(name)


def check_named_module(module: str, key: str, origin: SpecOrigin | None) -> None:
    """Refuse what `import_named_module` would refuse, with nothing imported."""
    if not all(part.isidentifier() for part in module.split(".")):
        message = f"found {shown(module)} before the colon; expected a module, as my_package.envs"
        raise _refusal(key, message, origin)
    found = find_module(module)
    if found is not None:
        _refuse_run_places(module, key, origin, found)
    if origin is None or module in origin.trusted:
        return
    where = "not found from here" if found is None else found.file or "no file"
    message = (
        f"the spec of a run folder asks for code of the module `{module}` ({where}), which runs "
        f"only if you trust it. If you do: --trust {module}, trust=({module!r},) in Python, or "
        f"{TRUST_VARIABLE}={module} in the shell"
    )
    raise _refusal(key, message, origin)


def find_module(module: str) -> FoundModule | None:
    """Find where a module would be imported from, running nothing; None if it is nowhere."""
    places: list[Path] = []
    path: Iterable[str] | None = None
    file: Path | None = None
    for name in _with_packages(module):
        spec = _find_top(name) if path is None else _find_in(name, path)
        if spec is None:
            return None
        locations = list(spec.submodule_search_locations or ())
        file = Path(spec.origin).absolute() if spec.has_location and spec.origin else None
        places += [*([file] if file else ()), *map(Path, locations)]
        loaded = sys.modules.get(name)
        path = list(getattr(loaded, "__path__", None) or locations)
    return FoundModule(file, tuple(places))


def _with_packages(module: str) -> Iterator[str]:
    """List a module and its packages in the order of import: a, a.b, a.b.c for `a.b.c`."""
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _find_top(name: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is PathFinder:
            found = _find_in(name, [*sys.path, os.getcwd()])
        else:
            find_spec = getattr(finder, "find_spec", None)
            found = find_spec(name, None) if find_spec else None
        if found is not None:
            return found
    return None


def _find_in(name: str, path: Iterable[str]) -> ModuleSpec | None:
    """What Python's own search of a path finds. That one needs the parent package to be imported
    for a namespace package, and importing is what must not happen yet."""
    portions: list[str] = []
    for entry in path:
        finder = pkgutil.get_importer(entry or os.getcwd())
        found = finder.find_spec(name) if finder else None
        if found is None:
            continue
        if found.loader is not None:
            return found
        portions += found.submodule_search_locations or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _refuse_run_places(
    module: str, key: str, origin: SpecOrigin | None, found: FoundModule
) -> None:
    for place in found.places:
        if folder := run_place(place):
            message = (
                f"the module `{module}` would come from {place}, which belongs to runs ({folder}): "
                "no code is ever imported from there. Keep a module that you trust elsewhere, and "
                "name that"
            )
            raise _refusal(key, message, origin)


def _refusal(key: str, message: str, origin: SpecOrigin | None) -> SpecError:
    return SpecError([Problem(key, message)], str(origin.file) if origin else "the spec")


def _settle_search_path() -> None:
    """Let modules of the working directory be found, last, so that nothing installed is shadowed.

    It stays, for imports that an env makes later. Run folders leave the path for the same reason.
    """
    here = os.getcwd()
    if here not in sys.path and run_place(Path(here)) is None:
        sys.path.append(here)
    sys.path[:] = [entry for entry in sys.path if run_folder_above(Path(entry or here)) is None]
