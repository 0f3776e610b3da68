"""The benchmark manifest: specs, envs and Settings of the rows, and scores to compare with.

Each phase is a YAML file beside this module. A row whose spec has other Settings is an error, so
that a table never shows a run under other conditions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slm_lab.error import LabError
from slm_lab.spec import Spec, SpecError, load_spec
from slm_lab.spec.catalog import listed_env, target_score

SOURCES_FILE = "sources.yaml"
SETTINGS_KEYS = ("env.num_envs", "env.max_frame", "meta.max_session", "meta.log_frequency")
SHARED = ("settings", "seed", "code_version", "bar")  # of a phase or a table, for all its rows
Flag = Literal["env", "max_frame", "env.max_frame", "meta.max_session", "meta.log_frequency"]


class ManifestError(LabError):
    """A manifest that cannot be used; the message names the file and the row."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(Part):
    """Settings that must be equal for scores to be comparable."""

    max_frame: Annotated[int, Field(gt=0)]
    num_envs: Annotated[int, Field(gt=0)]
    max_session: Annotated[int, Field(gt=0)]
    log_frequency: Annotated[int, Field(gt=0)]


class Reference(Part):
    """A published score; `source` is a tag of sources.yaml."""

    score: float
    source: str
    spread: float | None = None
    frames: int | None = None
    algorithm: str | None = Field(default=None, description="If not the row's own.")
    note: str = ""


class Row(Part):
    """One cell of the tables: an algorithm on an env.

    `flags` are -s flags that take their value from the row, such as `env` where the spec is for
    many envs, or `max_frame` and `meta.max_session` for another budget; `variables` are further
    ones. `best` is the best training run of the documents. `skip` says why the row is not run,
    `note` why it falls short.
    """

    env: str
    algorithm: str
    spec_file: str
    spec_name: str
    settings: Settings
    seed: int
    code_version: str
    flags: tuple[Flag, ...] = ()
    variables: Mapping[str, str | int | float] = {}
    bar: float | None = None
    best: Reference | None = None
    references: tuple[Reference, ...] = ()
    skip: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """The name of its folder of results, such as `cartpole-v1_ddqn-per`."""
        words = (re.sub(r"[^a-z0-9]+", "-", text.lower()) for text in (self.env, self.algorithm))
        return "_".join(word.strip("-") for word in words)

    @property
    def target(self) -> float | None:
        """The score that counts as solved, where the documents name one."""
        return target_score(self.env)

    @property
    def goal(self) -> float | None:
        """The score to reach: the bar, else the target, else the best of the documents."""
        goals = (self.bar, self.target, None if self.best is None else self.best.score)
        return next((goal for goal in goals if goal is not None), None)

    @property
    def sets(self) -> list[str]:
        """The -s flags."""
        own = [f"{flag}={self.fact(flag.rpartition('.')[2])}" for flag in self.flags]
        return own + [f"{key}={value}" for key, value in self.variables.items()]

    @property
    def command(self) -> str:
        """The command that makes this row by hand."""
        sets = [word for flag in self.sets for word in ("-s", flag)]
        words = ["slm-lab", "run", self.spec_file, self.spec_name, "train", *sets]
        return shlex.join([*words, "--seed", str(self.seed)])

    def fact(self, name: str) -> str | int:
        """The env, or a setting."""
        return self.env if name == "env" else self.settings.model_dump()[name]

    def spec(self) -> Spec:
        """The spec of a run of this row, with its seed."""
        sets = [*self.sets, f"meta.random_seed={self.seed}"]
        return load_spec(self.spec_file, self.spec_name, sets=sets)


class Table(Part):
    title: str
    docs: str
    rows: tuple[Row, ...]
    about: str = ""

    @property
    def envs(self) -> list[str]:
        return list(dict.fromkeys(row.env for row in self.rows))


class Phase(Part):
    phase: int
    name: str
    tables: tuple[Table, ...]

    @model_validator(mode="before")
    @classmethod
    def _hand_down(cls, tree: Any) -> Any:
        """Give the shared values of a phase or a table to each of its rows that lacks them."""
        return _handed_down(tree, {}, ("tables", "rows"))

    @property
    def rows(self) -> Iterator[Row]:
        for table in self.tables:
            yield from table.rows

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(row.algorithm for row in self.rows))


