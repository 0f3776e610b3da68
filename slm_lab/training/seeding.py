"""Derive every random stream of a run from one recorded seed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

REPLAY = 1  # one more word of entropy than training uses
EVALUATION = 2


@dataclass(frozen=True, slots=True)
class SessionSeeds:
    env: int
    eval_env: int
    agent: int


def draw_seed() -> int:
    """Draw a seed for a run that was given none, small enough to type."""
    return secrets.randbelow(2**31)


def session_seeds(random_seed: int, trial: int, session: int) -> SessionSeeds:
    """Independent seeds for a session; the same three numbers always give the same seeds."""
    children = np.random.SeedSequence([random_seed, trial, session]).spawn(3)
    return SessionSeeds(*(int(child.generate_state(1)[0]) for child in children))


def replay_seeds(seed: int, trial: int, session: int) -> tuple[int, int]:
    """Seeds of env and agent to play a saved session with; training never uses them."""
    children = np.random.SeedSequence([seed, trial, session, REPLAY]).spawn(2)
    env, agent = (int(child.generate_state(1)[0]) for child in children)
    return env, agent


def evaluation_seed(random_seed: int, trial: int, session: int, frame: int) -> int:
    """A seed for fresh episodes at a frame of the training, which never uses it."""
    sequence = np.random.SeedSequence([random_seed, trial, session, EVALUATION, frame])
    return int(sequence.generate_state(1)[0])


def validation_seed(random_seed: int, trial: int) -> int:
    """A seed for training a trial of a search again; the search itself never uses it."""
    sequence = np.random.SeedSequence([random_seed, trial], spawn_key=(1,))
    return int(sequence.generate_state(1)[0])
