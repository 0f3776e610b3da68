"""The page on the Python API, made from the public names, their signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import slm_lab
from slm_lab import extend
from slm_lab.lazy import homes_of_stub

INTRODUCTION = """\
# Python API

This page is generated: `python -m docs_site` writes it. It has every public name, that is
`slm_lab.__all__` and `slm_lab.extend.__all__`, with its signature and docstring; anything else may
move without notice. [How-to: Python](../how-to/python.md) shows them at work.

Names are imported when they are first used, so that `import slm_lab` costs nothing and looking at
specs or results never waits for torch.

Tables list what a class adds to its bases. Objects with a state also have `state_dict()` and
`load_state_dict(state)`, as in torch; both are listed only where there is more to say.
"""
GROUPS: Mapping[str, str] = {
    "Train and look at results": "train run load_result evaluate load_agent Result RunOptions "
    "TrialMetrics SearchMetrics Evaluation",
    "Specs": "load_spec Spec",
    "Envs and agents": "make_env make_agent VectorEnv Agent Spaces Transition Metrics",
    "Errors and warnings": "LabError SpecError SpecWarning EnvError DivergenceError "
    "RunFolderError RunStopped SessionsFailed",
}
EXTEND = "slm_lab.extend: to build your own"
EXTENSIONS = {
    "agent.algorithm": "Algorithms",
    "agent.learning": "The learning step",
    "agent.net": "Nets",
    "agent.memory": "Memories",
    "training.callback": "Callbacks",
    "spec": "Specs of your own classes",
    "types": "Data that passes between them",
}
PUBLIC = frozenset({*slm_lab.__all__, *extend.__all__})
STATE = frozenset({"state_dict", "load_state_dict"})
UNSHOWN = frozenset({"model_post_init"})  # pydantic's own
COLUMNS = 100
INDENT = " " * 4


def page() -> str:
    """The page: the names of `slm_lab` by topic, then those of `slm_lab.extend` by package."""
    homes, own = homes_of_stub(slm_lab.__file__), homes_of_stub(extend.__file__)
    listed = [name for names in GROUPS.values() for name in names.split()]
    if sorted(listed) != sorted(homes):
        raise ValueError(f"GROUPS does not list once each of {sorted({*listed} ^ {*homes})}")
    lines = [INTRODUCTION]
    for title, names in GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names.split():
            lines += entry(name, homes[name])
    lines.append(f"## {EXTEND}\n")
    lines.append(f"{inspect.getdoc(extend)}\n")
    for package, title in EXTENSIONS.items():
        lines.append(f"### {title}\n")
        inside = [name for name, home in own.items() if _is_below(home, f"slm_lab.{package}")]
        for name in sorted(inside, key=lambda name: (own[name], name.lower())):
            if name in homes:
                lines.append(f"`{name}` stands [above](#{name.lower()}).\n")
            else:
                lines += entry(name, own[name], "####")
    packages = [f"slm_lab.{package}" for package in EXTENSIONS]
    if lost := [n for n, home in own.items() if not any(_is_below(home, p) for p in packages)]:
        raise ValueError(f"EXTENSIONS has no place for {lost}")
    return "\n".join(lines)


def _is_below(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def entry(name: str, home: str, heading: str = "###") -> Iterator[str]:
    """A name with its signature, its docstring and, of a class, its public members."""
    module = import_module(home)
    thing = getattr(module, name)
    yield f"{heading} {name}\n"
    if inspect.isclass(thing):
        yield _code(_class_head(name, thing))
    elif inspect.isfunction(thing):
        yield _code(f"def {name}{_signature(thing)}")
    else:
        yield _code(_assigned(_home_of(module, name), name)[0])
    yield f"{docstring(module.__name__, name)}\n"
    if inspect.isclass(thing):
        yield from _members(thing)


def _class_head(name: str, kind: type) -> str:
    """The class with its bases, and its fields or the arguments that it is made of."""
    bases = [base.__name__ for base in kind.__bases__ if base.__module__.startswith("slm_lab")]
    if issubclass(kind, BaseException):
        bases = [base.__name__ for base in kind.__bases__]
    head = f"class {name}" + (f"({', '.join(bases)})" if bases else "")
    if dataclasses.is_dataclass(kind):
        fields = _fields_in_source(kind)
        return "\n".join(["@dataclass", f"{head}:" if fields else head, *fields])
    if "__init__" not in vars(kind) or is_block(kind) or is_protocol(kind):
        return head
    return f"{head}:\n{INDENT}def __init__{_signature(kind.__init__, INDENT)}"  # type: ignore[misc]


def _fields_in_source(kind: type) -> list[str]:
    """The fields of a dataclass as its source has them, with their comments."""
    text = textwrap.dedent(inspect.getsource(kind))
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    if not fields:
        return []
    lines, first = text.splitlines(), fields[0].lineno - 1
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return lines[first : fields[-1].end_lineno]


def _signature(function: Any, indent: str = "") -> str:
    """The signature as the source has it, on one line if it fits, else with a line for each."""
    signature = inspect.signature(function)
    kept, given = [], list(signature.parameters.values())
    star = next((i for i, p in enumerate(given) if p.kind == p.KEYWORD_ONLY), None)
    for index, parameter in enumerate(given):
        if index == star and not any(p.kind == p.VAR_POSITIONAL for p in given):
            kept.append("*")
        kept.append(_parameter(parameter))
    after = signature.return_annotation
    arrow = "" if after is signature.empty else f" -> {_annotation(after)}"
    line = f"({', '.join(kept)}){arrow}"
    if len(indent) + len(function.__name__) + len(line) + 4 <= COLUMNS:
        return line
    inner = "".join(f"{indent}{INDENT}{part},\n" for part in kept)
    return f"(\n{inner}{indent}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = f"{_stars(parameter)}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _default(default: Any) -> str:
    """A default as the source may have it; dots for an object or a long one."""
    text = f'"{default}"' if isinstance(default, str) else repr(default)
    return "..." if text.startswith("<") or "(" in text[1:] or len(text) > 40 else text


def _stars(parameter: inspect.Parameter) -> str:
    is_named = parameter.kind == parameter.VAR_KEYWORD
    return "**" if is_named else "*" * (parameter.kind == parameter.VAR_POSITIONAL)


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__name__", str(annotation))


def _members(kind: type) -> Iterator[str]:
    """A table of public methods and properties, in the order of the source."""
    found = members(kind)
    if found:
        yield "| member | meaning |\n|---|---|"
        yield from (f"| `{_cell(head)}` | {_cell(words)} |" for head, words in found.values())
        yield ""


def members(kind: type) -> dict[str, tuple[str, str]]:
    """(how it is called, what it does) of the members that a class adds to its public bases."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("slm_lab")]
    known = {name for base in ours[1:] if base.__name__ in PUBLIC for name in members(base)}
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(ours):
        for name, member in vars(base).items():
            if name.startswith("_") or name in _fields(kind) | known | UNSHOWN:
                continue
            if shown := _member(name, member):
                words = shown[1] or found.get(name, ("", ""))[1]  # of the method that it overrides
                found[name] = (shown[0], words)
    return {name: words for name, words in found.items() if words[1] or name not in STATE}


