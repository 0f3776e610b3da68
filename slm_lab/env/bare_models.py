"""MuJoCo model files without textures, so that thousands of copies fit into memory.

Every env of a pool compiles its own model, and nearly all of a model's size is its textures, which
only a camera needs: a cartpole takes 12 MB with its sky and 0.3 MB without, and a 50th of the time.
Bodies, joints, contacts and meshes stay, so every step gives the same numbers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from xml.etree import ElementTree


def copy_without_textures(source: Path, target: Path) -> None:
    """Rewrite the models under `source` below `target`, and link all other files there."""
    for folder, _, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            original = Path(folder, name)
            if original.suffix != ".xml" or not _write_bare(original, here / name):
                _link(original, here / name)


def _write_bare(model: Path, target: Path) -> bool:
    """Write the model with one-pixel textures; False for a file that is no model."""
    try:
        tree = ElementTree.parse(model)
    except ElementTree.ParseError:
        return False
    for texture in tree.iter("texture"):
        kept = {"type": texture.get("type", "cube"), "name": _name(texture)}
        texture.attrib.clear()
        texture.attrib.update(
            {"builtin": "flat", "width": "1", "height": "1"}
            | {key: value for key, value in kept.items() if value}
        )
    tree.write(target)
    return True


def _name(texture: ElementTree.Element) -> str:
    """The name by which materials refer to a texture: its own, else that of its file."""
    return texture.get("name") or Path(texture.get("file", "")).stem


def _link(original: Path, target: Path) -> None:
    try:
        target.symlink_to(original)
    except OSError:  # Windows grants links to few
        shutil.copyfile(original, target)
