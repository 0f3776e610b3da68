"""Markdown extension: links from a page to a file outside docs/ lead to the repository.

In a checkout such a link opens the file; a built site does not hold it. A link to a file that does
not exist fails the build, as Zensical does for links between pages.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from zensical.extensions.context import ContextPreprocessor

ROOT = Path(__file__).resolve().parents[1]


def repository_link(page: str, href: str, repository: str) -> str | None:
    """Address of the file that a page, a path below docs/, links to; None if it stays in docs/."""
    path, _, fragment = href.partition("#")
    if not path or "://" in path or path.startswith(("/", "mailto:")):
        return None
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
    if target.startswith("docs/") or target == "docs":
        return None
    if target.startswith("..") or not (ROOT / target).exists():
        raise ValueError(f"docs/{page} links to {href}, and there is no {target}")
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"{repository}/{kind}/main/{target}" + (f"#{fragment}" if fragment else "")


class _OuterLinks(Treeprocessor):
    def __init__(self, md: Markdown, repository: str) -> None:
        super().__init__(md)
        self._repository = repository

    def run(self, root: Element) -> None:
        context = ContextPreprocessor.from_markdown(self.md)
        if context is None:  # a Markdown text that is no page
            return
        for link in root.iter("a"):
            outer = repository_link(context.page.path, link.get("href", ""), self._repository)
            if outer is not None:
                link.set("href", outer)


class OuterLinks(Extension):
    def __init__(self, **options: Any) -> None:
        self.config = {"repository": ["", "Address of the repository."]}
        super().__init__(**options)

    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(_OuterLinks(md, self.getConfig("repository")), "outer_links", 1)
