"""Classes of the user's own, which a spec names as `module:Class` where it could name one of ours.

A class states itself by its attributes: `record`, an AlgorithmInfo, MemoryInfo or NetInfo without
implementation, and `spec_class` for the keys of its block. A subclass of one of ours has the record
of its base. Where the module may not be imported, in a spec of a run folder that nobody trusts, the
block is opaque: any keys, not validated, so that the run can still be listed and compared.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from slm_lab.spec.algorithm.base import ActionKind, AlgorithmInfo, AlgorithmSpec, Defaults
from slm_lab.spec.block import Findings, is_number, shown
from slm_lab.spec.error import Problem, SpecError, did_you_mean
from slm_lab.spec.memory import MemoryInfo, MemoryKind, MemorySpec
from slm_lab.spec.net import NetInfo, NetSpec
from slm_lab.spec.record import Record, RecordT, Registry
from slm_lab.spec.trust import SpecOrigin, import_named_module, is_own, may_import, module_of

_ASKED: dict[type[Record[Any]], str] = {
    AlgorithmInfo: "record = AlgorithmInfo(...)",
    MemoryInfo: 'record = MemoryInfo(..., kind="replay")',
    NetInfo: "spec_class = ..., a NetSpec",
}


def find_record(
    registry: Registry[RecordT], name: object, key: str, origin: SpecOrigin | None
) -> RecordT | None:
    """Find the record that a block's `name` or `type` picks, of ours or of the user's own.

    None if there is none of ours; SpecError if the user's module or class is not as it must be.
    """
    if not is_own(name):
        return registry.find(name)
    if may_import(module_of(name), origin):
        return _own_record(registry, name, key, origin)
    return replace(_opaque_record(registry), name=name)


def find_record_or_none(
    registry: Registry[RecordT], name: object, origin: SpecOrigin | None
) -> RecordT | None:
    """The same, where somebody else reports what is wrong."""
    try:
        return find_record(registry, name, "", origin)
    except SpecError:
        return None


def is_opaque(record: Record[Any]) -> bool:
    """Whether the record stands for a class that may not be imported."""
    return not record.implementation


def import_object(name: str, key: str, origin: SpecOrigin | None) -> Any:
    """Import the user's module of `module:Attribute`, which must be admitted; give the attribute.

    Whatever goes wrong is a SpecError that names the key.
    """
    module, _, attribute = name.rpartition(":")
    try:
        import_named_module(module, key, origin)
    except SpecError:
        raise
    except ModuleNotFoundError as error:
        message = (
            f"cannot import `{module}` of `{name}` ({error}). Expected a module that defines "
            f"`{attribute}`. Run from the folder that holds it, or install its package"
        )
        raise SpecError([Problem(key, message)], "the spec") from error
    except Exception as error:  # whatever the user's code does while it is imported
        frames = traceback.extract_tb(error.__traceback__)
        at = f"{frames[-1].filename}, line {frames[-1].lineno}"
        if isinstance(error, SyntaxError):
            at = f"{error.filename}, line {error.lineno}"
        message = f"importing `{module}` failed: {type(error).__name__}: {error} ({at})"
        raise SpecError([Problem(key, message)], "the spec") from error
    found = sys.modules[module]
    if hasattr(found, attribute):
        return getattr(found, attribute)
    known = [word for word in vars(found) if not word.startswith("_")]
    message = f"`{module}` has no `{attribute}`. {did_you_mean(attribute, known)}"
    raise SpecError([Problem(key, message)], "the spec")


def check_arguments(
    name: str,
    arguments: Mapping[str, Any] | None,
    path: str,
    findings: Findings,
    taken: int = 0,
) -> None:
    """Report keys of a block that the class or function it names does not take, or misses.

    The first `taken` arguments of a function are not for the block to give. Without arguments the
    name stands alone at the path, and only has to lead to something that can be called.
    """
    if not may_import(module_of(name), findings.origin):
        return
    key_of_name = path if arguments is None else f"{path}.name"
    try:
        thing = import_object(name, key_of_name, findings.origin)
        parameters = dict(inspect.signature(thing).parameters)
    except SpecError as error:
        findings.problems += error.problems
        return
    except (TypeError, ValueError):
        findings.problem(key_of_name, f"found `{name}`; expected a class or a function")
        return
    if arguments is None:
        return
    for key in [*parameters][: 0 if isinstance(thing, type) else taken]:
        del parameters[key]
    named = {key: each for key, each in parameters.items() if each.kind in _BY_NAME}
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for key in () if takes_any else sorted(arguments.keys() - named.keys()):
        findings.problem(f"{path}.{key}", f"unknown key for {name}. {did_you_mean(key, named)}")
    for key, each in named.items():
        if each.default is inspect.Parameter.empty and key not in arguments:
            findings.problem(f"{path}.{key}", f"missing, and {name} needs it")


def check_schedule(
    name: str,
    arguments: Mapping[str, Any],
    path: str,
    findings: Findings,
) -> None:
    """Report a schedule that takes other keys, cannot be made with them, or gives no number."""
    problems = len(findings.problems)
    check_arguments(name, arguments, path, findings)
    if len(findings.problems) > problems or not may_import(module_of(name), findings.origin):
        return
    try:
        value = import_object(name, path, findings.origin)(**arguments).value(0)
    except Exception as error:  # whatever the user's code raises
        message = f"{name} cannot be made and asked for value(0): {type(error).__name__}: {error}"
        findings.problem(path, message)
        return
    if not is_number(value):
        found = f"value(0) of {name} is {shown(value)}; expected a number"
        findings.problem(path, found)


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _own_record(
    registry: Registry[RecordT], name: str, key: str, origin: SpecOrigin | None
) -> RecordT:
    thing = import_object(name, key, origin)
    opaque = _opaque_record(registry)
    base = opaque.spec_class.__base__
    assert base is not None
    record = getattr(thing, "record", None)
    if not isinstance(record, type(opaque)):
        record = _record_of_base(registry, thing)
    spec_class = getattr(thing, "spec_class", record.spec_class if record else None)
    if record is None and type(opaque) is NetInfo and spec_class is not None:
        record = opaque  # there is nothing more to say of a net
    if record is None:
        asked = _ASKED[type(opaque)]
        message = (
            f"`{name}` does not say what it is. Expected a class attribute `{asked}`, "
            "or a subclass of a class of slm_lab (see docs/how-to/your-own-algorithm.md)"
        )
        raise SpecError([Problem(key, message)], "the spec")
    if not (isinstance(spec_class, type) and issubclass(spec_class, base)):
        message = f"the spec class of `{name}` is {spec_class!r}; expected a {base.__name__}"
        raise SpecError([Problem(key, message)], "the spec")
    if issubclass(spec_class, AlgorithmSpec) and spec_class.pace is AlgorithmSpec.pace:
        message = (
            f"the spec class of `{name}` has no pace. Expected a method pace(spec) that returns a "
            "Pace, or an OffPolicySpec or OnPolicySpec, which have one"
        )
        raise SpecError([Problem(key, message)], "the spec")
    own: Any = replace(record, name=name, aliases=(), implementation=name, spec_class=spec_class)
    if isinstance(own, AlgorithmInfo):
        own = replace(own, label=name.rpartition(":")[2])
    checked: RecordT = own
    return checked


def _record_of_base(registry: Registry[RecordT], thing: object) -> RecordT | None:
    """The record of the first of ours that a class derives from; of several that one class makes,
    such as DQN and DoubleDQN, the one with the name of the class."""
    for base in getattr(thing, "__mro__", ()):
        place = f"{base.__module__}:{base.__qualname__}"
        if found := [record for record in registry.values() if record.implementation == place]:
            return next((each for each in found if each.name == base.__qualname__), found[0])
    return None


def _opaque(base: type[BaseModel], name: str) -> Any:
    """Derive a spec class that takes any value of the keys of `base`, and any other key."""
    keys: dict[str, Any] = {
        key: (Any, Field() if info.is_required() else Field(default=_default(info)))
        for key, info in base.model_fields.items()
    }
    return create_model(
        name, __base__=base, __module__=__name__, __cls_kwargs__={"extra": "allow"}, **keys
    )


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True, validated_data={})


OpaqueAlgorithmSpec = _opaque(AlgorithmSpec, "OpaqueAlgorithmSpec")
OpaqueMemorySpec = _opaque(MemorySpec, "OpaqueMemorySpec")
OpaqueNetSpec = _opaque(NetSpec, "OpaqueNetSpec")

_OPAQUE: tuple[Record[Any], ...] = (
    AlgorithmInfo(
        "",
        OpaqueAlgorithmSpec,
        memories=frozenset(get_args(MemoryKind)),
        actions=frozenset(get_args(ActionKind)),
        critic="block",
        privileged_critic=True,
        defaults=Defaults({"name": "Replay"}, {"type": "MLPNet"}),
    ),
    MemoryInfo("", OpaqueMemorySpec, kind="replay", sequences=True),
    NetInfo("", OpaqueNetSpec),
)


def _opaque_record(registry: Registry[RecordT]) -> RecordT:
    """A record of the registry's kind that refuses nothing."""
    kind = type(next(iter(registry.values())))
    return next(record for record in _OPAQUE if isinstance(record, kind))
