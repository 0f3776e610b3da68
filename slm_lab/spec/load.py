"""Load specs: find the file, read it, fill placeholders, choose the spec, apply `-s`, build."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from slm_lab.spec.assignment import (
    Assignment,
    blame,
    read_assignments,
    run_name,
    write_assignment,
)
from slm_lab.spec.block import shown
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.error import Problem, SpecError, SpecWarning, nearest
from slm_lab.spec.run_folder import SPEC_FILE, run_place
from slm_lab.spec.schema import V4_MESSAGE, Spec, build_spec, name_complaint
from slm_lab.spec.text import (
    MAX_BYTES,
    PLACEHOLDER,
    TextError,
    coerce_numbers,
    decode,
    fill,
    parse,
    unfilled,
)
from slm_lab.spec.trust import SpecOrigin, module_of, names_in, origin_of, own_names
from slm_lab.spec.upgrade import is_v4, upgrade_spec

DEFAULTS = "_defaults"
_SUFFIXES = (".json", ".yaml", ".yml")
_EXAMPLE_ENVS = {  # by a word in the path of a file
    "atari": "ALE/Pong-v5",
    "mujoco": "HalfCheetah-v5",
    "playground": "playground/CartpoleBalance",
}
_PRIVATE = ("_", "$")  # blocks to share, notes, and the `$schema` that editors look for


def load_spec(
    file: str | Path | Mapping[str, Any],
    name: str | None = None,
    sets: Sequence[str] = (),
    *,
    trust: Collection[str] = (),
) -> Spec:
    """Load the spec `name` of a file, with `-s` assignments applied.

    A mapping stands for the content of a file: specs by their names, or one spec. Without a name
    the file must hold one spec, as the spec saved with a run does, or `file` is the name of a spec
    that ships. Warnings are raised as SpecWarning; everything wrong is one SpecError.

    A spec in a run folder, which may have come from anywhere, has a module such as that of
    `module:EnvId` imported only if `trust`, `-s` or SLM_LAB_TRUST names it, or if it was trained
    with here before.
    """
    if isinstance(file, Mapping):
        return _load_mapping(file, name, sets)
    is_here = any(os.path.isfile(f"{file}{suffix}") for suffix in ("", *_SUFFIXES))
    if name is None and not is_here and (shipped := packaged_file(str(file))) is not None:
        file, name = shipped, str(file)
    path = find_spec_file(file)
    if run_place(path) is None:
        return _load(path, name, sets, None)
    return _load_untrusted(path, name, sets, trust)


def _load_mapping(tree: Mapping[str, Any], name: str | None, sets: Sequence[str]) -> Spec:
    """Load a spec as if the mapping had been read from a file."""
    path = Path(f"{name or 'spec'}.json")
    try:
        text = json.dumps(tree)
    except (TypeError, ValueError) as error:
        fix = "A spec holds text, numbers, lists and mappings; train(...) also takes classes."
        raise _refusal(path, f"{error}. {fix}") from None
    return _load(path, None if {"agent", "env"} <= tree.keys() else name, sets, None, text)


def load_saved_spec(file: str | Path, name: str | None = None, *, trust: Collection[str]) -> Spec:
    """Load a spec that is known to be saved with a run, whatever its folder looks like."""
    return _load_untrusted(find_spec_file(file), name, (), trust)


def read_saved_spec(file: str | Path) -> Spec:
    """Load a spec that is only looked at: nothing that it names is imported, or can be."""
    path = find_spec_file(file)
    return _load(path, None, (), SpecOrigin(path, frozenset()))


def _load_untrusted(
    path: Path, name: str | None, sets: Sequence[str], trust: Collection[str]
) -> Spec:
    """Load a spec whose modules are imported only if they are trusted.

    To know what it names it is built first without any of them.
    """
    with warnings.catch_warnings(action="ignore", category=SpecWarning):
        spec = _load(path, name, sets, SpecOrigin(path, frozenset()))
    given = {word for item in read_assignments(sets, path) for word in _names_given(item)}
    by_flag = {module_of(name) for _, name in own_names(spec) if name in given}
    return _load(path, name, sets, origin_of(spec, path, {*trust, *by_flag}))


def _names_given(item: Assignment) -> Iterator[str]:
    """What a `-s` may name: its value, or what is in it."""
    yield item.value.strip()
    with suppress(TextError):
        yield from (name for _, name in names_in(item.key, parse(item.value, is_json=False)))


def _load(
    path: Path,
    name: str | None,
    sets: Sequence[str],
    origin: SpecOrigin | None,
    text: str | None = None,
) -> Spec:
    """Load a spec of a file, whose text may be known already."""
    assignments = read_assignments(sets, path)
    template = _read_text(path) if text is None else text
    text = _fill_defaults(_fill(template, assignments, path), path)
    specs = _specs_in(text, path)
    name = _choose(specs, name, path)
    tree = coerce_numbers(specs[name])
    source = _source(path, name)

    placeholders = _placeholders(template, name, path) if assignments else set()
    filled = [item for item in assignments if item.key in placeholders]
    written = [item for item in assignments if item not in filled]
    problems = [
        problem for item in written if (problem := write_assignment(tree, item, placeholders))
    ]
    for at, open_key in unfilled(tree):
        problems.append(Problem(at, f"${{{open_key}}} is not filled. Add -s {open_key}=VALUE"))
    if problems:
        raise SpecError(problems, source)
    try:
        spec, notes = build_spec(tree, run_name(name, filled), source, origin)
    except SpecError as error:
        raise SpecError([blame(p, written) for p in error.problems], source) from None
    for note in notes:
        warnings.warn(f"{source}: {note}", SpecWarning, stacklevel=3)
    spec._is_yaml = path.suffix != ".json"
    return spec


def spec_from_dict(tree: dict[str, Any], name: str | None = None) -> Spec:
    """Build the Spec of plain data, as `Spec.to_dict` gives it."""
    label = name or str(tree.get("name") or "spec")
    spec, notes = build_spec(coerce_numbers(tree), label, label)
    for note in notes:
        warnings.warn(f"{label}: {note}", SpecWarning, stacklevel=2)
    return spec


def spec_names(file: str | Path) -> list[str]:
    """Names of the runnable specs in a file, in its order."""
    path = find_spec_file(file)
    return list(_specs_in(_read_text(path), path))


class SpecCheck(NamedTuple):
    """Result of `check_file` for one spec."""

    name: str
    problems: list[Problem]
    warnings: list[str]
    env: EnvSpec | None = None  # of a spec without problems

    @property
    def ok(self) -> bool:
        return not self.problems


def check_file(file: str | Path) -> list[SpecCheck]:
    """Check every spec of a file; placeholders are filled with values that fit the file."""
    path = find_spec_file(file)
    origin = None if run_place(path) is None else SpecOrigin(path, frozenset())
    text = _fill_defaults(_read_text(path), path)
    values = [(key, _example_value(key, path.as_posix())) for key in set(PLACEHOLDER.findall(text))]
    text = _fill(text, values, path)
    checks = []
    for name, tree in _specs_in(text, path).items():
        try:
            spec, notes = build_spec(coerce_numbers(tree), name, origin=origin)
            checks.append(SpecCheck(name, [], notes, spec.env))
        except SpecError as error:
            checks.append(SpecCheck(name, error.problems, []))
    return checks


def example_sets(file: str | Path, name: str) -> list[str]:
    """Choose `-s` values for a spec's open placeholders that fit its family of envs."""
    path = find_spec_file(file)
    open_keys = _placeholders(_fill_defaults(_read_text(path), path), name, path)
    hint = f"{path.as_posix()} {name}"
    return [f"{key}={_example_value(key, hint)}" for key in sorted(open_keys)]


