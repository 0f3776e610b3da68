"""The benchmark manifest: specs, envs and Settings of the rows, and scores to compare with.

Each phase is a YAML file beside this module. A row whose spec has other Settings is an error, so
that a table never shows a run under other conditions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slm_lab.benchmark.seeds import derived_seed, fingerprint
from slm_lab.error import LabError
from slm_lab.spec import Spec, SpecError, load_spec
from slm_lab.spec.catalog import listed_env, target_score
from slm_lab.spec.load import find_spec_file

SHIPPED = Path(__file__).parent
SOURCES_FILE = "sources.yaml"
DOCUMENTS_FILE = "documents.yaml"
SETTINGS_KEYS = ("env.num_envs", "env.max_frame", "meta.max_session", "meta.log_frequency")
MERGED = ("settings", "documents", "other_targets")  # of a phase, a table and a row, key by key
SHARED = (*MERGED, "trials", "code_version", "bar")  # of a phase or a table, for all its rows
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


class Documents(Part):
    """Settings that the documents ran a row with, where they say so."""

    max_frame: int | None = None
    num_envs: int | None = None
    sessions: int | None = None
    log_frequency: int | None = None
    batch: int | None = Field(default=None, description="Rows of a gradient step.")
    updates_per_frame: float | None = None


class Source(Part):
    """A document; `is_later` tells one that is newer than those the lab was built from."""

    what: str
    is_later: bool = False


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
    ones. `trials` are trained one after the other, each with a seed of its own and
    `settings.max_session` sessions. `variant` tells rows of one env and algorithm apart.
    `documents` are the Settings of the documents, `other_targets` what versions of them asked for
    that is not today's target, by source; `best` is their best training run. `skip` says why the
    row is not run, `note` why it falls short.
    """

    env: str
    algorithm: str
    spec_file: str
    spec_name: str
    settings: Settings
    trials: Annotated[int, Field(gt=0)] = 1
    code_version: str
    variant: str = ""
    flags: tuple[Flag, ...] = ()
    variables: Mapping[str, str | int | float] = {}
    bar: float | None = None
    documents: Documents = Documents()
    other_targets: Mapping[str, float] = {}
    best: Reference | None = None
    references: tuple[Reference, ...] = ()
    skip: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """The name of its folder of results, such as `cartpole-v1_ddqn-per`."""
        texts = filter(None, (self.env, self.algorithm, self.variant))
        words = (re.sub(r"[^a-z0-9.]+", "-", text.lower()) for text in texts)
        return "_".join(word.strip("-") for word in words)

    @property
    def label(self) -> str:
        """The algorithm, and what sets the row apart from others of it."""
        return f"{self.algorithm} {self.variant}".rstrip()

    @property
    def sessions(self) -> int:
        """Sessions of all trials together."""
        return self.trials * self.settings.max_session

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
        return shlex.join([*words, "--seed", str(self.spec().meta.random_seed)])

    def fact(self, name: str) -> str | int:
        """The env, or a setting."""
        return self.env if name == "env" else self.settings.model_dump()[name]

    def spec(self, trial: int = 0) -> Spec:
        """The spec of a trial of this row, with the seed that follows from it."""
        path = find_spec_file(self.spec_file).resolve()
        changed = path.stat().st_mtime_ns
        return _seeded_spec(path, changed, self.spec_name, tuple(self.sets), trial)

    def limited(self, sessions: int | None, trials: int | None) -> Row:
        """The same row with fewer sessions or trials; what they score is unchanged."""
        changes: dict[str, Any] = {"trials": min(trials or self.trials, self.trials)}
        if sessions is not None and sessions < self.settings.max_session:
            changes["settings"] = self.settings.model_copy(update={"max_session": sessions})
            changes["flags"] = tuple(dict.fromkeys((*self.flags, "meta.max_session")))
        return self.model_copy(update=changes)


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
    sources: Mapping[str, Source]

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
    place = Path(where) if where is not None else SHIPPED
    files = [place] if place.is_file() else sorted(place.glob("phase*.yaml"))
    if not files:
        raise ManifestError(f"--manifest {place}: found no phase*.yaml there, expected at least 1.")
    folder = files[0].parent
    by_spec = _read_shared(folder, DOCUMENTS_FILE)
    phases = [_read_phase(path, by_spec) for path in files]
    sources = {
        tag: {"what": source} if isinstance(source, str) else source
        for tag, source in _read_shared(folder, SOURCES_FILE).items()
    }
    phases.sort(key=lambda phase: phase.phase)
    manifest = BenchmarkManifest.model_validate({"phases": phases, "sources": sources})
    _check_rows(manifest)
    return manifest


@cache
def _seeded_spec(path: Path, changed: int, name: str, sets: tuple[str, ...], trial: int) -> Spec:
    """Read a spec once for each time at which its file was changed."""
    spec = load_spec(path, name, sets=sets)
    return spec.with_values({"meta.random_seed": derived_seed(fingerprint(spec), trial)})


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


def _read_shared(folder: Path, name: str) -> dict[str, Any]:
    """A file of a manifest, or the shipped one."""
    return _read_yaml(folder / name if (folder / name).is_file() else SHIPPED / name)


def _read_phase(path: Path, by_spec: Mapping[str, Any]) -> Phase:
    tree = _read_yaml(path)
    try:
        for table in tree["tables"]:
            table["rows"] = [each for row in table["rows"] for each in _each_env(row)]
            for row in table["rows"]:
                known = by_spec.get(row.get("spec_name"), {})
                row["documents"] = {**known, **row.get("documents", {})}
        return Phase.model_validate(tree)
    except (KeyError, TypeError, AttributeError) as error:
        expected = f"expected a phase with tables and rows, found {error!r}"
        raise ManifestError(f"{path.name}: {expected}") from None
    except ValidationError as error:
        lines = [f"  {_place(tree, each['loc'])}: {each['msg']}" for each in error.errors()]
        raise ManifestError("\n".join([f"{path.name}: not a valid phase", *lines])) from None


def _each_env(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that an entry with `envs` stands for, which maps each to what is its own."""
    shared = {key: value for key, value in row.items() if key != "envs"}
    envs = row.get("envs")
    return [row] if envs is None else [{**shared, "env": env, **envs[env]} for env in envs]


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
    merged = {key: {**above.get(key, {}), **tree.get(key, {})} for key in MERGED}
    if not levels:  # a row
        return {**above, **tree, **merged}
    shared = {key: tree[key] for key in SHARED if key in tree}
    above = {**above, **shared, **merged}
    parts = [_handed_down(part, above, levels[1:]) for part in tree[levels[0]]]
    return {**{k: v for k, v in tree.items() if k not in SHARED}, levels[0]: parts}


def _check_rows(manifest: BenchmarkManifest) -> None:
    seen: set[str] = set()
    for row in manifest.rows:
        if row.id in seen:
            raise ManifestError(f"{row.id}: two rows have {row.env} and {row.label}")
        seen.add(row.id)
        references = (each.source for each in filter(None, (row.best, *row.references)))
        for tag in (*references, *row.other_targets):
            if tag not in manifest.sources:
                told = f"found {tag}, expected a tag of {SOURCES_FILE}"
                raise ManifestError(f"{row.id}: source: {told}")


def _fits(text: str, patterns: Sequence[str]) -> bool:
    globs = (p.lower() if any(c in p for c in "*?[") else f"*{p.lower()}*" for p in patterns)
    return not patterns or any(fnmatchcase(text.lower(), glob) for glob in globs)
