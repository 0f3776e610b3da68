"""docs/algorithms/ and docs/concepts/ say what the code says."""

from __future__ import annotations

import json
import re
import warnings
from functools import cache
from html import unescape
from pathlib import Path

import pytest
from latex2mathml.converter import convert

from docs_site.algorithm_pages import PAGES, documented, filled, manifest
from slm_lab.spec import load_spec, spec_from_dict
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.compatibility import LEARNING
from slm_lab.spec.error import SpecWarning

INDEX = "README.md"
ALL = [*sorted(PAGES.glob("*.md")), *sorted((PAGES.parent / "concepts").glob("*.md"))]
ALGORITHM_PAGES = [page for page in ALL if page.parent == PAGES and page.name != INDEX]
HEADINGS = [
    *("Idea", "Equations", "Details, and why", "Keys", "Metrics", "Scores"),
    "When to choose it",
]
FUNCTION = re.compile(r"\[`(\w+)`\]\((\.\./[^)]+\.py)\)")
COMMAND = re.compile(r"^    slm-lab (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return f"{page.parent.name}/{page.stem}"


@cache
def text_of(page: Path) -> str:
    return page.read_text()


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_the_generated_parts_of_a_page_are_as_the_code_has_them(page: Path) -> None:
    fix = "run `python -m docs_site`"
    assert filled(text_of(page)) == text_of(page), fix


def test_a_key_with_another_default_changes_the_page() -> None:
    page = text_of(PAGES / "ppo.md")
    stale = page.replace("| `lam` | 0.95 |", "| `lam` | 0.9 |")
    assert stale != page
    assert filled(stale) == page


def test_every_algorithm_has_one_page_that_lists_its_keys() -> None:
    found = [name for page in ALGORITHM_PAGES for name in documented(text_of(page))]
    assert sorted(found) == sorted(LEARNING)


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=name_of)
def test_a_page_explains_every_column_of_its_algorithms(page: Path) -> None:
    metrics = text_of(page).partition("## Metrics")[2]
    inherited = re.findall(r"\]\((\w+\.md)#metrics\)", metrics)
    explained = metrics + "".join(text_of(PAGES / each) for each in inherited)
    columns = {column for name in documented(text_of(page)) for column in ALGORITHMS[name].columns}
    assert [column for column in sorted(columns) if f"`{column}`" not in explained] == []


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=name_of)
def test_all_pages_have_the_same_form(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", text_of(page), re.MULTILINE)
    assert [each for each in headings if each != "Spaces"] == HEADINGS


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_a_function_that_a_page_links_to_is_defined_in_that_file(page: Path) -> None:
    missing = [
        f"{name} in {path}"
        for name, path in FUNCTION.findall(text_of(page))
        if not re.search(rf"^ *(def|class) {name}\b", (page.parent / path).read_text(), re.M)
    ]
    assert missing == []


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_the_commands_and_specs_of_a_page_are_valid(page: Path) -> None:
    text = text_of(page)
    with warnings.catch_warnings(action="ignore", category=SpecWarning):
        for command in COMMAND.findall(text):
            words = command.split("#")[0].split()
            if words[0] == "run" and len(words) > 3 and "/" in words[1]:
                sets = [words[i + 1] for i, word in enumerate(words) if word == "-s"]
                assert load_spec(words[1], words[2], sets=sets)
            elif words[:2] == ["benchmark", "run"]:
                flags = dict(zip(words[2::2], words[3::2], strict=True))
                assert manifest().choose(
                    phases=[int(flags["--phase"])],
                    envs=[flags["--env"]],
                    algorithms=[flags["--algo"]],
                )
        for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
            for name, tree in json.loads(block).items():
                assert spec_from_dict(tree, name)


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_every_equation_becomes_mathml(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]+`", "", text_of(page), flags=re.DOTALL)
    equations = re.findall(r"\$([^$]+)\$", prose)
    assert "$" not in re.sub(r"\${1,2}[^$]+\${1,2}", "", prose)
    left = [each for each in equations if "\\" in unescape(convert(each.strip()))]
    assert left == [], "latex2mathml does not know a command and shows it as it is"
