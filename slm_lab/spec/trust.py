"""Modules that a spec names, such as `my_package.envs` of `env.name: my_package.envs:MyEnv-v0`,
or `td3` of `agent.algorithm.name: td3:TD3`.

`import_named_module` is the one way in which a name in a spec becomes running code. A module is
found without running any of it, its packages included, and refused where it lies below a run
folder or a data folder. A spec that was read from a run folder carries a `SpecOrigin`, and has only
those modules imported that the user trusts: those that a flag or SLM_LAB_TRUST names, and those
that were trained with here before. The latter are kept outside of run folders, in a file of the
user's own: `run` of a spec that he has named himself adds each of its modules, with the file that
it is. Such a module counts as trusted only while its name still leads to that file.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from slm_lab.spec.block import shown
from slm_lab.spec.error import Problem, SpecError
from slm_lab.spec.run_folder import run_folder_above, run_place
from slm_lab.spec.search import flatten, split_search_key

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec

TRUST_VARIABLE = "SLM_LAB_TRUST"
MAX_BYTES = 1_000_000
# Keys whose value may begin with a module.
_MODULE_KEY = re.compile(
    r"env\.name"
    r"|(env\.wrappers|meta\.callbacks)(\.\d+)?(\.name)?"
    r"|agent\.(algorithm|memory|net|critic_net)\.(.*\.)?\w*(name|type)"
)
MAIN = "__main__"  # a script or a notebook: never found on disk, and so never remembered
COMMAND = "(command)"  # in place of the file, for a command that was run here


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


def is_own(name: object) -> TypeGuard[str]:
    """Whether a name in a spec is `module:Attribute`, of a module of the user's own."""
    return isinstance(name, str) and ":" in name


def may_import(module: str, origin: SpecOrigin | None) -> bool:
    """Whether a spec of this origin is trusted with a module."""
    return origin is None or module in origin.trusted


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
            _refuse_run_place(module, key, origin, found)
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
        _refuse_run_place(module, key, origin, found)
    if may_import(module, origin):
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
    if module == MAIN:
        return None
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


def _refuse_run_place(module: str, key: str, origin: SpecOrigin | None, found: FoundModule) -> None:
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


def named_modules(spec: Spec) -> dict[str, str]:
    """Map every module that a spec or its search names to the key that names it."""
    named: dict[str, str] = {}
    for key, name in own_names(spec):
        named.setdefault(module_of(name), key)
    return named


def own_names(spec: Spec) -> Iterator[tuple[str, str]]:
    """List (key, `module:Attribute`) of everything of the user's own in a spec or its search."""
    tree = spec.to_dict()
    search = tree.pop("search", None) or {}
    yield from names_in("", tree)
    for key, options in flatten(search):
        for option in options if isinstance(options, list) else ():
            for _, name in names_in(split_search_key(key)[0], option):
                yield f"search.{key}", name


def names_in(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """List (key, `module:Attribute`) of the value at a path of a spec."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from names_in(f"{path}.{key}" if path else key, part)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from names_in(f"{path}.{index}", part)
    elif is_own(value) and module_of(value) and _MODULE_KEY.fullmatch(path):
        yield path, value


def check_modules(spec: Spec, *, to_train: bool = False) -> None:
    """Refuse a spec whose modules may not be imported; callbacks are imported only `to_train`."""
    for key, name in own_names(spec):  # every place: a callback's module may act elsewhere, too
        if to_train or not key.removeprefix("search.").startswith("meta.callbacks"):
            check_named_module(module_of(name), key, spec.origin)


def named_commands(spec: Spec) -> dict[str, str]:
    """Map what the callbacks of a spec start or call, such as `command make`, to its key."""
    starts = {c.starts: f"meta.callbacks.{n}" for n, c in enumerate(spec.meta.callbacks)}
    starts.pop("", None)
    return starts


def check_command(text: str, key: str, origin: SpecOrigin | None) -> None:
    """Refuse a command or webhook of a run folder's spec that the user has not run himself.

    `text` begins with the kind and a space, which no module's name has.
    """
    if origin is None or text in origin.trusted:
        return
    message = (
        f"the spec of a run folder asks for the {text!r}, which never runs unless you have "
        f"trained with exactly that here, or trust it: --trust {shlex.quote(text)}"
    )
    raise _refusal(key, message, origin)


def admit_modules(spec: Spec) -> None:
    """Refuse a spec whose modules may not be imported, before anything is made or written.

    The modules of a spec of the user's own are remembered, so that he can replay what he trains.
    """
    check_modules(spec, to_train=True)
    commands = named_commands(spec)
    for text, key in commands.items():
        check_command(text, key, spec.origin)
    if spec.origin is None:
        for module in named_modules(spec):
            _remember(module)
        for text in commands:
            _remember(text)


def origin_of(spec: Spec, file: Path, trust: Collection[str]) -> SpecOrigin:
    """Make the origin of a spec that was read from a file below a run folder.

    Of the modules that it names it is granted those in `trust`, in SLM_LAB_TRUST, and those that
    the user has trained with before.
    """
    listed = os.environ.get(TRUST_VARIABLE, "").split(",")
    granted = {*trust, *(name.strip() for name in listed)}
    remembered = set(_remembered())
    for module in named_modules(spec):
        if (module, _file_of(module)) in remembered:
            granted.add(module)
    granted |= {text for text in named_commands(spec) if (text, COMMAND) in remembered}
    return SpecOrigin(file, frozenset(granted - {""}))


def trusted_modules(spec: Spec) -> frozenset[str]:
    """Modules that a spec may import, and commands: all that it names, if it is the user's own."""
    if spec.origin is not None:
        return spec.origin.trusted
    return frozenset(named_modules(spec)) | frozenset(named_commands(spec))


def state_folder() -> Path:
    """Folder of what slm-lab keeps between commands: in XDG_STATE_HOME, else ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "slm-lab"


def trust_file() -> Path:
    """The user's record of modules, one JSON line each."""
    return state_folder() / "trusted_modules.jsonl"


def _remember(module: str) -> None:
    file = COMMAND if " " in module else _file_of(module)
    if not file or (module, file) in set(_remembered()):
        return
    line = json.dumps({"module": module, "file": file}) + "\n"
    with suppress(OSError, RuntimeError):  # no home, or a full disk: replays will ask for --trust
        path = trust_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        private = functools.partial(os.open, mode=0o600)
        with open(path, "a", encoding="utf-8", opener=private) as record:
            record.write(line)  # one short line: of two processes at once neither tears the other's


def _remembered() -> Iterator[tuple[str, str]]:
    """Read (module, file) of every valid line; others are skipped."""
    try:
        with open(trust_file(), encoding="utf-8", errors="replace") as record:
            lines = record.read(MAX_BYTES).splitlines()
    except (OSError, RuntimeError):
        return
    for line in lines:
        try:
            entry = json.loads(line)
            yield str(entry["module"]), str(entry["file"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _file_of(module: str) -> str:
    """Find the file that a module name leads to now, with links followed; empty if none."""
    found = find_module(module)
    return str(found.file.resolve()) if found is not None and found.file is not None else ""
