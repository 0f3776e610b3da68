"""The attacks there are."""

from __future__ import annotations

from tests.torture.attack import Attack
from tests.torture.faults import Faults
from tests.torture.finishing import Finishing
from tests.torture.kills import Kills
from tests.torture.links import Links
from tests.torture.mutations import Mutations
from tests.torture.page import Page
from tests.torture.ray_searches import RaySearches
from tests.torture.remotes import Remotes
from tests.torture.searches import Searches
from tests.torture.specs import Specs


def every_attack() -> list[Attack]:
    return [
        Kills(),
        Finishing(),
        Searches(),
        RaySearches(),
        Mutations(),
        Links(),
        Faults(),
        Specs(),
        Remotes(),
        Page(),
    ]