def _member(name: str, member: Any) -> tuple[str, str] | None:
    """(how it is called, first paragraph of its docstring) of a method or a property."""
    if isinstance(member, property | cached_property):
        return name, _first(member)
    function = getattr(member, "__func__", member)
    if not inspect.isfunction(function) or hasattr(function, "decorator_info"):
        return None
    signature = inspect.signature(function)
    is_static = isinstance(member, staticmethod)
    parameters = [*signature.parameters.values()][0 if is_static else 1 :]
    names = [f"{_stars(p)}{p.name}" + ("" if p.default is p.empty else "=...") for p in parameters]
    star = next((i for i, p in enumerate(parameters) if p.kind == p.KEYWORD_ONLY), None)
    if star is not None and not any(p.kind == p.VAR_POSITIONAL for p in parameters):
        names.insert(star, "*")
    return f"{name}({', '.join(names)})", _first(function)


def is_block(kind: type) -> bool:
    """Whether this is a class of a spec, whose keys the page on specs has."""
    return hasattr(kind, "model_fields")


def is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _fields(kind: type) -> set[str]:
    names = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return names | set(getattr(kind, "model_fields", ()))


def docstring(module: str, name: str) -> str:
    """What was written about a public name; none of what Python makes up for a dataclass."""
    thing = getattr(import_module(module), name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return _assigned(_home_of(import_module(module), name), name)[1]
    text = inspect.getdoc(thing) or ""
    return "" if text.startswith(f"{name}(") else text


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _home_of(module: ModuleType, name: str) -> ModuleType:
    """The module that assigns a name, if this one only imports it."""
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _home_of(sys.modules[str(node.module)], name)
    return module


def _assigned(module: ModuleType, name: str) -> tuple[str, str]:
    """(the assignment of a constant or an alias, the string that stands below it)."""
    body = _tree(module).body
    for position, node in enumerate(body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            below = body[position + 1] if position + 1 < len(body) else None
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            words = str(below.value.value) if is_text else ""  # type: ignore[union-attr]
            lines = inspect.getsource(module).splitlines()[node.lineno - 1 : node.end_lineno]
            return "\n".join(lines), " ".join(words.split())
    raise ValueError(f"{module.__name__} does not assign {name}")


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))
