"""Files that a page of the documents shows, for tests that do as its reader does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# A line that begins with the file's name in backticks, up to the block with its content; or a block
# whose first line is a comment with the name.
_SHOWN = (
    re.compile(r"^`([\w.-]+\.\w+)`[^`]*\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL),
    re.compile(r"^```\w+\n# ([\w.-]+\.\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL),
)


def write_shown_files(page: str, folder: Path) -> list[Path]:
    """Write every file that the text of a page shows, and return their paths."""
    paths = []
    for shown in _SHOWN:
        for name, content in shown.findall(page):
            paths.append(folder / name)
            paths[-1].write_text(content)
    return paths


def forget_modules(folder: Path) -> None:
    """Let modules that were imported from a folder be imported anew, from another one."""
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