class BenchmarkManifest(Part):
    phases: tuple[Phase, ...]
    sources: Mapping[str, str]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for phase in self.phases for row in phase.rows)

    @cached_property
    def by_id(self) -> dict[str, Row]:
        return {row.id: row for row in self.rows}

    def choose(
        self,
        *,
        phases: Sequence[int] = (),
        envs: Sequence[str] = (),
        algorithms: Sequence[str] = (),
    ) -> list[Row]:
        """The rows asked for, in the manifest's order; all of them without conditions.

        An env is meant by a part of its name, or a pattern with `*`.
        """
        labels = {name.lower() for name in algorithms}
        chosen = (phase for phase in self.phases if not phases or phase.phase in phases)
        rows = [
            row
            for phase in chosen
            for row in phase.rows
            if _fits(row.env, envs) and (not labels or row.algorithm.lower() in labels)
        ]
        if not rows:
            asked = {"--phase": phases, "--env": envs, "--algo": algorithms}
            flags = " ".join(f"{flag} {value}" for flag, many in asked.items() for value in many)
            names = ", ".join(dict.fromkeys(row.algorithm for row in self.rows))
            raise ManifestError(
                f"{flags}: no row of the manifest fits. It has the phases "
                f"{', '.join(str(phase.phase) for phase in self.phases)} and {names}; "
                "`slm-lab benchmark status` lists the rows."
            )
        return rows


def load_manifest(where: str | Path | None = None) -> BenchmarkManifest:
    """The shipped manifest; or that of a folder, or one file of it."""
    place = Path(where) if where is not None else Path(__file__).parent
    files = [place] if place.is_file() else sorted(place.glob("phase*.yaml"))
    if not files:
        raise ManifestError(f"--manifest {place}: found no phase*.yaml there, expected at least 1.")
    phases = [_read_phase(path) for path in files]
    own = files[0].parent / SOURCES_FILE
    sources = _read_yaml(own if own.is_file() else Path(__file__).parent / SOURCES_FILE)
    phases.sort(key=lambda phase: phase.phase)
    manifest = BenchmarkManifest(phases=tuple(phases), sources=sources)
    _check_rows(manifest)
    return manifest


def row_problems(row: Row, spec: Spec | None = None) -> list[str]:
    """Differences between a row and its spec, or the spec of a run if given."""
    if spec is None:
        try:
            spec = row.spec()
        except SpecError as error:
            return [f"{row.id}: {error}"]
    found = {
        "env": listed_env(spec.env.name, spec.env.kwargs),
        "algorithm": spec.agent.label,
        **{key.rpartition(".")[2]: attrgetter(key)(spec) for key in SETTINGS_KEYS},
    }
    expected: dict[str, str | int] = {"algorithm": row.algorithm}
    expected |= {name: row.fact(name) for name in ("env", *Settings.model_fields)}
    return [
        f"{row.id}: {key}: the spec has {found[key]}, the row {value}"
        for key, value in expected.items()
        if found[key] != value
    ]


def _read_phase(path: Path) -> Phase:
    tree = _read_yaml(path)
    try:
        return Phase.model_validate(tree)
    except (KeyError, TypeError, AttributeError) as error:
        expected = f"expected a phase with tables and rows, found {error!r}"
        raise ManifestError(f"{path.name}: {expected}") from None
    except ValidationError as error:
        lines = [f"  {_place(tree, each['loc'])}: {each['msg']}" for each in error.errors()]
        raise ManifestError("\n".join([f"{path.name}: not a valid phase", *lines])) from None


def _place(tree: Any, location: tuple[int | str, ...]) -> str:
    """`CartPole-v1 PPO best.score` for what pydantic calls tables.0.rows.5.best.score."""
    match location:
        case ("tables", int(i), "rows", int(j), *rest):
            row = tree["tables"][i]["rows"][j]
            name = f"{row.get('env')} {row.get('algorithm')}"
            return f"{name} {'.'.join(map(str, rest))}"
    return ".".join(map(str, location))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ManifestError(f"{path}: cannot be read: {error}") from None
    if not isinstance(tree, dict):
        raise ManifestError(f"{path}: expected a mapping, found {type(tree).__name__}")
    return tree


def _handed_down(
    tree: Mapping[str, Any], above: Mapping[str, Any], levels: Sequence[str]
) -> dict[str, Any]:
    settings = {**above.get("settings", {}), **tree.get("settings", {})}
    if not levels:  # a row
        return {**above, **tree, "settings": settings}
    shared = {key: tree[key] for key in SHARED if key in tree}
    above = {**above, **shared, "settings": settings}
    parts = [_handed_down(part, above, levels[1:]) for part in tree[levels[0]]]
    return {**{k: v for k, v in tree.items() if k not in SHARED}, levels[0]: parts}


def _check_rows(manifest: BenchmarkManifest) -> None:
    seen: set[str] = set()
    for row in manifest.rows:
        if row.id in seen:
            raise ManifestError(f"{row.id}: two rows have {row.env} and {row.algorithm}")
        seen.add(row.id)
        for reference in filter(None, (row.best, *row.references)):
            if reference.source not in manifest.sources:
                told = f"found {reference.source}, expected a tag of {SOURCES_FILE}"
                raise ManifestError(f"{row.id}: source: {told}")


def _fits(text: str, patterns: Sequence[str]) -> bool:
    globs = (p.lower() if any(c in p for c in "*?[") else f"*{p.lower()}*" for p in patterns)
    return not patterns or any(fnmatchcase(text.lower(), glob) for glob in globs)
