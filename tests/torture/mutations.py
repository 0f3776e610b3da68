"""Damaged run folders under every command: a result or a refusal, and no lie about weights.

All commands are run on each, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.torture.attack import Outcome, Result
from tests.torture.damage import damage
from tests.torture.material import once
from tests.torture.run_commands import COMMANDS, run_command, run_commands, summed
from tests.torture.run_folders import KINDS, OTHER, copy_run

MOST_DAMAGES = 3
LIKELY = (*KINDS, "finished", "half")  # a search, with the graphs of all its trials, takes longest


@dataclass(frozen=True, slots=True)
class Drawn:
    """`key` decides about the damages; they depend on the files that a folder has."""

    kind: str
    damages: int
    key: int
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutations:
    name: str = "mutations"
    seconds: float = 900.0
    share: float = 9.5

    def draw(self, random: Random) -> Drawn:
        return Drawn(
            kind=random.choice(LIKELY),
            damages=random.choice((1, 1, 1, 2, MOST_DAMAGES)),
            key=random.getrandbits(32),
            commands=tuple(random.sample(COMMANDS, len(COMMANDS))),
        )

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        run = copy_run(drawn.kind, scratch, material)
        random = Random(drawn.key)
        done = [_damage_one(scratch / run, random) for _ in range(drawn.damages)]
        found = summed(run_commands(list(drawn.commands), run, OTHER, scratch))
        if found.outcome.is_bad:
            return Result(found.outcome, f"{found.detail} [after {'; '.join(done)}]")
        if drawn.kind == "finished" and done[0].startswith("flip_bit model/") and len(done) == 1:
            return _check_weights(run, scratch, material, done[0]) or found
        return found


def _damage_one(run: Path, random: Random) -> str:
    files = sorted(path for path in run.rglob("*") if path.is_file())
    # Graphs are many, and nothing reads them.
    likely = [path for path in files if path.suffix not in (".png", ".html", ".js")]
    path = random.choice(likely if random.random() < 0.95 else files)
    return f"{damage(path, random)} {path.relative_to(run).as_posix()}"


def _check_weights(run: Path, scratch: Path, material: Path, done: str) -> Result | None:
    """A model with a flipped bit is refused, or plays as the model did before."""

    def build(folder: Path) -> None:
        copy = copy_run("finished", folder, material)
        (folder / "played").write_text(run_command("enjoy", copy, OTHER, folder).out)

    before = once(material / "played", build) / "played"
    played = run_command("enjoy", run, OTHER, scratch)
    if played.code == 0 and played.out != before.read_text():
        return Result(Outcome.DIFFERENT, f"enjoy plays otherwise [after {done}]")
    return None
