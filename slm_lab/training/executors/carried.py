"""What a notebook or script has defined, on its way to the processes of its sessions.

A session's process imports what a spec names. What the main module defines, and envs that were
registered in this process, cannot be imported there: they are sent by value.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle

from slm_lab.spec import Spec
from slm_lab.spec.main_module import names_in_main, objects_of_main, put_into_main
from slm_lab.spec.trust import MAIN

_EVERYWHERE = ("gymnasium.", "ale_py.")
"""Beginnings of the entry points of envs that every process registers by itself."""


class CannotBeCarried(Exception):
    """Something that a spec names and that cannot be sent to another process; says why."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Objects of the main module and registrations of envs, as bytes; empty if there are none.

    Reading it from a pickle puts them in their place: what names them has to follow it there.
    """

    data: bytes = b""

    def __reduce__(self) -> tuple[Callable[..., Carried], tuple[bytes]]:
        return _arrived, (self.data,)


NOTHING = Carried()


def _arrived(data: bytes) -> Carried:
    if data:
        objects, envs = pickle.loads(data)
        put_into_main(objects)
        if envs:
            from gymnasium import registry  # slow to import, and most sessions need it later

            for packed in envs:
                with suppress(Exception):  # its module is not found here: what makes it says so
                    registered = pickle.loads(packed)
                    registry[registered.id] = registered
    return Carried(data)


def carry(spec: Spec) -> Carried:
    """Pack what a spec names and other processes cannot import. CannotBeCarried if that fails."""
    objects, envs = objects_of_main(spec), []
    for registered in _registered_here(spec):
        try:
            envs.append(cloudpickle.dumps(registered))
        except Exception as error:  # whatever an object raises that cannot be pickled
            if registered.id == spec.env.name:
                raise CannotBeCarried(f"env.name: {registered.id} ({error})") from None
    try:
        return Carried(cloudpickle.dumps((objects, envs)) if objects or envs else b"")
    except Exception as error:
        keys = ", ".join(names_in_main(spec).values())
        raise CannotBeCarried(f"{keys} ({error})") from None


def only_here(spec: Spec) -> str:
    """Names in a spec that lead to something in this process alone; empty if there are none."""
    named = [f"{key}: {MAIN}:{name}" for name, key in names_in_main(spec).items()]
    here = [f"env.name: {each.id}" for each in _registered_here(spec) if each.id == spec.env.name]
    return ", ".join([*named, *here])


def _registered_here(spec: Spec) -> list[Any]:
    """Envs that this process has registered by an object, which no import leads to."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        return []
    found = []
    for each in gymnasium.registry.values():
        place = each.entry_point
        if isinstance(place, str) and place.startswith(f"{MAIN}:"):
            object_of_main = getattr(sys.modules[MAIN], place.removeprefix(f"{MAIN}:"), None)
            each, place = _with_entry_point(each, object_of_main), object_of_main
        is_named = each.id == spec.env.name and not str(place).startswith(_EVERYWHERE)
        is_given = callable(place) and place.__module__ != "gymnasium.envs"  # stubs of old envs
        if is_named or is_given:
            found.append(each)
    return found


def _with_entry_point(registered: Any, entry_point: object) -> Any:
    changed = copy.copy(registered)
    changed.entry_point = entry_point
    return changed
