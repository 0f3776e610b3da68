"""Every random stream of a run, from one recorded seed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

REPLAY = 1  # a further word of entropy: training uses none


@dataclass(frozen=True, slots=True)
class SessionSeeds:
    env: int
    eval_env: int
    agent: int


def draw_seed() -> int:
    """A seed for a run that was given none: small enough to type."""
    return secrets.randbelow(2**31)


def session_seeds(random_seed: int, trial: int, session: int) -> SessionSeeds:
    """Independent streams for one session; the same three numbers always give the same ones."""
    children = np.random.SeedSequence([random_seed, trial, session]).spawn(3)
    return SessionSeeds(*(int(child.generate_state(1)[0]) for child in children))


@dataclass(frozen=True, slots=True)
class ReplaySeeds:
    env: int
    agent: int


def replay_seeds(seed: int, trial: int, session: int) -> ReplaySeeds:
    """Streams to replay a session with: none that training drew from, whatever its seed was."""
    children = np.random.SeedSequence([seed, trial, session, REPLAY]).spawn(2)
    return ReplaySeeds(*(int(child.generate_state(1)[0]) for child in children))


def validation_seed(random_seed: int, trial: int) -> int:
    """A seed for training a trial of a search once more: none that the search itself has used."""
    sequence = np.random.SeedSequence([random_seed, trial], spawn_key=(1,))
    return int(sequence.generate_state(1)[0])
