"""Write a tutorial as a notebook and execute it: `python -m docs_site.notebook FILE.md`.

Prose and blocks of python become cells. What a page shows as output is left out: a notebook has its
own. A page with other code, commands or files, stays a page.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OWN_NAME = re.compile(r"\n+This page is also a notebook: .*\n")
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook_of(page: str) -> Any:
    """The cells of a page, without outputs."""
    v4: Any = import_module("nbformat.v4")  # which has no types
    page = _OWN_NAME.sub("\n", page)
    cells, end = [], 0
    for block in [*_BLOCK.finditer(page), None]:
        prose = page[end : block.start() if block else None].strip()
        if prose:
            cells.append(v4.new_markdown_cell(prose))
        if block and block[1] == "python":
            cells.append(v4.new_code_cell(block[2].strip()))
        end = block.end() if block else end
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return v4.new_notebook(cells=cells, metadata={"kernelspec": _KERNEL})


def main(page: Path) -> None:
    from nbclient import NotebookClient

    notebook = notebook_of(page.read_text())
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, resources=place).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # times of the execution
    notebook.metadata = {"kernelspec": _KERNEL}
    nbformat: Any = import_module("nbformat")
    nbformat.write(notebook, page.with_suffix(".ipynb"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
