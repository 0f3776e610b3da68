"""The JSON Schema and the reference page of spec files, both made from the spec classes.

Pydantic describes what a built spec holds. Authors write a little differently: a union is chosen by
its `name` or `type`, numbers may be placeholders, an optimiser's arguments stand beside its name,
and one net block may describe actor and critic. The schema turns the first form into the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union

from pydantic import Field, create_model

from slm_lab.spec.agent import AgentSpec, with_defaults
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.algorithm.base import SCHEDULE, schedules_of
from slm_lab.spec.block import shown
from slm_lab.spec.callback import CALLBACKS
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import ACTIVATIONS, EARLIER_KEYS, HEAD_STD_KEYS, INIT_FNS, NETS
from slm_lab.spec.optim import LOSSES, OPTIMIZERS, OWN_SCHEDULERS, SCHEDULERS
from slm_lab.spec.record import Registry
from slm_lab.spec.schema import Spec
from slm_lab.spec.search import DISTRIBUTIONS

Schema = dict[str, Any]

# What may stand for a number: a placeholder, or one that YAML reads as text, such as 1e-3.
_OWN_NAME: Schema = {"type": "string", "pattern": "^[\\w.]+:\\w+$"}
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
        keys = blocks[net.__name__]["properties"]
        keys |= {old: {**keys[new], "deprecated": True} for old, new in EARLIER_KEYS.items()}
    kwargs = {key: _typed(value) for given in OPTIMIZERS.values() for key, value in given.items()}
    _open_arguments(blocks["OptimSpec"], OPTIMIZERS, kwargs)
    _open_arguments(blocks["SchedulerSpec"], SCHEDULERS)
    _open_arguments(blocks["LossSpec"], LOSSES.values())

    for name in ("OptimSpec", "SchedulerSpec", "LossSpec", "ScheduleSpec"):
        blocks[name] = _or_own(blocks[name], "name")
    for model in ALGORITHMS.spec_classes():
        _shorten_schedules(blocks[model.__name__]["properties"], schedules_of(model))

    spec = _as_written(schema)
    spec["required"] = ["agent", "env"]  # a spec in a file is named by its key
    spec["properties"]["search"] |= {
        "patternProperties": {f"__({'|'.join(DISTRIBUTIONS)})$": {"type": "array"}},
        "additionalProperties": {"type": "object"},
    }
    # What is left out comes from the algorithm's defaults (agent.py).
    blocks["AgentSpec"]["required"] = ["algorithm"]
    algorithm = blocks["AgentSpec"]["properties"]["algorithm"]
    algorithm["else"]["required"] = ["name"]
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
        if key == "action_pdtype":
            properties[key]["anyOf"].append(_OWN_NAME)
    return {**block, "properties": properties}


def _or_own(block: Schema, key: str) -> Schema:
    """Take any keys beside the name of something of the user's own, which says itself what fits."""
    is_own = {"type": "object", "properties": {key: _OWN_NAME}, "required": [key]}
    about = {"description": block["description"]} if "description" in block else {}
    return {**about, "if": is_own, "else": block}


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
    return _or_own(choice, key)


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


def _shorten_schedules(properties: Schema, keys: Iterable[str]) -> None:
    """Take a number for a schedule, and its key without the suffix."""
    for key in keys:
        about = {
            k: properties[key].pop(k) for k in ("description", "default") if k in properties[key]
        }
        properties[key] = {"anyOf": [{"type": "number"}, _NUMERAL, properties[key]], **about}
        properties[key.removesuffix(SCHEDULE)] = properties[key]


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


# The reference page

