"""`slm-lab spec` and `slm-lab specs`: print, check, convert and list spec files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from slm_lab.cli.options import BAD_INPUT, Sets, print_columns
from slm_lab.error import LabError

if TYPE_CHECKING:
    from slm_lab.spec.load import SpecCheck


def spec(
    files: Annotated[
        list[str] | None,
        Argument(
            metavar="FILE",
            help="A spec file and a name in it, or a shipped spec's name; with --check, files.",
        ),
    ] = None,
    sets: Sets = None,
    check: Annotated[bool, Option("--check", help="Validate whole files.")] = False,
    upgrade: Annotated[
        bool, Option("--upgrade", help="Write a file of SLM Lab v4 in today's shape.")
    ] = False,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File that --upgrade writes.")
    ] = None,
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON Schema of spec files, for editors.")
    ] = False,
    docs: Annotated[
        bool, Option("--docs", help="Print the reference of all keys, in Markdown.")
    ] = False,
    compatibility: Annotated[
        bool, Option("--compatibility", help="Print which features go together, in Markdown.")
    ] = False,
    glossary: Annotated[
        bool, Option("--glossary", help="Print what every column and metric means, in Markdown.")
    ] = False,
) -> None:
    """Print a resolved spec, or check whole files. Without arguments: list the shipped specs."""
    from slm_lab.spec import load_spec, packaged_specs

    if schema or docs:
        from slm_lab.spec.reference import file_schema, reference_page

        page = json.dumps(file_schema(), indent=2) + "\n" if schema else reference_page()
        typer.echo(page, nl=False)
    elif compatibility:
        from slm_lab.spec.compatibility import compatibility_page

        typer.echo(compatibility_page(), nl=False)
    elif glossary:
        from slm_lab.runs.glossary import page as glossary_page

        typer.echo(glossary_page(), nl=False)
    elif not files:
        for path, spec_name in packaged_specs():
            typer.echo(f"{path.as_posix()}  {spec_name}")
    elif check:
        raise typer.Exit(_check_files(files))
    elif upgrade:
        if len(files) != 1:
            raise typer.BadParameter("--upgrade takes one FILE")
        _upgrade(files[0], output)
    elif len(files) > 2:
        raise typer.BadParameter("give one FILE and one NAME, or --check FILE…")
    else:
        name = files[1] if len(files) == 2 else None
        typer.echo(json.dumps(load_spec(files[0], name, sets=sets or []).resolved(), indent=2))


def specs(
    pattern: Annotated[
        str,
        Argument(metavar="PATTERN", help="Part of a name, file, algorithm or env; * and ? work."),
    ] = "",
) -> None:
    """List the shipped specs: name, file, algorithm, env, budget, target."""
    from slm_lab.spec.catalog import catalog

    rows = [
        (
            entry.name,
            entry.file.as_posix(),
            entry.algorithm,
            entry.env or "-s env=…",
            "-s max_frame=…" if entry.max_frame is None else f"{entry.max_frame:,}",
            "by env" if entry.env is None else "" if entry.target is None else f"{entry.target:g}",
        )
        for entry in catalog(pattern)
    ]
    if not rows:
        typer.echo(f"No shipped spec fits `{pattern}`. `slm-lab specs` lists them all.", err=True)
        raise typer.Exit(BAD_INPUT)
    head = ("NAME", "FILE", "ALGORITHM", "ENV", "FRAMES", "TARGET")
    print_columns(head, rows, right=("FRAMES", "TARGET"))


def _upgrade(file: str, output: Path | None) -> None:
    """Write the converted file beside the old one and print what changed."""
    from slm_lab.spec import Problem, SpecError, check_file, find_spec_file, upgrade_file

    path = find_spec_file(file)
    text, notes_by_spec = upgrade_file(path)
    target = output or Path(f"{path.stem}_v5{path.suffix}")
    if target.exists():
        fix = "exists already; name another file with --output, or move that one away"
        raise SpecError([Problem(str(target), fix)], "the command")
    target.write_text(text)
    for name, notes in notes_by_spec.items():
        typer.echo(name)
        for note in notes:
            typer.echo(f"  {note}")
    typer.echo(f"Wrote {target}. Checking it:")
    results = check_file(target)
    for result in results:
        _print_check(result.ok, result.name, result.problems)
    if not all(result.ok for result in results):
        raise typer.Exit(BAD_INPUT)


def _check_files(files: list[str]) -> int:
    from slm_lab.spec import SpecError, check_file

    is_ok = True
    for file in files:
        try:
            results = check_file(file)
        except SpecError as error:
            is_ok = False
            _print_check(False, file, error.problems)
            continue
        for result in results:
            problems = [*map(str, result.problems), *_env_problems(result)]
            warnings = [f"warning: {warning}" for warning in result.warnings]
            is_ok &= not problems
            _print_check(not problems, f"{file}  {result.name}", [*problems, *warnings])
    return 0 if is_ok else BAD_INPUT


def _env_problems(check: SpecCheck) -> list[str]:
    """Whether the env of a spec is there; a missing package becomes a warning of the check."""
    if check.env is None:
        return []
    from slm_lab.env.registry import MissingPackage, look_up  # gymnasium

    try:
        look_up(check.env)
    except MissingPackage as missing:
        check.warnings.append(str(missing))
    except LabError as error:
        return [str(error)]
    return []


def _print_check(is_ok: bool, name: str, notes: Sequence[object]) -> None:
    typer.echo(f"{'ok' if is_ok else 'FAIL':4}  {name}")
    for note in notes:
        typer.echo(f"      {note}")
