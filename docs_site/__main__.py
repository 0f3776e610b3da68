"""`python -m docs_site`: write the pages, and parts of pages, that are made from the code."""

from __future__ import annotations

from docs_site import algorithm_pages, cli_page, python_page
from docs_site.links import ROOT

PAGES = {"cli.md": cli_page.page, "python.md": python_page.page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / "reference" / name).write_text(page(), encoding="utf-8")
    algorithm_pages.main()
