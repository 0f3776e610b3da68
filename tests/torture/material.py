"""What cases share and is made once: specs, finished and half-done runs."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from slm_lab.spec import Spec
from tests.killing import killed_at
from tests.sessions import EVERY_ALGORITHM, small_spec
from tests.torture.victim import Ended, Victim, run_isolated, slm_lab
from tests.torture.warm import quick

TRAIN_SECONDS = 120.0
CHECKPOINTS = {
    "meta__checkpoint_frequency": 60,
    "meta__log_frequency": 40,
    "meta__eval_frequency": 160,
}
SYNCED = {"meta__distributed": "synced", "meta__max_session": 2}
SHARED = {"meta__distributed": "shared", "meta__max_session": 2}
DISTRIBUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "synced PPO": ("PPO", SYNCED),
    "synced DDQN+PER": ("DDQN+PER", SYNCED),
    "shared A2C": ("A2C", SHARED | {"agent__algorithm__normalize_v_targets": False}),
    "shared DQN": ("DQN", SHARED),
}
SEVERAL: dict[str, tuple[str, dict[str, Any]]] = {
    "two sessions of PPO": ("PPO", {"meta__max_session": 2})
}
FAMILIES = (*EVERY_ALGORITHM, *SEVERAL, *DISTRIBUTED)


def spec_of(family: str) -> Spec:
    algorithm, keys = {**SEVERAL, **DISTRIBUTED}.get(family, (family, {}))
    return small_spec(algorithm, **(CHECKPOINTS | keys))


def write_spec(spec: Spec, folder: Path) -> None:
    """As tiny.json, for `slm-lab run tiny.json tiny`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.json").write_text(json.dumps({"tiny": spec.to_dict()}))


def train(mode: str, *, graphs: bool = True) -> Callable[[], None]:
    """The body of a victim. Without `graphs` a training takes a third of the time: see `quick`."""
    body = slm_lab("run", "tiny.json", "tiny", mode, "--log-level", "WARNING")
    return body if graphs else quick(body)


def once(path: Path, build: Callable[[Path], None]) -> Path:
    """A folder that the first process to need it builds."""
    with FileLock(f"{path}.lock"):
        if not path.exists():
            beside = path.with_name(f"{path.name}.part")
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            build(beside)
            beside.rename(path)
    return path


@dataclass(frozen=True, slots=True)
class Reference:
    """An undisturbed run: its folder, how long it took, how often its process changed a file."""

    run: Path
    seconds: float
    steps: int


def reference(family: str, material: Path, *, graphs: bool = True) -> Reference:
    def build(folder: Path) -> None:
        write_spec(spec_of(family), folder)

        def counted() -> None:
            with killed_at(0) as steps:
                try:
                    train("train", graphs=graphs)()
                finally:
                    Path("steps").write_text(str(steps()))

        began = time.monotonic()
        check(run_isolated(counted, folder, TRAIN_SECONDS))
        (folder / "seconds").write_text(str(time.monotonic() - began))

    folder = once(material / f"{'drawn' if graphs else 'plain'} {family}", build)
    seconds, steps = ((folder / name).read_text() for name in ("seconds", "steps"))
    return Reference(newest_run(folder), float(seconds), int(steps))


def half_done(family: str, material: Path) -> Path:
    """A folder with tiny.json, and a run in data/ that was stopped on its way."""

    def build(folder: Path) -> None:
        write_spec(spec_of(family), folder)
        with Victim(train("train"), folder) as victim:
            until = time.monotonic() + TRAIN_SECONDS
            while not list(folder.glob("data/*/checkpoint/*_s0/last-1")):
                if time.monotonic() > until or victim.wait(0.002).code is not None:
                    raise AssertionError(f"{family}: was not stopped on its way")
            victim.signal(signal.SIGTERM)
            victim.wait(TRAIN_SECONDS)

    return once(material / f"half {family}", build)


def check(ended: Ended) -> None:
    """Material is made without a disturbance, and must succeed."""
    if ended.code != 0:
        raise AssertionError(f"could not make the material: {ended.code} {ended.err[-2000:]}")


def newest_run(folder: Path) -> Path:
    """The run folder in `folder/data` that a resume takes."""
    return max(path.parent for path in folder.glob("data/*/*_t0_spec.json"))
