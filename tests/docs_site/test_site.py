"""The documentation site: built from docs/ with nothing missing, and looked at in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs_site.links import repository_link

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def build(project: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "docs", project / "docs")
    shutil.copy(ROOT / "zensical.toml", project)
    built = build(project)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stderr
    return project / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def pages_of(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = list(nav.values()) if isinstance(nav, dict) else nav
    assert isinstance(parts, list)
    return [page for part in parts for page in pages_of(part)]


def test_every_page_stands_in_the_navigation_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")]
    assert sorted(pages_of(nav)) == sorted(pages)


def test_a_link_out_of_the_pages_leads_to_the_repository() -> None:
    home = "https://example.org/lab"
    assert repository_link("SPEC.md", "../Makefile#L3", home) == f"{home}/blob/main/Makefile#L3"
    assert repository_link("design/acting.md", "../../slm_lab/agent", home) == (
        f"{home}/tree/main/slm_lab/agent"
    )
    for stays in ("SEARCH.md", "#top", "../docs/SEARCH.md", "https://example.org/x.md"):
        assert repository_link("SPEC.md", stays, home) is None


def test_a_link_to_a_file_that_is_not_there_fails_the_build() -> None:
    with pytest.raises(ValueError, match=r"docs/SPEC\.md links to \.\./nothing\.py"):
        repository_link("SPEC.md", "../nothing.py", "https://example.org/lab")


@pytest.mark.slow
@pytest.mark.parametrize("link", ["nowhere.md", "index.md#no-such-heading", "../nothing.py"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\nA [link]({link}).\n")
    text = (ROOT / "zensical.toml").read_text()
    nav = text[text.index("nav = [") : text.index("[project.theme]")]
    (tmp_path / "zensical.toml").write_text(text.replace(nav, 'nav = ["index.md"]\n\n'))
    assert build(tmp_path).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_opens_from_disk_is_searched_and_asks_no_other_host(
    site: Path, browser: Any, scheme: str
) -> None:
    page = browser.new_page(color_scheme=scheme)
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "index.html").as_uri())
    assert page.title() == "Home - SLM Lab"
    page.keyboard.press("Control+k")
    page.keyboard.type("Where a time limit is bootstrapped")
    page.locator("a[href*='#where-a-time-limit-is-bootstrapped']").first.click()
    page.wait_for_url("**/ARCHITECTURE.html*")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, background.strip("rgba()").split(",")[:3])) < 3 * 128
    assert is_dark == (scheme == "dark")
    assert not [url for url in asked if not url.startswith("file:")]
    assert not errors
    page.close()
