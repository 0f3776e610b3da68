"""Trusted modules: those that a spec from a run folder may import.

Trusted is what a flag or the variable SLM_LAB_TRUST names, and what was trained with here before.
The latter is kept outside of run folders, in a file of the user's own: `run` of a spec that he has
named himself adds each of its modules, with the file that it is. Such a module counts as trusted
only while its name still leads to that file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slm_lab.spec.named_module import (
    TRUST_VARIABLE,
    SpecOrigin,
    check_named_module,
    find_module,
    module_of,
)
from slm_lab.spec.schema import Spec
from slm_lab.spec.search import split_search_key

# Keys of a spec whose value may name a module, as `module:Name`.
MODULE_KEYS = ("env.name",)
MAX_BYTES = 1_000_000


def named_modules(spec: Spec) -> dict[str, str]:
    """Map every module that a spec or its search names to the key that names it."""
    named: dict[str, str] = {}
    for key in MODULE_KEYS:
        named.setdefault(_module_at(spec.to_dict(), key.split(".")), key)
        for search_key, options in spec.search.items():
            path, _ = split_search_key(search_key)
            if f"{key}.".startswith(f"{path}."):
                rest = key.removeprefix(path).strip(".")
                for option in options:
                    module = _module_at(option, rest.split(".") if rest else [])
                    named.setdefault(module, f"search.{search_key}")
    named.pop("", None)
    return named


def admit_modules(spec: Spec) -> None:
    """Refuse a spec whose modules may not be imported, before anything is made or written.

    The modules of a spec of the user's own are remembered, so that he can replay what he trains.
    """
    modules = named_modules(spec)
    for module, key in modules.items():
        check_named_module(module, key, spec.origin)
    if spec.origin is None:
        for module in modules:
            _remember(module)


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
    return SpecOrigin(file, frozenset(granted - {""}))


def trusted_modules(spec: Spec) -> frozenset[str]:
    """Modules that a spec may import: all that it names, if it is the user's own."""
    return frozenset(named_modules(spec)) if spec.origin is None else spec.origin.trusted


def state_folder() -> Path:
    """Folder of what slm-lab keeps between commands: in XDG_STATE_HOME, else ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "slm-lab"


def trust_file() -> Path:
    """The user's record of modules, one JSON line each."""
    return state_folder() / "trusted_modules.jsonl"


def _remember(module: str) -> None:
    file = _file_of(module)
    if not file or (module, file) in set(_remembered()):
        return
    line = json.dumps({"module": module, "file": file}) + "\n"
    with suppress(OSError, RuntimeError):  # no home, or a full disk: replays will ask for --trust
        path = trust_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path, "a", encoding="utf-8", opener=_private) as record:
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


def _module_at(tree: Any, path: list[str]) -> str:
    for part in path:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return module_of(tree) if isinstance(tree, str) else ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
