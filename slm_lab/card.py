"""What a notebook shows of an object: a small table of facts, safe to put into a page."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Mapping


def card(title: str, facts: Mapping[str, object], below: str = "") -> str:
    """HTML of a title and a table of facts; `below` is HTML that follows it."""
    cell = '<td style="text-align:left">{}</td>'
    rows = "".join(
        f"<tr>{cell.format(html.escape(name))}{cell.format(html.escape(str(fact)))}</tr>"
        for name, fact in facts.items()
    )
    return f"<div><b>{html.escape(title)}</b><table>{rows}</table>{below}</div>"


def folded(summary: str, text: str) -> str:
    """HTML of a text that a click unfolds."""
    inner = f"<summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre>"
    return f"<details>{inner}</details>"


def picture(png: bytes, width: int = 640) -> str:
    """HTML of a picture that needs no file."""
    return f'<img width="{width}" src="data:image/png;base64,{b64encode(png).decode()}"/>'