_INTRODUCTION = """\
# Spec reference

Written by `slm-lab spec --docs > docs/SPEC.md` from the classes in `slm_lab/spec/`; a test keeps
the two equal. `slm-lab spec --schema > spec.schema.json` writes the same as a JSON Schema, with
which an editor completes and checks spec files: name it in a JSON file as
`"$schema": "spec.schema.json"`, in a YAML file as
`# yaml-language-server: $schema=spec.schema.json`.

## A file

A JSON or YAML file maps spec names to specs. A spec has the blocks `agent`, `env`, `meta` and, for
a search, `search`:

    my_ppo:
      agent:
        name: PPO
        algorithm: {name: PPO, ...}
        memory: {name: OnPolicyBatchReplay}
        net: {type: MLPNet, ...}
      env: {name: CartPole-v1, num_envs: 4, max_frame: 200000}
      meta: {max_session: 4, log_frequency: 500}

- The name of a spec begins the files of its run: 1 to 100 letters, digits and `_ - . +`, a letter
  or digit first, without `_t` and a number at the end, which is how a trial is called.
- Names that begin with `_` are never run: blocks to share by YAML anchors, and two with a meaning.
  `_about` says what the file is for; `_defaults` holds values of placeholders.
- `${key}` is a placeholder, filled by `-s key=value`, else from `_defaults`. `-s a.b.c=value`
  writes at any dotted path.
- Text that spells a number is a number (YAML reads `1e-3` as text). `null` on a key that has a
  default means the default.
- An unknown key is an error that names the nearest valid one. Keys that mean something to another
  algorithm, memory or net are accepted, with a warning that names them.
- `slm-lab spec --check FILE` checks a file; `slm-lab specs` lists what ships;
  `slm-lab spec --upgrade FILE` converts a spec of SLM Lab v4.
"""

_LEFT_OUT = """\
A spec needs `agent.algorithm.name`, `env.name` and `env.max_frame`. `agent.memory` and the nets
come from the algorithm, as below. A block without its `name` or `type` starts from the algorithm's
block and changes single keys of it; a block that has it stands on its own. `slm-lab spec FILE NAME`
prints a spec with every default written out.
"""


