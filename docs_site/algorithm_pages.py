"""Write the parts of docs/algorithms/ that follow from the code, as `python -m docs_site` does.

A part stands between `<!-- KIND: NAMES -->` and `<!-- end -->`. Its kind is a function of `PARTS`
and its names are those of algorithms, so that a page cannot contradict a record, a spec class or
the manifest of the benchmark: `tests/docs_site/test_algorithm_pages.py` compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic.fields import FieldInfo

from slm_lab.benchmark.manifest import BenchmarkManifest, Row, load_manifest
from slm_lab.spec.agent import with_defaults
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.algorithm.base import ActionKind, ScheduleSpec, schedules_of
from slm_lab.spec.block import Block
from slm_lab.spec.compatibility import FEATURES, LEARNING, refusal_of, verdict_with_algorithm
from slm_lab.spec.memory import MEMORIES

PAGES = Path(__file__).parents[1] / "docs" / "algorithms"
PART = re.compile(r"<!-- (\w+): ([^>]*?) -->\n.*?<!-- end -->", re.DOTALL)
ABSENT = "-"
WIDTH = 92  # of the blocks of YAML
EXPERIENCE = {"rollout": "steps", "episodes": "episodes", "replay": "a replay"}
SPACES = {kind: kind.replace("_", "-") for kind in get_args(ActionKind)}


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """The text of a page with all of its parts as the code has them."""

    def written(found: re.Match[str]) -> str:
        kind, names = found[1], found[2].split()
        content = "\n".join(PARTS[kind](names))
        return f"<!-- {kind}: {found[2]} -->\n\n{content}\n\n<!-- end -->"

    return PART.sub(written, text)


def documented(text: str) -> list[str]:
    """The algorithms whose keys a page lists."""
    names = [name for kind, names in PART.findall(text) for name in names.split() if kind == "keys"]
    return [name for name in names if name in ALGORITHMS]


# Keys


def keys(names: Sequence[str]) -> Iterator[str]:
    """Every key of `agent.algorithm` with its default; a name may be `CrossQ.critic`, a block."""
    tables = {name: dict(_keys_of(_spec_class(name))) for name in names}
    every = {key: info for table in tables.values() for key, info in table.items()}
    rows = {}
    for key, (_, meaning) in every.items():
        defaults = [table[key][0] if key in table else ABSENT for table in tables.values()]
        rows[key] = (defaults, meaning)
    is_one = all(len(set(defaults)) == 1 for defaults, _ in rows.values())
    heads = ["default"] if is_one else [_label(name) for name in names]
    yield f"| key | {' | '.join(heads)} | meaning |"
    yield "|---" * (len(heads) + 2) + "|"
    for key, (defaults, meaning) in rows.items():
        cells = " | ".join(defaults[: len(heads)])
        yield f"| `{key}` | {cells} | {meaning.replace('|', chr(92) + '|')} |"


def _spec_class(name: str) -> type[Block]:
    algorithm, _, block = name.partition(".")
    found: type[Block] = ALGORITHMS[algorithm].spec_class
    return _block_of(found.model_fields[block]) or found if block else found


def _keys_of(model: type[Block], prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """(key, (default, meaning)) of a spec class, the keys of the blocks in it too."""
    schedules = schedules_of(model)
    for key, info in model.model_fields.items():
        if key == "name" and not prefix and info.is_required():
            continue
        block = _block_of(info)
        if block is not None and key not in schedules:
            yield from _keys_of(block, f"{prefix}{key}.")
            continue
        default = "**required**" if info.is_required() else _shown(_default(info))
        yield prefix + key, (default, info.description or "")


def _block_of(info: FieldInfo) -> type[Block] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Block) else None


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True, validated_data={})


def _shown(value: object) -> str:
    if isinstance(value, ScheduleSpec):
        return f"{value.start_val:g}" if value.name == "no_decay" else value.name
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, int | float) else f"`{value}`"


def _label(name: str) -> str:
    return ALGORITHMS[name].label if name in ALGORITHMS else name


# Blocks that a spec may leave out


def starts(names: Sequence[str]) -> Iterator[str]:
    """The memory and nets that an algorithm starts from."""
    yield "```yaml"
    for name in names:
        given = {"agent": {"algorithm": {"name": name}}, "env": {"name": "CartPole-v1"}}
        agent = with_defaults(given)["agent"]
        blocks = {key: agent[key] for key in ("memory", "net", "critic_net") if key in agent}
        blocks = json.loads(json.dumps(blocks))  # without the anchors of what stands in it twice
        if len(names) > 1:
            yield f"# {_label(name)}"
        text = yaml.safe_dump(blocks, sort_keys=False, default_flow_style=None, width=WIDTH)
        yield text.rstrip()
    yield "```"


# Spaces and features


def takes(names: Sequence[str]) -> Iterator[str]:
    """Actions, memories and features that one algorithm takes, and what it refuses and why."""
    (name,) = names
    info = ALGORITHMS[name]
    verdicts = {feature: verdict_with_algorithm(feature, name) for feature in FEATURES}
    memories = [
        f"`{memory}`" + " (default)" * (memory == info.defaults.memory["name"])
        for memory, kept in MEMORIES.items()
        if kept.kind in info.memories
    ]
    accepted = [feature for feature, verdict in verdicts.items() if verdict == "accepted"]
    yield "| | |\n|---|---|"
    yield f"| actions | {', '.join(SPACES[kind] for kind in SPACES if kind in info.actions)} |"
    yield f"| memories | {', '.join(memories)} |"
    yield f"| takes | {', '.join(accepted)} |"
    for feature, verdict in verdicts.items():
        refusal = refusal_of(feature, name)
        if verdict == "refused" and refusal is not None:
            yield f"| refuses {feature} | {refusal.why} |"


def table(_names: Sequence[str]) -> Iterator[str]:
    """All algorithms by spaces, experience and the features in which they differ."""
    pages = {name: page for page in PAGES.glob("*.md") for name in documented(page.read_text())}
    differing = [
        feature
        for feature in FEATURES
        if len({verdict_with_algorithm(feature, name) for name in LEARNING}) > 1
    ]
    features = [
        name for name in differing if name not in ("multi-discrete actions", "whole episodes")
    ]
    yield "| algorithm | actions | learns from | takes, beside what all take |\n|---|---|---|---|"
    for name in LEARNING:
        info = ALGORITHMS[name]
        title = name if info.label == "DQN" else info.label
        first = f"[{title}]({pages[name].name})" if name in pages else title
        kinds = [word for kind, word in SPACES.items() if kind in info.actions]
        actions = "any" if len(kinds) == len(SPACES) else ", ".join(kinds)
        learns = ", ".join(word for kind, word in EXPERIENCE.items() if kind in info.memories)
        taken = [f for f in features if verdict_with_algorithm(f, name) == "accepted"]
        yield f"| {first} | {actions} | {learns} | {', '.join(taken)} |"


# Rows of the benchmark


def rows(names: Sequence[str]) -> Iterator[str]:
    """The rows of the benchmark that have one of these labels, each table and spec once."""
    yield "| row | spec |\n|---|---|"
    labels = {name.replace("_", " ") for name in names}
    command = ""
    for phase in manifest().phases:
        for number, found in enumerate(phase.tables, start=1):
            heading = f"{phase.phase}.{number} {found.title}"
            kept = [row for row in found.rows if row.algorithm in labels]
            for (file, spec), users in _by_spec(kept).items():
                envs = len({row.env for row in users})
                label = " / ".join(dict.fromkeys(row.label for row in users[:2]))
                what = f"{label} on " + (users[0].env if envs == 1 else f"{envs} envs")
                where = f"../BENCHMARKS.md#{_slug(heading)}"
                yield f"| [{what}]({where}) | [`{spec}`](../../{file}) |"
                row = users[0]
                command = command or (
                    f"    slm-lab benchmark run --phase {phase.phase} --env {row.env} "
                    f"--algo {row.algorithm}"
                )
    yield f"\nOne row is trained and evaluated again by, for example,\n\n{command}"


@cache
def manifest() -> BenchmarkManifest:
    """The rows of the benchmark, read once."""
    return load_manifest()


def _by_spec(found: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    specs: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        specs.setdefault((row.spec_file, row.spec_name), []).append(row)
    return specs


def _slug(heading: str) -> str:
    """The anchor that the site gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


PARTS: dict[str, Callable[[Sequence[str]], Iterator[str]]] = {
    part.__name__: part for part in (keys, starts, takes, table, rows)
}
