"""The how-to pages: every block of code on them runs, from top to bottom.

A block that begins with the comment `# NAME.py` or `# NAME.yaml` is that file.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slm_lab.cli.main import app

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+\.(py|yaml))\n")
SAYS = {
    "action-masks.md": ["4 columns, one per action"],
    "dict-observations.md": ["image (1, 32, 32) uint8"],
    "callbacks.md": ["REASON", "reached 25"],  # a column of `list`, and what stands in it
    "more-frames.md": [],
    "fine-tuning.md": [],
    "python.md": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("page", SAYS)
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    blocks = BLOCK.findall((PAGES / page).read_text())
    assert blocks
    names = {"__name__": "page"}  # of the blocks, which build on each other
    output = ""
    for kind, text in blocks:
        if match := FILE.match(text):
            Path(match[1]).write_text(text)
        elif kind == "python":
            exec(compile(text, page, "exec"), names)
        else:
            assert kind == "bash"
            for line in text.splitlines():
                done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
                assert done.exit_code == 0, f"{line}\n{done.output}{done.exception!r}"
                output += done.output
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]
    for words in SAYS[page]:
        assert words in output
    if page == "callbacks.md":
        assert output.count("reached 25") > 1
        assert "reached 25" in Path("ended.txt").read_text()
