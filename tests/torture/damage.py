"""Damage to a single file of a run folder: by accident, and as an attacker would."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from slm_lab.runs.checkpoint_manifest import MANIFEST, sealed
from tests.mutated_trees import ABSURD_VALUES, mutate_tree

HUGE_BYTES = 5_000_000_000  # sparse: it takes no space


def flip_bit(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(content)


def truncate(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size + 1))


def empty(path: Path, random: Random) -> None:
    path.write_bytes(b"")


def make_sparse(path: Path, random: Random) -> None:
    os.truncate(path, HUGE_BYTES)


def delete(path: Path, random: Random) -> None:
    path.unlink()


def double(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


def fill_with_noise(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(random.choice((1, 100, 5000))))


def swap(path: Path, random: Random) -> None:
    """Exchange it with another file of the run."""
    run = next(parent for parent in path.parents if parent.parent.name == "data")
    other = random.choice(sorted(p for p in run.rglob("*") if p.is_file()))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def nest_deeply(path: Path, random: Random) -> None:
    depth = random.choice((1_000, 20_000, 200_000))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    path.write_text(opening * depth + "1" + closing * depth)


def change_json(path: Path, random: Random) -> None:
    """Change values of JSON, or of a line of it; checksums are renewed where there are any."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        at = random.randrange(len(lines))
        lines[at] = json.dumps(mutate_tree(json.loads(lines[at]), random))
        path.write_text("\n".join(lines) + "\n")
        return
    content = mutate_tree(json.loads(text), random)
    if path.name == MANIFEST and isinstance(content, dict):
        content.pop("sha256", None)
        path.write_bytes(sealed(content))
        return
    path.write_text(json.dumps(content))
    reseal(path)


def put_surrogate(path: Path, random: Random) -> None:
    text = path.read_text(errors="replace")
    quotes = [at for at, character in enumerate(text) if character == '"']
    at = random.choice(quotes) + 1 if quotes else 0
    path.write_text(text[:at] + r"\ud800" + text[at:])
    reseal(path)


def change_cells(path: Path, random: Random) -> None:
    """Put absurd values into a table, or lose or double a column or a row."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    kind = random.choice(("cell", "cell", "name", "row", "column"))
    at = random.randrange(len(rows))
    column = random.randrange(len(rows[0]))
    if kind == "cell" and column < len(rows[at]):
        rows[at][column] = str(random.choice(ABSURD_VALUES)).replace(",", ";")
    elif kind == "name":
        rows[0][column] = random.choice(("", "frame", "\x1b[31m", "<script>", "x" * 5000))
    elif kind == "row":
        rows.insert(at, random.choice((rows[at], rows[0], [""], ["1"] * 200)))
    else:
        for row in rows:
            del row[column : column + 1]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")


def resealed_noise(path: Path, random: Random) -> None:
    """Flip a bit, and write the checksum that fits, as an attacker would."""
    flip_bit(path, random)
    reseal(path)


def reseal(path: Path) -> None:
    """Make a checkpoint's manifest agree with the file, if it belongs to one."""
    manifest = path.parent / MANIFEST
    try:
        content: dict[str, Any] = json.loads(manifest.read_text())
        entry = content["files"][path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return
    data = path.read_bytes()
    entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content.pop("sha256", None)
    manifest.write_bytes(sealed(content))


ANY_FILE: tuple[Callable[[Path, Random], None], ...] = (
    flip_bit,
    flip_bit,
    truncate,
    empty,
    make_sparse,
    delete,
    double,
    fill_with_noise,
    swap,
    resealed_noise,
)
JSON_FILE = (change_json,) * 6 + (put_surrogate, nest_deeply)
TABLE_FILE = (change_cells,) * 5


def damage(path: Path, random: Random) -> str:
    """Damage a file in one way that suits it; returns which."""
    kinds = ANY_FILE
    if path.suffix in (".json", ".jsonl"):
        kinds = JSON_FILE + ANY_FILE
    elif path.suffix == ".csv":
        kinds = TABLE_FILE + ANY_FILE
    way = random.choice(kinds)
    try:
        way(path, random)
    except (ValueError, OSError, RecursionError):  # damaged already, by the damage before
        flip_bit(path, random) if path.exists() else None
    return way.__name__
