"""The frozen base model of all blocks, the types of their values, and how one block is built.

A block is one mapping of a spec file (`agent.algorithm`, `env`, ...). Its keys fall in three
groups: known to the block, known to a sibling (accepted, without effect, reported once), and
unknown (an error that names the nearest valid key).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from slm_lab.spec.error import Problem, did_you_mean, nearest

if TYPE_CHECKING:
    from slm_lab.spec.trust import SpecOrigin

MAX_COUNT = 10**13


class Block(BaseModel):
    """Frozen model without unknown keys; a null on a key with a default means the default."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {key for key, info in cls.model_fields.items() if not info.is_required()}
        for key, info in cls.model_fields.items():
            if type(None) in get_args(info.annotation):
                optional.discard(key)  # its null has a meaning of its own
        return {k: v for k, v in data.items() if v is not None or k not in optional}


def Key(default: Any, description: str) -> Any:
    """Declare a key of a block: the value of a spec without it, and what the reference says."""
    return Field(default=default, description=description)


def invalid(message: str, key: str = "") -> PydanticCustomError:
    """Make an error for a validator to raise; `key` points below the field being validated."""
    # The message travels in the context, so that braces in user text are never a template.
    return PydanticCustomError("spec", "{message}", {"message": message, "key": key})


def shown(value: object) -> str:
    """Format a value for an error message: short, in JSON's words for null and booleans."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expect(fits: bool, value: object, expected: str, key: str = "") -> None:
    """Raise the error of a validator unless a value fits."""
    if not fits:
        raise invalid(f"found {shown(value)}; expected {expected}", key)


def is_number(value: object) -> bool:
    """Whether a value is an int or a float; bool is neither here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked(fits: Callable[[Any], bool], expected: str) -> BeforeValidator:
    """Make a validator that lets those values pass that fit, as they are."""

    def check(value: object) -> object:
        expect(fits(value), value, expected)
        return value

    return BeforeValidator(check)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    expect(isinstance(value, int) and not isinstance(value, bool), value, "a whole number")
    return value


def _flag(value: object) -> object:
    # 0 and 1 stand for booleans in old specs; words such as "yes" do not.
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    word = value.lower() if isinstance(value, str) else ""
    expect(word in ("true", "false"), value, "true or false")
    return word == "true"


_NUMBER = checked(is_number, "a number")
Number = Annotated[float, _NUMBER]
"""A finite number."""
NonNegative = Annotated[float, Field(ge=0), _NUMBER]
"""A number from 0."""
Positive = Annotated[float, Field(gt=0), _NUMBER]
"""A number above 0."""
Fraction = Annotated[float, Field(ge=0, le=1), _NUMBER]
"""A number from 0 to 1."""
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), BeforeValidator(_whole)]
"""A whole number from 1; 1e6 is one too."""
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT), BeforeValidator(_whole)]
"""A whole number from 0."""
SmallCount = Annotated[int, Field(ge=1, le=10**6), BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
"""true or false; 0 and 1 are read as those."""
FreeMapping = Annotated[
    Mapping[str, Any], checked(lambda value: isinstance(value, Mapping), "a mapping")
]


@dataclass(slots=True)
class Findings:
    """Problems and warnings of one spec; any problem makes it a SpecError.

    Modules of the user's own are imported where the spec's origin is trusted with them.
    """

    origin: SpecOrigin | None = None
    problems: list[Problem] = field(default_factory=list)
    inert: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, path: str, message: str) -> None:
        """Add a problem at a dotted key."""
        self.problems.append(Problem(path, message))

    def all_warnings(self) -> list[str]:
        """All warnings: one line for the keys without effect, then the others."""
        if not self.inert:
            return list(self.warnings)
        return [f"keys without effect here: {', '.join(self.inert)}", *self.warnings]


BlockT = TypeVar("BlockT", bound=Block)


def build_block(
    model: type[BlockT],
    tree: Mapping[str, Any],
    path: str,
    findings: Findings,
    label: str,
    siblings: Collection[str] = (),
    spelling: Mapping[str, str] | None = None,
) -> BlockT | None:
    """Build one validated block; None with the problems reported.

    `siblings` are keys that mean something elsewhere and nothing here; `spelling` maps a field
    to the key the author wrote, where the two differ.
    """
    spelling = spelling or {}
    known: dict[str, Any] = {}
    takes_any_key = "kwargs" in model.model_fields or model.model_config.get("extra") == "allow"
    for key, value in tree.items():
        if key in model.model_fields or takes_any_key:
            known[key] = value
        elif key in siblings:
            if value is not None:
                findings.inert.append(f"{path}.{spelling.get(key, key)}")
        else:
            message = f"unknown key for {label}. {did_you_mean(key, model.model_fields)}"
            findings.problem(f"{path}.{spelling.get(key, key)}", message)
    try:
        return model.model_validate(known)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            findings.problems.append(_problem(detail, model, path, label, spelling))
        return None


def gather_kwargs(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """Move every key of a mapping that is not a field into `kwargs`."""
    fields = {key: value for key, value in data.items() if key in model.model_fields}
    written = fields.get("kwargs") or {}
    expect(isinstance(written, Mapping), written, "a mapping", "kwargs")
    extra = {key: value for key, value in data.items() if key not in fields}
    return {**fields, "kwargs": {**written, **extra}}


def _problem(
    detail: ErrorDetails, model: type[BaseModel], path: str, label: str, spelling: Mapping[str, str]
) -> Problem:
    parts = [str(part) for part in detail["loc"]]
    context = detail.get("ctx", {})
    owner, description = _field_at(model, parts)
    if parts:
        parts[0] = spelling.get(parts[0], parts[0])
    if context.get("key"):
        parts.append(context["key"])
    found = detail["input"]
    match detail["type"]:
        case "missing":
            message = f"missing, and {label} needs it: {description}"
        case "extra_forbidden":
            message = f"unknown key. {did_you_mean(parts[-1], owner.model_fields)}"
        case "literal_error":
            # pydantic words the options as "'a', 'b' or 'c'"
            words = context["expected"].replace(" or ", ", ").split(", ")
            options = [word.strip("'") for word in words]
            message = f"found {shown(found)}; expected one of {', '.join(options)}."
            if isinstance(found, str) and (close := nearest(found, options, count=1)):
                message += f" Did you mean `{close[0]}`?"
        case "model_type" | "dict_type":
            message = f"found {shown(found)}; expected a mapping ({description})"
        case "spec":
            message = context["message"]
        case _:
            expected = detail["msg"].replace("Input should be", "expected")
            message = f"found {shown(found)}; {expected} ({description})"
    return Problem(".".join([path, *parts] if path else parts), message)


def _field_at(model: type[BaseModel], parts: list[str]) -> tuple[type[BaseModel], str]:
    """Find the model that owns the last named field of a path, and that field's description."""
    description = ""
    for part in parts:
        info = model.model_fields.get(part)
        if info is None:
            break
        description = (info.description or "").rstrip(".")
        inner = [info.annotation, *get_args(info.annotation)]
        nested = [kind for kind in inner if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            break
        model = nested[0]
    return model, description
