"""The reference pages say what the code has: commands, public names, files, variables."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import slm_lab
from docs_site import python_page
from docs_site.__main__ import PAGES
from slm_lab import extend
from slm_lab.cli.main import COMMANDS, GROUPS, SETTINGS
from slm_lab.lazy import homes_of_stub
from slm_lab.runs.layout import RunLayout

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
HOMES = homes_of_stub(slm_lab.__file__) | homes_of_stub(extend.__file__)
PUBLIC = [(home, name) for name, home in HOMES.items()]


# The pages that are made from the code


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run: python -m docs_site"


def test_every_command_and_option_stands_on_the_page() -> None:
    page = (REFERENCE / "cli.md").read_text()
    names = [name for commands in COMMANDS.values() for name in commands]
    for name, group in GROUPS.items():
        functions = [info.callback for info in group.registered_commands]
        names += [
            f"{name} {function.__name__.split('_')[-1]}" for function in functions if function
        ]
    headings = re.findall(r"^### slm-lab (.+)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings)) == len(names)
    assert "| `-s`, `--set` | `KEY=VALUE` |" in page
    assert "| `--compile` | `auto`, `on`, `off` |" in page
    assert "| `--legend`, `--no-legend` |  | `--legend` | Draw a legend. |" in page


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_every_public_name_and_each_of_its_members_has_a_docstring(module: str, name: str) -> None:
    thing = getattr(import_module(module), name)
    assert any(python_page.docstring(module, name).split())
    if inspect.isclass(thing):
        silent = [head for head, words in python_page.members(thing).values() if not words]
        assert silent == []


# Environment variables


READERS = {"get", "pop", "setdefault", "getenv"}


def variables_in(source: str) -> set[str]:
    """Names of environment variables that a module reads, sets or declares for an option."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            keys += [word.value for word in node.keywords if word.arg == "envvar"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
                keys += node.args[:1] if is_environment(node.func.value) else []
        elif isinstance(node, ast.Subscript) and is_environment(node.value):
            keys.append(node.slice)
        elif isinstance(node, ast.Compare) and is_environment(node.comparators[0]):
            keys.append(node.left)
        elif isinstance(node, ast.AugAssign | ast.BinOp):
            left = node.target if isinstance(node, ast.AugAssign) else node.left
            right = node.value if isinstance(node, ast.AugAssign) else node.right
            if is_environment(left) and isinstance(right, ast.Dict):
                keys += right.keys
        elif isinstance(node, ast.Assign) and "_VARIABLE" in ast.unparse(node.targets[0]):
            keys.append(node.value)
        texts = [key.value for key in keys if isinstance(key, ast.Constant)]
        found |= {text for text in texts if isinstance(text, str)}
    return found


def is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os", "os.environ", "environ", "environment")


def test_the_search_for_variables_finds_each_way_to_use_one() -> None:
    source = """
X_VARIABLE = "A"
os.environ["B"], os.environ.get("C", ""), os.getenv("D"), "E" in os.environ
os.environ |= {"F": "0"}
subprocess.run(x, env=os.environ | {"G": "1"})
Option(envvar="H")
environ.setdefault("I", "1")
options.get("J"), {"K": 1} | {"L": 2}
"""
    assert variables_in(source) == set("ABCDEFGHI")


def test_every_variable_of_the_code_stands_on_the_page_and_no_other() -> None:
    used = set(SETTINGS)
    for path in (ROOT / "slm_lab").rglob("*.py"):
        used |= variables_in(path.read_text())
    for path in (ROOT / ".dstack").glob("run-*.yml"):
        used |= set(re.findall(r"^  - ([A-Z0-9_]+)$", path.read_text(), re.MULTILINE))
    page = (REFERENCE / "environment.md").read_text()
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    listed = re.findall(r"`([A-Z0-9_]+)`", "\n".join(cells))
    assert sorted(listed) == sorted(used)


def test_only_settings_are_said_to_be_read_from_a_dotenv_file() -> None:
    page = (REFERENCE / "environment.md").read_text()
    settings = page.partition("## Trust")[0]
    assert set(re.findall(r"^\| `([A-Z0-9_]+)`", settings, re.MULTILINE)) == SETTINGS


# Files of a run folder


WORDS = {"LABEL": r"[\w.-]+", "NET": r"\w+", "Y": r"\w+", "X": r"\w+"}
SAMPLES: dict[str, Any] = {
    "trial": 0,
    "session": 0,
    "mode": "train",
    "x": "frames",
    "y": "mean_returns_ma",
    "kind": "parallel",
    "best": True,
    "sampled": False,
    "net": "critic_net",
}


def listed_files(run: str) -> list[re.Pattern[str]]:
    """The files that the page lists, of a run; one that ends in `/` stands for all below it."""
    rows = (REFERENCE / "run-folder.md").read_text().splitlines()
    cells = [row.split(" | ")[0] for row in rows if row.startswith("| `")]
    patterns = []
    for name in re.findall(r"`([^`]+)`", "\n".join(cells)):
        pattern = re.sub(r"(?<=_[ts])0", r"\\d+", re.escape(name.replace("NAME", run)))
        for word, meaning in WORDS.items():
            pattern = re.sub(rf"(?<![A-Z]){word}(?![A-Z])", meaning.replace("\\", r"\\"), pattern)
        patterns.append(re.compile(pattern + (".*" if name.endswith("/") else "")))
    assert len(patterns) > 50
    return patterns


def unlisted(names: Iterable[str], run: str) -> list[str]:
    patterns = listed_files(run)
    return [name for name in names if not any(p.fullmatch(name) for p in patterns)]


def test_every_path_of_a_run_stands_on_the_page(tmp_path: Path) -> None:
    layout, names = RunLayout(tmp_path, "demo_run"), []
    for name, method in inspect.getmembers(layout, inspect.ismethod):
        given = inspect.signature(method).parameters
        if name.startswith("_") or str(inspect.signature(method).return_annotation) != "Path":
            continue
        for kind in ("model", "optim") if name == "model_path" else ("parallel",):
            suffix = {"video_path": ".mp4", "policy_path": ".pt2"}.get(name, "")
            values = SAMPLES | {"kind": kind, "suffix": suffix}
            path = method(**{key: values[key] for key in given if key in values})
            names.append(path.relative_to(tmp_path).as_posix())
    names = [name for name in names if "." in name]  # others are folders
    assert len(names) > 30
    assert unlisted(names, layout.name) == []
    assert unlisted(["demo_run_t0_spec.toml"], layout.name) != [], "the patterns are not that wide"


def test_every_file_of_a_finished_run_stands_on_the_page(run_session: Any, make_spec: Any) -> None:
    run_session(make_spec("PPO", meta__rigorous_eval=1, meta__eval_frequency=50), profile=False)
    folder = run_session.layout.predir
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert len(names) > 5
    assert unlisted(names, run_session.layout.name) == []
