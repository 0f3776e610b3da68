"""Settings for the commands from `.env` in the working directory, without `source .env`."""

from __future__ import annotations

import io
from collections.abc import MutableMapping
from pathlib import Path

from slm_lab.error import LabError

MAX_BYTES = 100_000

# Only these are taken from the file. Other variables decide which programs a process starts and
# which code they load (GIT_SSH_COMMAND, IMAGEIO_FFMPEG_EXE, CXX, LD_PRELOAD, PYTHONPATH).
SETTINGS = frozenset(
    {
        "HF_REPO",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "UPLOAD_HF",
        "RENDER",
        "LOG_LEVEL",
        "LOG_EXTRA",
        "OPTIMIZE_PERF",
        "CUDA_OFFSET",
        "PROFILE",
        "PROF_SKIP",
        "PROF_ACTIVE",
        "KEEP_TRIALS",
        "RAY_ADDRESS",
        "WANDB_MODE",
        "WANDB_PROJECT",
        "WANDB_API_KEY",
        "DSTACK_SERVER_URL",
    }
)


class DotenvError(LabError):
    """A line of `.env` that cannot be read. The message never repeats it: it may be a token."""


def load_dotenv(path: Path, environment: MutableMapping[str, str]) -> str:
    """Take the settings of a file that the shell has not set.

    A file of a run folder, which may have come from anywhere, is not read; the returned message
    says so to the user.
    """
    if not path.is_file():
        return ""
    from slm_lab.spec.run_folder import run_place  # only with a file, so that others need not wait

    if folder := run_place(path):
        return f"{path}: not read, because it belongs to runs ({folder})."
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DotenvError(f"{path}: {path.stat().st_size:,} bytes are too many for settings.")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DotenvError(f"{path}: is no UTF-8 text.") from None
    except OSError as error:
        raise DotenvError(f"{path}: cannot be read ({error.strerror}).") from None
    for name, value in parse(text, str(path)).items():
        if name in SETTINGS:
            environment.setdefault(name, value)
    return ""


def parse(text: str, source: str = ".env") -> dict[str, str]:
    """NAME=value, one per line, as `python-dotenv` reads it; nothing is substituted or run."""
    from dotenv.parser import parse_stream

    values = {}
    for binding in parse_stream(io.StringIO(text)):
        value = binding.value or ""
        if binding.error or "\0" in value:
            statement = binding.original.string
            blank = statement[: len(statement) - len(statement.lstrip())].count("\n")
            raise DotenvError(
                f"{source}, line {binding.original.line + blank}: expected NAME=value, or quotes "
                "that close."
            )
        if binding.key is not None and binding.value is not None:
            values[binding.key] = value
    return values