def upgrade_file(file: str | Path) -> tuple[str, dict[str, list[str]]]:
    """Convert every v4 spec of a file to today's shape; the others stay as they are.

    Returns the text of the new file, and what changed, by spec.
    """
    path = find_spec_file(file)
    tree = _lenient(_read_text(path))
    if tree is None:
        raise _refusal(path, "neither JSON nor YAML holds specs here")
    single = is_v4(tree)  # saved with a run: the file is the spec
    specs = {str(tree.get("name") or path.stem): tree} if single else tree
    notes: dict[str, list[str]] = {}
    for name, spec in list(specs.items()):
        if is_v4(spec):
            specs[name], notes[name] = upgrade_spec(spec)
    if not notes:
        raise _refusal(path, "no spec in the file has the v4 shape", "--upgrade")
    upgraded = coerce_numbers(next(iter(specs.values())) if single else specs)
    if path.suffix == ".json":
        return json.dumps(upgraded, indent=2) + "\n", notes
    return yaml.safe_dump(upgraded, sort_keys=False), notes


def packaged_spec_dir() -> Path:
    """The folder of the specs that ship with the package."""
    return Path(__file__).parent


def packaged_specs() -> Iterator[tuple[Path, str]]:
    """(file, spec name) of every shipped spec; the file is relative to `packaged_spec_dir`."""
    return ((file, name) for file, name, _ in packaged_trees())


