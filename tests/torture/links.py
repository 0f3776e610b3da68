"""Links, pipes and folders in the place of the files of a run folder: no command follows one."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.torture.attack import Outcome, Result
from tests.torture.run_commands import COMMANDS, run_commands, summed
from tests.torture.run_folders import KINDS, OTHER, copy_run

CANARY = "canary"
# Written by some command, and not there before.
UNBORN = (
    "info/.tiny_t0_s0_session_df_train.csv.tmp",
    "info/tiny_t0_evaluation_best_deterministic.json",
    "model/tiny_t0_s0_net_model.tmp",
    "model/tiny_t0_s0_best_policy.ts",
    "model/.tiny_t0_s0_best_policy.ts.part.ts",
    "video",
    "video/tiny_t0_s0_best.gif",
    "video/tiny_t0_s0_best.mp4",
    "video/.tiny_t0_s0_best.part.gif",
    "checkpoint/tiny_t0_s0/last.writing",
    "checkpoint/tiny_t0_s0/last.damaged",
    "checkpoint/tiny_t0_s0/diverged.json",
    "log/tiny.log",
    "manifest.json",
    "plotly.min.js",
    "ray_tune/journal.jsonl",
    ".env",
)


def link_to_file(place: Path, outside: Path) -> None:
    place.symlink_to(outside / CANARY)


def link_to_folder(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def link_to_nothing(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "new")


def link_to_itself(place: Path, outside: Path) -> None:
    place.symlink_to(place.name)


def relative_link(place: Path, outside: Path) -> None:
    place.symlink_to(os.path.relpath(outside / CANARY, place.parent))


def endless_device(place: Path, outside: Path) -> None:
    place.symlink_to("/dev/zero")


def pipe(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def folder(place: Path, outside: Path) -> None:
    place.mkdir()


def local_socket(place: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(place.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
    finally:
        os.chdir(here)


WAYS: dict[str, Callable[[Path, Path], None]] = {
    way.__name__: way
    for way in (
        link_to_file,
        link_to_folder,
        link_to_nothing,
        link_to_itself,
        relative_link,
        endless_device,
        pipe,
        folder,
        local_socket,
    )
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """`place` is from 0 to 1: a path of the folder, files and folders alike."""

    kind: str
    place: float
    way: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Links:
    name: str = "links"
    seconds: float = 900.0
    share: float = 0.5

    def draw(self, random: Random) -> Drawn:
        way = random.choice((*WAYS, "link_to_file", "link_to_folder", "pipe"))
        return Drawn(
            random.choice(KINDS),
            random.random(),
            way,
            tuple(random.sample(COMMANDS, len(COMMANDS))),
        )

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        run = copy_run(drawn.kind, scratch, material)
        place = _place(scratch / run, drawn.place)
        outside = scratch / "outside"
        outside.mkdir()
        (outside / CANARY).write_text("{}")
        before = _state(outside)
        _put(place, WAYS[drawn.way], outside)
        where = place.relative_to(scratch / run)
        found = summed(run_commands(list(drawn.commands), run, OTHER, scratch))
        if _state(outside) != before:
            found = Result(Outcome.LOST, f"{_state(outside)} was {before}")
        if found.outcome.is_bad:
            return Result(found.outcome, f"{found.detail} [{drawn.way} at {where}]")
        return found


def _place(run: Path, share: float) -> Path:
    places = sorted({*run.rglob("*"), *(run / name for name in UNBORN)})
    return places[int(share * len(places))]


def _put(place: Path, way: Callable[[Path, Path], None], outside: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    way(place, outside)


def _state(outside: Path) -> dict[str, tuple[bytes, int]]:
    """Names, contents and times of what lies outside of the run folder."""
    return {
        path.name: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in outside.iterdir()
    }
