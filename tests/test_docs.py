"""What the documents show is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_picture_and_page_that_a_document_points_to_exists(page):
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_pictures_are_small():
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert [p.name for p in pictures if p.stat().st_size > 200_000] == []


# Pages that a command writes, from tables.
GENERATED = ["SPEC.md", "COMPATIBILITY.md", "GLOSSARY.md", "BENCHMARKS.md", "reference/cli.md"]
WRITTEN = sorted({*PAGES} - {ROOT / "docs" / name for name in GENERATED})


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_over_100_columns(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not re.match(r"\||    |<!--|!\[", line)]
    without_addresses = [re.sub(r"\]\([^)]*\)", "]", line) for line in lines]
    assert [line for line in without_addresses if len(line) > 100] == []