def packaged_trees() -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """(file, spec name, plain tree) of every shipped spec, placeholders without a default left."""
    for path in _packaged_files():
        for name, tree in _specs_in(_fill_defaults(_read_text(path), path), path).items():
            yield path.relative_to(packaged_spec_dir()), name, coerce_numbers(tree)


def packaged_file(name: str) -> Path | None:
    """The file, relative to `packaged_spec_dir`, of the shipped spec of that name."""
    return next((file for file, spec_name in packaged_specs() if spec_name == name), None)


def find_spec_file(file: str | Path) -> Path:
    """Find a file as given or inside the package, also where its suffix has changed."""
    given = Path(file)
    below = given.as_posix().removeprefix("./").removeprefix("slm_lab/spec/")
    places = [given, packaged_spec_dir() / below]
    renamed = [path.with_suffix(suffix) for path in places for suffix in _SUFFIXES if path.name]
    for path in (*places, *renamed):
        try:
            if path.is_file() and path.suffix in _SUFFIXES:
                return path
        except (OSError, ValueError):  # a name too long, or with a null byte, names no file
            break
    raise SpecError([_no_such_file(given)], str(file))


def _no_such_file(given: Path) -> Problem:
    try:
        if given.is_file():
            return Problem("SPEC_FILE", f"a spec file ends in {', '.join(_SUFFIXES)}")
        siblings = [p for p in given.parent.glob("*") if p.suffix in _SUFFIXES]
    except (OSError, ValueError):
        siblings = []
    known = {p.name: p.as_posix() for p in siblings[:1000]}
    known |= {p.name: p.relative_to(packaged_spec_dir()).as_posix() for p in _packaged_files()}
    if not given.suffix:  # it may be meant as the name of a shipped spec
        known |= {name: name for _, name in packaged_specs()}
    close = [known[name] for name in nearest(given.name, known, count=5)]
    hint = "`slm-lab specs` lists the shipped ones."
    if close:
        hint = f"Did you mean {', '.join(close)}?"
    return Problem("SPEC_FILE", f"no such file or shipped spec. {hint}")


def _packaged_files() -> list[Path]:
    files = [path for path in packaged_spec_dir().rglob("*") if path.suffix in _SUFFIXES]
    return sorted(path for path in files if not path.name.startswith("_"))


