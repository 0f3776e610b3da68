"""Lying remotes: names that lead out, links, wrong checksums, listings without end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from slm_lab.hub.remote import RemoteFile, Sent
from slm_lab.runs.checkpoint_manifest import MANIFEST, sealed
from tests.mutated_trees import mutate_tree
from tests.torture.attack import Outcome, Result, worst
from tests.torture.damage import damage
from tests.torture.links import WAYS
from tests.torture.material import check, once
from tests.torture.run_commands import SHARE
from tests.torture.run_folders import OTHER, copy_run
from tests.torture.victim import run_isolated, slm_lab

COMMAND_SECONDS = 60.0
CANARY = "canary"
EVIL_NAMES = (
    "../canary",
    "../../canary",
    "/canary",
    "a/../../canary",
    "..",
    ".",
    "",
    "a/./b",
    "a\0b",
    "a\\..\\canary",
    "CON",
    "\x1b[31mred",
    "x" * 300,
    "/".join("d" * 40),
    ".git/hooks/post-checkout",
    ".env",
    "\ud800",
    "a/b\u202etxt",
    "model",
    "MODEL/x",
    "checkpoint/run.lock",
)


def damaged_file(share: Path, random: Random) -> None:
    files = sorted(path for path in (share / "data").rglob("*") if path.is_file())
    damage(random.choice(files), random)


def evil_manifest(share: Path, random: Random) -> None:
    """A manifest with a name that leads somewhere else, sealed as if it were right."""
    path = next((share / "data").glob(f"*/{MANIFEST}"))
    content = json.loads(path.read_text())
    content.pop("sha256")
    name = random.choice(sorted(content["files"]))
    evil = random.choice(EVIL_NAMES)
    content["files"][evil] = content["files"].pop(name)
    path.write_bytes(sealed(content))


def mutated_manifest(share: Path, random: Random) -> None:
    path = next((share / "data").glob(f"*/{MANIFEST}"))
    content = json.loads(path.read_text())
    content.pop("sha256")
    content = mutate_tree(content, random)
    path.write_bytes(sealed(content if isinstance(content, dict) else {"files": content}))


def link(share: Path, random: Random) -> None:
    """A link or a pipe in the place of a file, a folder, or the whole run."""
    places = sorted((share / "data").rglob("*"))
    place = random.choice(places)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    WAYS[random.choice(sorted(WAYS))](place, share.parent / "outside")


def lying_note(share: Path, random: Random) -> None:
    """An upload that says to be complete, and names what it likes."""
    (run,) = (share / "data").iterdir()
    incoming = share / ".incoming" / random.choice((run.name, "new_2026_01_01_000000"))
    incoming.mkdir(parents=True)
    if random.random() < 0.3:
        (incoming / "files").symlink_to(share.parent / "outside")
    names = [random.choice((*EVIL_NAMES, CANARY)) for _ in range(3)]
    note = {"files": names, "gone": random.sample(EVIL_NAMES, 2), "message": "x"}
    if random.random() < 0.5:
        note = mutate_tree(note, random)
    (incoming / "complete.json").write_text(json.dumps(note))


def many_folders(share: Path, random: Random) -> None:
    for number in range(3000):
        (share / "data" / f"x{number}_2026_01_01_000000").mkdir()


def evil_folders(share: Path, random: Random) -> None:
    for name in ("\x1b[31mred", "..x", "a b", "x" * 200, "-rf", "tiny\n2026", "ünï"):
        shutil.copytree(next((share / "data").glob("tiny_*")), share / "data" / name)


DIRECTORIES: dict[str, Callable[[Path, Random], None]] = {
    lie.__name__: lie
    for lie in (
        damaged_file,
        damaged_file,
        evil_manifest,
        mutated_manifest,
        link,
        lying_note,
        many_folders,
        evil_folders,
    )
}


class Liar:
    """A remote whose listing and whose content are what it likes; it takes no upload."""

    label = "liar"

    def __init__(self, key: int, run: Path) -> None:
        self._random = Random(key)
        self._run = run
        self._names = self._random.sample(EVIL_NAMES, 3)

    def folders(self) -> list[str]:
        return [self._run.name, *self._names]

    def files(self, folder: str) -> dict[str, RemoteFile]:
        found = {
            path.relative_to(self._run).as_posix(): RemoteFile(path.stat().st_size, "0" * 64)
            for path in self._run.rglob("*")
            if path.is_file()
        }
        lie = self._random.choice(("names", "sizes", "many", "negative", "manifest"))
        if lie == "names":
            found |= {name: RemoteFile(2, "0" * 64) for name in self._names}
        elif lie == "sizes":
            found = {name: RemoteFile(2**70, file.oid) for name, file in found.items()}
        elif lie == "many":
            found |= {f"info/{i}": RemoteFile(0, "0" * 64) for i in range(150_000)}
        elif lie == "negative":
            found = {name: RemoteFile(-1, "") for name in found}
        else:
            found = {MANIFEST: RemoteFile(50, "0" * 64)}
        return found

    def download(self, folder: str, name: str, file: RemoteFile, target: Path, temp: Path) -> None:
        target.write_bytes(self._random.randbytes(self._random.choice((0, 2, 50))))

    def check_upload(self) -> None: ...

    def upload(
        self, folder: str, files: Mapping[str, Path], gone: Collection[str], sent: Sent
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Drawn:
    lie: str
    key: int
    has_run: bool


@dataclass(frozen=True, slots=True)
class Remotes:
    name: str = "remotes"
    seconds: float = 300.0
    share: float = 0.2

    def draw(self, random: Random) -> Drawn:
        lie = random.choice((*DIRECTORIES, "liar", "liar"))
        return Drawn(lie, random.getrandbits(32), random.random() < 0.3)

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        shared = once(material / "share", lambda folder: _build(folder, material))
        shutil.copytree(shared / SHARE, scratch / SHARE)
        outside = scratch / "outside"
        outside.mkdir()
        for place in (outside / CANARY, scratch / CANARY):
            place.write_text("precious")
        remote = f"file:{SHARE}"
        pull = slm_lab("pull", "*", "--repo", remote, "-d", "data")
        if drawn.has_run:
            check(run_isolated(pull, scratch, COMMAND_SECONDS))
        if drawn.lie == "liar":
            commands = [_pull_from_liar(drawn.key, next((scratch / SHARE / "data").iterdir()))]
        else:
            DIRECTORIES[drawn.lie](scratch / SHARE, Random(drawn.key))
            commands = [slm_lab("list", "--remote", "--repo", remote), pull]
        before = _outside(scratch)
        found = [run_isolated(each, scratch, COMMAND_SECONDS).result() for each in commands]
        if (after := _outside(scratch)) != before:
            changed = sorted({*after} ^ {*before}) or "a canary"
            return Result(Outcome.LOST, f"changed outside of data/: {changed}")
        if links := [str(path) for path in (scratch / "data").rglob("*") if path.is_symlink()]:
            return Result(Outcome.LOST, f"links were fetched: {links[:3]}")
        return worst(found)


def _build(folder: Path, material: Path) -> None:
    run = copy_run("finished", folder, material)
    shutil.rmtree(folder / OTHER)
    (folder / SHARE).mkdir()
    check(run_isolated(slm_lab("push", run, "--repo", f"file:{SHARE}"), folder, COMMAND_SECONDS))


def _pull_from_liar(key: int, run: Path) -> Callable[[], None]:
    def command() -> None:
        from slm_lab.cli.main import guarded
        from slm_lab.hub import transfer

        remote = Liar(key, run)
        with guarded(["pull"]):
            for name in remote.folders():
                transfer.pull(remote, name, Path("data"))

    return command


def _outside(scratch: Path) -> dict[str, bytes]:
    """What is not in the data folder, the share, or this case's own files."""
    apart = {"data", str(SHARE), ".tmp"}
    found: dict[str, bytes] = {}
    for parent, folders, names in os.walk(scratch):
        if Path(parent) == scratch:
            folders[:] = [name for name in folders if name not in apart]
        for name in names:
            path = Path(parent, name)
            found[str(path.relative_to(scratch))] = path.read_bytes()
    return found
