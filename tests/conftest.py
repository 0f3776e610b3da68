"""What every test run starts from: one thread, no display, the same examples each time."""

import os

# Before torch, matplotlib or pygame load: small nets on many threads are slower and not repeatable
# across machines, and a test must not look for a screen.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["SDL_VIDEODRIVER"] = "dummy"

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A property test draws the same examples on every run, and a busy machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

pytest_plugins = ["tests.sessions"]


@pytest.fixture(scope="session", autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a run remembers between commands goes into a folder of the tests, not of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("SLM_LAB_TRUST", raising=False)
        yield


ON_PURPOSE = (
    "asynchronous",
    "cluster",
    "compatibility",
    "empty_install",
    "long_learning",
    "search_smoke",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs on purpose only is slow, too: `-m "not slow"` replaces the `-m` that leaves it out.

    Files with slow tests come first, so that no worker is left alone with one at the end.
    """
    for item in items:
        if any(map(item.get_closest_marker, ON_PURPOSE)):
            item.add_marker("slow")
    slow = Counter(item.location[0] for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.location[0]])