def _refusal(path: Path, message: str, at: str = "") -> SpecError:
    return SpecError([Problem(at, message)], path.name)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Make a SpecError, which names the file, of text that is no spec."""
    try:
        yield
    except TextError as error:
        raise _refusal(path, str(error)) from None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file, _explained(path):
            return decode(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from None


def _fill_defaults(text: str, path: Path) -> str:
    """Fill placeholders that no flag filled from the file's own `_defaults`.

    So `slm-lab run FILE NAME` works as printed, and `-s max_frame=...` still reaches every place
    that depends on the budget.
    """
    if DEFAULTS not in text:
        return text
    tree = _tree_of(text, path)
    defaults = tree.get(DEFAULTS, {}) if isinstance(tree, dict) else {}
    values = defaults.values() if isinstance(defaults, dict) else [None]
    if not all(isinstance(value, str | int | float) for value in values):
        message = "expected a mapping of placeholders to values, such as max_frame: 4e6"
        raise _refusal(path, message, DEFAULTS)
    return _fill(text, [(key, str(value)) for key, value in defaults.items()], path)


def _fill(text: str, values: Iterable[tuple[str, str]], path: Path) -> str:
    with _explained(path):
        for key, value in values:
            text = fill(text, key, value)
    return text


def _placeholders(template: str, name: str, path: Path) -> set[str]:
    """Find the placeholders of one spec; of the whole file where it cannot be parsed with them."""
    try:
        return {key for _, key in unfilled(_specs_in(template, path)[name])}
    except (SpecError, KeyError):
        return set(PLACEHOLDER.findall(template))


def _tree_of(text: str, path: Path) -> Any:
    try:
        return parse(text, is_json=path.suffix == ".json")
    except TextError as error:
        if path.suffix == ".json" and (old := _lenient(text)) and any(map(is_v4, old.values())):
            raise _refusal(path, V4_MESSAGE, "agent") from None
        raise _refusal(path, str(error)) from None


def _lenient(text: str) -> dict[str, Any] | None:
    """Parse a JSON mapping that may have trailing commas, as v4 allowed; None if it is none."""
    try:
        tree = parse(text, is_json=False)
    except TextError:
        return None
    return tree if isinstance(tree, dict) else None


def _specs_in(text: str, path: Path) -> dict[str, dict[str, Any]]:
    """Specs of a file: its public entries, or the file itself when it was saved with a run."""
    tree = _tree_of(text, path)
    if not isinstance(tree, dict):
        kind = "empty" if tree is None else f"a {type(tree).__name__}"
        raise _refusal(path, f"the file is {kind}; expected a mapping of spec names to specs")
    if "agent" in tree and "env" in tree:
        saved = SPEC_FILE.fullmatch(path.name)
        return {str(tree.get("name") or (saved["name"] if saved else path.stem)): tree}
    specs = {name: spec for name, spec in tree.items() if not name.startswith(_PRIVATE)}
    for name, spec in specs.items():
        if not isinstance(spec, dict):
            raise _refusal(path, "expected a spec: a mapping with agent, env and meta", name)
    return specs


def _choose(specs: dict[str, dict[str, Any]], name: str | None, path: Path) -> str:
    if name is None and len(specs) == 1:
        return next(iter(specs))
    if name in specs:
        return str(name)
    if not specs:
        raise _refusal(path, "the file holds no spec", "SPEC_NAME")
    close = nearest(name or "", specs, count=len(specs))
    names = [*close, *(other for other in specs if other not in close)]
    found = "missing" if name is None else f"no spec `{name}`"
    raise _refusal(path, f"{found}; the file has {', '.join(names)}", "SPEC_NAME")


def _source(path: Path, name: str) -> str:
    if path.stem == name:
        return path.name
    return f"{path.name}: {shown(name) if name_complaint(name) else name}"


def _example_value(key: str, file_and_name: str) -> str:
    if key == "max_frame":
        return "1e5"
    if key != "env":
        return "1"
    for family, env in _EXAMPLE_ENVS.items():
        if family in file_and_name:
            return env
    return "CartPole-v1"