def reference_page() -> str:
    """Write the page in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    schema = spec_schema()
    blocks: dict[str, Schema] = schema["$defs"]
    yield _INTRODUCTION
    yield "## What may be left out"
    yield _LEFT_OUT
    yield from _default_blocks("CartPole-v1", ["memory", "net", "critic_net"])
    yield "For `ALE/` envs the same memories, and nets of convolutions:\n"
    yield from _default_blocks("ALE/Pong-v5", ["net", "critic_net"])
    yield "## agent"
    yield from _table({**blocks["AgentSpec"], "required": ["algorithm"]}, absent="the algorithm's")
    yield "## agent.algorithm"
    yield "Chosen by `name`; also found by short names such as A2C, SAC and DDQN.\n"
    for model in ALGORITHMS.spec_classes():
        block = blocks[model.__name__]
        yield f"### {_kind(block['properties']['name']).replace('`', '').replace(', ', ' / ')}"
        yield from _section(block)
    yield "### Schedules"
    users = _words(["explore_var_spec", "entropy_coef_spec", "clip_eps_spec"])
    yield f"A value that changes with the frame: {users}. Each of these keys may be written without"
    yield "`_spec`, and a number is a schedule that stays there: `clip_eps: 0.2`.\n"
    yield from _table(blocks["ScheduleSpec"])
    yield "### entropy_anneal"
    yield from _section(blocks["EntropyAnnealSpec"])
    yield "### critic"
    yield from _section(blocks["CriticSpec"])
    yield "## agent.memory"
    for name, memory in MEMORIES.items():
        yield f"### {name}"
        yield from _section(blocks[memory.spec_class.__name__])
    yield "## agent.net"
    yield from _nets(blocks)
    yield "## env"
    yield from _table(blocks["EnvSpec"])
    yield "## meta"
    yield from _table(blocks["MetaSpec"])
    yield "## meta.callbacks"
    yield "A list of names, or of mappings with `name` and the callback's keys. One of your own is"
    yield "named `module:Class`: [how-to/callbacks.md](how-to/callbacks.md).\n"
    for name, callback in CALLBACKS.items():
        yield f"### {name}"
        yield from _section(callback.spec_class.model_json_schema())
    yield "## search"
    yield "`path.to.key__DISTRIBUTION: arguments`, flat or nested."
    yield "A trial writes the drawn value at the path.\n"
    yield "| distribution | arguments |\n|---|---|"
    for distribution, arguments in DISTRIBUTIONS.items():
        yield f"| `{distribution}` | [{arguments}] |"


def _default_blocks(env: str, keys: list[str]) -> Iterator[str]:
    """The memory and the nets that each algorithm starts from."""
    yield "| key | algorithms | default |\n|---|---|---|"
    for key in keys:
        users: dict[str, list[str]] = {}  # block -> algorithms that have it
        for name in ALGORITHMS:
            given = {"agent": {"algorithm": {"name": name}}, "env": {"name": env}}
            if key in (agent := with_defaults(given)["agent"]):
                users.setdefault(_value(agent[key]), []).append(name)
        for block, names in users.items():
            yield f"| `agent.{key}` | {', '.join(names)} | {block} |"
    yield ""


def _nets(blocks: dict[str, Schema]) -> Iterator[str]:
    nets = {kind: blocks[net.spec_class.__name__] for kind, net in NETS.items()}
    first, *others = nets.values()
    common = [key for key in first["properties"] if all(key in net["properties"] for net in others)]
    common.remove("type")
    *two, last = (name for name, info in ALGORITHMS.items() if info.critic == "keys")
    blocks_of_critics = [name for name, info in ALGORITHMS.items() if info.critic == "block"]
    yield (
        f"Chosen by `type`. For {', '.join(two)} and {last} one block describes two nets:\n"
        "`actor_KEY` is for the actor alone, `critic_KEY` for the critic alone, as in\n"
        f"`actor_optim_spec`. {' and '.join(blocks_of_critics)} take the critic's net as\n"
        "`agent.critic_net`. SoftActorCritic without that block gives its critics the actor's\n"
        "settings; a block without a `type` changes single keys of them. Its target nets follow\n"
        "as `agent.critic_net` says, or else as `agent.net` does.\n"
    )
    yield "### Every net"
    yield from _table(first, only=common)
    for kind, net in nets.items():
        yield f"### {kind}"
        own = [key for key in net["properties"] if key not in common]
        yield from _section(net, only=own)
    yield "### Names"
    yield f"Activations: {_words(ACTIVATIONS)}.\n"
    yield f"`init_fn`: {_words(sorted(INIT_FNS))}.\n"
    yield f"`loss_spec.name`, in any case: {_words(LOSSES.values())}."
    yield "Its other entries are arguments.\n"
    yield "`optim_spec.name`, and the arguments each takes beside it:\n"
    for name, arguments in OPTIMIZERS.items():
        yield f"- `{name}`: " + ", ".join(f"`{k}` {_value(v)}" for k, v in arguments.items())
    yield f"\n`lr_scheduler_spec.name`: {_words(sorted(SCHEDULERS))}."
    taken = (f"`{name}` takes {_words(keys)}" for name, keys in OWN_SCHEDULERS.items())
    yield f"{'; '.join(taken)}."
    yield "They fall in a straight line over that many frames, from the first update on."
    yield "The others take the arguments of their class in torch.optim.lr_scheduler, and step once"
    yield "per update.\n"


def _section(block: Schema, only: list[str] | None = None) -> Iterator[str]:
    yield f"{block['description']}\n"
    yield from _table(block, only)


def _table(block: Schema, only: list[str] | None = None, absent: str = "{}") -> Iterator[str]:
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    required = block.get("required", [])
    # What chooses the block comes first.
    keys = sorted(block["properties"], key=lambda key: key not in ("name", "type"))
    for key in keys:
        schema = block["properties"][key]
        if only is None or key in only:
            default = _value(schema["default"]) if "default" in schema else absent
            default = "**required**" if key in required else default
            meaning = schema["description"].replace("|", "\\|")
            yield f"| `{key}` | {_kind(schema)} | {default} | {meaning} |"
    yield ""


def _kind(schema: Schema) -> str:
    """Describe the values that a key takes in a word or two."""
    if "const" in schema:
        return _value(schema["const"])
    if "enum" in schema:
        return ", ".join(_value(option) for option in schema["enum"])
    if "$ref" in schema or "discriminator" in schema:
        return "mapping"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(option) for option in schema["anyOf"]))
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _range(schema)
    if kind == "array":
        return f"list of {_kind(schema.get('items') or schema['prefixItems'][0])}"
    return {"boolean": "true, false", "string": "text", "null": "null"}.get(kind, "mapping")


def _range(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("ge"))
    high = schema.get("maximum", schema.get("le"))
    if "exclusiveMinimum" in schema:
        return " above 0"
    if low is not None and high is not None and high <= 1:
        return f" from {low:g} to {high:g}"
    return "" if low is None else f" from {low:g}"


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return shown(value)
    if isinstance(value, float | int):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_value(v)}' for k, v in value.items())}}}"
    return f"`{value}`"


def _words(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)
