"""The page on the command line, made from the commands themselves."""

from __future__ import annotations

import enum
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.main import get_command

from slm_lab.cli.main import COMMANDS, GROUPS, SETTINGS, app
from slm_lab.cli.options import TODAY

WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}
INTRODUCTION = """\
# Command line

This page is generated: `python -m docs_site` writes it. `slm-lab --help` lists the commands, and
`--help` behind a command shows what stands here.

## What all commands have in common

- **SPEC_FILE** is looked up from the working directory first, then inside the package, with or
  without its folder `slm_lab/spec/`, and under each of the suffixes json, yaml and yml. A shipped
  spec needs no file: `slm-lab run ppo_cartpole train`. A file with one spec needs no name:
  `slm-lab run FILE train`. A file alone lists its names, `slm-lab specs` lists what ships.
- `slm-lab SPEC_FILE SPEC_NAME MODE`, without `run`, does the same. Without any argument `slm-lab`
  prints its help, and `slm-lab run` trains the demo.
- **FOLDER** is a path, the name of a run in the data folder, or `latest`. A spec file inside of a
  run folder stands for the folder, and a path with `*` for its last match.
- `-d`, `--data DIR` is the folder that holds the runs, `data` by default.
- `-o`, `--output` is the file or the folder that a command writes.
- `-h`, `--help` belongs to every command; `slm-lab --version` prints the version.
- A command ends with exit code 0, or with one line on stderr and
    - **2** for bad input: a spec, a flag, a file or a folder that cannot be used,
    - **1** for work that was begun and failed,
    - **130** or **143** (128 and the number of the signal) for a run that Ctrl-C or SIGTERM ended
      early, after its files were written. The line before says how to resume it.
- The traceback of an unexpected error is in the log of the run, else in a file that the line
  names; `SLM_LAB_DEBUG=1` shows it.
"""


def page() -> str:
    """The page: conventions, then every command in the order and the groups of `--help`."""
    lines = [INTRODUCTION + "\n".join(_conventions_of_the_code())]
    known: Any = get_command(app)
    for panel, functions in COMMANDS.items():
        lines.append(f"## {panel}\n")
        for name in functions:
            lines += _command(name, known.commands[name])
    for name, group in GROUPS.items():  # of the last panel
        lines.append(f"`slm-lab {name}`: {_sentence(group.info.help)}\n")
        for word, command in known.commands[name].commands.items():
            lines += _command(f"{name} {word}", command)
    return "\n".join(lines)


def _conventions_of_the_code() -> Iterator[str]:
    """List items that name what the code names: earlier spellings, and settings of `.env`."""
    former = ", ".join(f"`{old}` for `{new}`" for old, new in TODAY.items())
    names = ", ".join(f"`{name}`" for name in sorted(SETTINGS))
    for item in (
        f"Earlier spellings are still understood: {former}.",
        f"A file `.env` in the working directory gives these settings and no others: {names}. What "
        "the shell sets comes first, and no file below a run or data folder is read. [Environment "
        "variables](environment.md) says what each is for.",
    ):
        yield textwrap.fill(item, 100, initial_indent="- ", subsequent_indent="  ", **WHOLE_WORDS)
    yield ""


def _command(name: str, command: Any) -> Iterator[str]:
    function = inspect.unwrap(command.callback)
    shown = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [p for p in shown if not p.opts[0].startswith("-")]
    options = [p for p in shown if p.opts[0].startswith("-")]
    words = " ".join(_argument(argument) for argument in arguments)
    yield f"### slm-lab {name}\n"
    yield f"    slm-lab {name} {words}".rstrip() + "\n"
    yield f"{_sentence(inspect.getdoc(function))}\n"
    hints = get_type_hints(function)
    if arguments:
        yield "| argument | meaning |\n|---|---|"
        yield from (f"| `{_argument(p)}` | {_cell(p.help)}{_default(p)} |" for p in arguments)
        yield ""
    if options:
        yield "| option | takes | default | meaning |\n|---|---|---|---|"
        yield from (_option(p, hints[p.name]) for p in options)
        yield ""


def _argument(parameter: Any) -> str:
    """An argument as `--help` has it, in brackets if it may be left out."""
    name = parameter.metavar or parameter.name.upper()
    return str(name) if parameter.required else f"[{name}]"


def _option(parameter: Any, hint: Any) -> str:
    names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name[:2] == "--")
    spelled = ", ".join(f"`{name}`" for name in names)
    meaning = _cell(parameter.help)
    if parameter.envvar:
        meaning += f" Variable: `{parameter.envvar}`."
    default = _value(parameter.default)
    if parameter.is_flag and parameter.secondary_opts:
        default = f"`{(parameter.opts if parameter.default else parameter.secondary_opts)[0]}`"
    return f"| {spelled} | {_kind(parameter, hint)} | {default} | {meaning} |"


def _kind(parameter: Any, hint: Any) -> str:
    """What follows an option, in a word or two; nothing follows a flag."""
    if parameter.is_flag:
        return ""
    if parameter.metavar:
        return f"`{parameter.metavar}`"
    (kind,) = [part for part in get_args(hint) or (hint,) if part is not NoneType][:1]
    if get_origin(hint) is Literal:
        kind = hint
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    return {int: "whole number", float: "number", str: "text", Path: "path"}[kind]


def _default(parameter: Any) -> str:
    found = _value(parameter.default)
    return f" Default: {found}." if found else ""


def _value(default: Any) -> str:
    if isinstance(default, bool) or default in (None, "", ()):
        return ""
    return f"`{default.as_posix() if isinstance(default, Path) else default}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _sentence(text: str | None) -> str:
    """A docstring as paragraphs whose lines are not broken."""
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
