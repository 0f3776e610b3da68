"""JSON Schema of spec files, made from the spec classes; editors complete and check with it.

Pydantic describes what a built spec holds. Authors write a little differently: a union is chosen by
its `name` or `type`, numbers may be placeholders, an optimiser's arguments stand beside its name,
and one net block may describe actor and critic. This module turns the first form into the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union

from pydantic import Field, create_model

from slm_lab.spec.agent import AgentSpec
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import HEAD_STD_KEYS, NETS
from slm_lab.spec.optim import LOSSES, OPTIMIZERS, SCHEDULERS
from slm_lab.spec.record import Registry
from slm_lab.spec.schema import Spec
from slm_lab.spec.search import DISTRIBUTIONS

Schema = dict[str, Any]

# What may stand for a number: a placeholder, or one that YAML reads as text, such as 1e-3.
_NUMERAL = {"type": "string", "pattern": r"^(\$\{\w+\}|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)$"}


def spec_schema() -> Schema:
    """The schema of one built spec, as pydantic sees it, with the spec classes of all records."""
    net = _union(NETS)
    fields: dict[str, Any] = {}
    kinds = {"algorithm": _union(ALGORITHMS), "memory": _union(MEMORIES), "net": net}
    for key, kind in {**kinds, "critic_net": net}.items():
        info = AgentSpec.model_fields[key]
        kind = Annotated[kind, Field(description=info.description)]
        fields[key] = kind if info.is_required() else (kind | None, info)
    agent = create_model("AgentSpec", __base__=AgentSpec, __doc__=AgentSpec.__doc__, **fields)
    whole: Any = (agent, Spec.model_fields["agent"])
    spec = create_model("Spec", __base__=Spec, __doc__=Spec.__doc__, agent=whole)
    return spec.model_json_schema()


def _union(registry: Registry[Any]) -> Any:
    """The union of all spec classes, each with the names of its records where it lists none."""
    key, classes = registry.chosen_by, []
    for model in registry.spec_classes():
        field = model.model_fields[key]
        if field.annotation is str:
            names: Any = tuple(name for name, info in registry.items() if info.spec_class is model)
            chosen: Any = {key: (Literal[names], field)}
            model = create_model(model.__name__, __base__=model, __doc__=model.__doc__, **chosen)
        classes.append(model)
    return Annotated[Union[tuple(classes)], Field(discriminator=key)]  # noqa: UP007


def file_schema() -> Schema:
    """The schema of a whole file: a mapping of spec names to specs."""
    schema = spec_schema()
    blocks: dict[str, Schema] = schema.pop("$defs")
    for name, block in blocks.items():
        blocks[name] = _as_written(block)
    blocks["EnvSpec"]["additionalProperties"] = True  # for the env's constructor
    for net in NETS.spec_classes():
        _name_actor_and_critic(blocks[net.__name__])
    kwargs = {key: _typed(value) for given in OPTIMIZERS.values() for key, value in given.items()}
    _open_arguments(blocks["OptimSpec"], OPTIMIZERS, kwargs)
    _open_arguments(blocks["SchedulerSpec"], SCHEDULERS)
    _open_arguments(blocks["LossSpec"], LOSSES.values())

    spec = _as_written(schema)
    spec["required"] = ["agent", "env"]  # a spec in a file is named by its key
    spec["properties"]["search"] |= {
        "patternProperties": {f"__({'|'.join(DISTRIBUTIONS)})$": {"type": "array"}},
        "additionalProperties": {"type": "object"},
    }
    # What is left out comes from the algorithm's defaults (agent.py).
    blocks["AgentSpec"]["required"] = ["algorithm"]
    blocks["AgentSpec"]["properties"]["algorithm"]["required"] = ["name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SLM Lab spec file",
        "description": "Spec names -> specs. Names that begin with _ are never run.",
        "type": "object",
        "properties": {
            "$schema": {"type": "string", "description": "This schema, for editors."},
            "_about": {"description": "What the file is for and how to run it."},
            "_defaults": {
                "type": "object",
                "description": "Values of ${placeholders} that no -s flag fills.",
                "additionalProperties": {"type": ["string", "number"]},
            },
        },
        "patternProperties": {"^_": {}},
        "additionalProperties": {"$ref": "#/$defs/Spec"},
        "$defs": {"Spec": spec, **blocks},
    }


def _as_written(block: Schema) -> Schema:
    """Rewrite a block's schema for authors: null for a default, placeholders for numbers."""
    required = block.get("required", [])
    properties = {}
    for key, schema in block.get("properties", {}).items():
        written = _loosened(schema)
        if key not in required and {"type": "null"} not in written.get("anyOf", []):
            about = {k: written.pop(k) for k in ("description", "default") if k in written}
            written = {"anyOf": [written, {"type": "null"}], **about}
        properties[key] = written
    return {**block, "properties": properties}


def _loosened(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_loosened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "discriminator" in schema:
        return _choice(schema)
    schema = {k: _loosened(v) for k, v in schema.items() if k != "title"}
    # Limits that pydantic leaves in its own words behind a validator.
    for word, keyword in (("ge", "minimum"), ("le", "maximum"), ("gt", "exclusiveMinimum")):
        if word in schema:
            schema[keyword] = schema.pop(word)
    if schema.get("type") in ("integer", "number"):
        about = {k: schema.pop(k) for k in ("description", "default") if k in schema}
        return {"anyOf": [schema, _NUMERAL], **about}
    return schema


def _choice(schema: Schema) -> Schema:
    """Rewrite a union as if/then on the key that decides it, so that editors check that branch."""
    key, options = schema["discriminator"]["propertyName"], schema["discriminator"]["mapping"]
    choice = {k: v for k, v in schema.items() if k == "description"}
    choice |= {"type": "object", "properties": {key: {"enum": sorted(options)}}, "allOf": []}
    for option, reference in sorted(options.items()):
        is_chosen = {"properties": {key: {"const": option}}, "required": [key]}
        choice["allOf"].append({"if": is_chosen, "then": {"$ref": reference}})
    return choice


def _name_actor_and_critic(block: Schema) -> None:
    """Add actor_KEY for the actor alone and critic_KEY for the critic."""
    shared = {"type", *HEAD_STD_KEYS}
    own = {key: value for key, value in block["properties"].items() if key not in shared}
    for who in ("actor", "critic"):
        for key, schema in own.items():
            about = f"{schema['description']} Of the {who} alone."
            block["properties"][f"{who}_{key}"] = {**schema, "description": about}
    # A key may be given for each of the two instead of for both.
    block["required"] = ["type"]


def _open_arguments(block: Schema, names: Iterable[str], kwargs: Schema | None = None) -> None:
    """Put the arguments beside the name; torch checks those that are not listed here."""
    name = {**block["properties"]["name"], "enum": sorted(names)}
    name.pop("anyOf", None)
    block["properties"] = {"name": name, **(kwargs or {})}
    block["additionalProperties"] = kwargs is None


def _typed(default: object) -> Schema:
    about = {"description": "Argument of the optimiser."}
    if isinstance(default, bool):
        return {"type": "boolean", **about}
    if isinstance(default, tuple):
        about = {"description": "Argument of the optimiser: two numbers."}
        return {"type": "array", "minItems": 2, "maxItems": 2, **about}
    return {"anyOf": [{"type": "number"}, _NUMERAL], **about}
