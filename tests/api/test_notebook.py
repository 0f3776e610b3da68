"""The tutorials that are notebooks, executed in a real Jupyter kernel with smaller budgets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs_site.notebook import notebook_of

nbformat = pytest.importorskip("nbformat", reason="the extra `dev` brings it")
nbclient = pytest.importorskip("nbclient", reason="the extra `dev` brings it")
pytest.importorskip("ipykernel", reason="the extra `dev` brings it")

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FIRST_RUN, READING = TUTORIALS / "first-run.ipynb", TUTORIALS / "reading-curves.ipynb"
SMALL = {
    "frames=50_000": "frames=2_500, compile='off'",
    "frames=40_000": "frames=2_500, compile='off'",
    "8_000": "600",
    "4_000": "600",
}


def outputs(cell: Any) -> dict[str, str]:
    """What a cell shows, by kind: `stderr`, `text/html`, ..."""
    found: dict[str, str] = {}
    for output in cell.outputs:
        if output.output_type == "stream":
            found[output.name] = found.get(output.name, "") + output.text
        for kind, content in output.get("data", {}).items():
            found[kind] = found.get(kind, "") + content
    return found


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def executed(path: Path, folder: Path) -> list[dict[str, str]]:
    """What each cell of the notebook shows, with smaller budgets."""
    notebook = nbformat.read(path, as_version=4)
    cells = code_cells(notebook)
    for cell in cells:
        for budget, smaller in SMALL.items():
            cell.source = cell.source.replace(budget, smaller)
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=place).execute()
    return [outputs(cell) for cell in cells]


@pytest.mark.slow
def test_every_cell_of_the_first_run_runs_in_a_kernel(tmp_path):
    training, result, table, score, evaluation, own_env, saved = executed(FIRST_RUN, tmp_path)

    progress = training["text/html"]
    assert progress.count("2,500 of 2,500 frames") == 2, "both sessions, in one table"
    assert progress.count("<table>") == 1, "redrawn in place"
    assert "stderr" not in training, "no lines of the log"
    assert "<b>PPO on CartPole-v1</b>" in result["text/html"]
    assert "data:image/png;base64," in result["text/html"]
    assert "2500.0" in table["text/plain"]
    assert float(score["text/plain"]) >= 8
    assert evaluation["text/plain"].startswith("Evaluation(mean=")
    assert own_env["text/html"].count("600 of 600 frames") == 2, "the class reached both sessions"
    assert "Only from here can this run be resumed" in own_env["stderr"]
    assert "image/png" in own_env
    assert float(saved["text/plain"].rpartition(">")[2]) > 8, "after the progress of the new run"


@pytest.mark.slow
def test_every_cell_of_reading_curves_runs_in_a_kernel(tmp_path):
    _, table, curve, inside, by_hand = executed(READING, tmp_path)
    assert "total_reward_ma" in table["stdout"]
    assert "image/png" in curve
    assert "explained_variance" in inside["stdout"]
    assert by_hand["stdout"].startswith("strength ")


def test_a_notebook_of_a_page_has_the_cells_of_the_page():
    page = notebook_of(READING.with_suffix(".md").read_text())
    notebook = nbformat.read(READING, as_version=4)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in page.cells]


@pytest.mark.parametrize("path", [FIRST_RUN, READING], ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_committed_and_small(path):
    text = path.read_text()
    assert len(text) < 100_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", text), "no path of a machine"
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert cell.outputs
        assert all(output.output_type != "error" for output in cell.outputs)
