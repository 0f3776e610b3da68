"""`.env` of the working directory: variables for the commands, without `source .env`."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

MAX_BYTES = 100_000
LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
QUOTED = re.compile(r"""'([^']*)'\s*(?:#.*)?|"((?:[^"\\]|\\.)*)"\s*(?:#.*)?""")


class DotenvError(ValueError):
    """A line of `.env` that cannot be read. The message never repeats it: it may be a token."""


def load_dotenv(path: Path, environment: MutableMapping[str, str]) -> None:
    """Set what the file sets, unless it is set already: what the shell says comes first."""
    if not path.is_file():
        return
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DotenvError(f"{path}: {path.stat().st_size:,} bytes are too many for settings.")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DotenvError(f"{path}: is no UTF-8 text.") from None
    except OSError as error:
        raise DotenvError(f"{path}: cannot be read ({error.strerror}).") from None
    for name, value in parse(text, str(path)).items():
        environment.setdefault(name, value)


def parse(text: str, source: str = ".env") -> dict[str, str]:
    """NAME=value, one per line, with or without `export`; # begins a comment.

    Quotes keep spaces and #. Nothing is substituted and no command is run, unlike in a shell.
    """
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        value = _value(match[2]) if match else None
        if match is None or value is None or "\0" in value:
            raise DotenvError(
                f"{source}, line {number}: expected NAME=value, or quotes that close."
            )
        values[match[1]] = value
    return values


def _value(text: str) -> str | None:
    if text[:1] in ("'", '"'):
        match = QUOTED.fullmatch(text)
        if match is None:
            return None
        if match[1] is not None:
            return match[1]
        return re.sub(r"\\(.)", lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), match[2])
    return re.sub(r"(^|\s)#.*", "", text).strip()
