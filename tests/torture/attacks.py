"""The attacks there are."""

from __future__ import annotations

from tests.torture.attack import Attack
from tests.torture.faults import Faults
from tests.torture.kills import Kills
from tests.torture.links import Links
from tests.torture.mutations import Mutations
from tests.torture.page import Page
from tests.torture.remotes import Remotes
from tests.torture.specs import Specs


def every_attack() -> list[Attack]:
    return [Kills(), Mutations(), Links(), Faults(), Specs(), Remotes(), Page()]
