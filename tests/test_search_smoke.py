"""Every shipped spec with a `search` block can be searched: two trials of a few hundred frames."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.search.engine import ray_ready
from slm_lab.lab import run
from slm_lab.spec import Spec, SpecError, SpecWarning, load_spec, packaged_specs

SETS = [
    "env.max_frame=300",
    "meta.log_frequency=100",
    "meta.max_session=1",
    "meta.max_trial=2",
    "meta.compile=off",
    "meta.random_seed=1",
]


def small(file: str, name: str) -> Spec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # 300 frames are too few to learn from
        return load_spec(file, name, SETS)


def searchable() -> list[tuple[str, str]]:
    """(file, name); a spec with placeholders or an env that is not installed is told apart later."""
    found = []
    for path, name in packaged_specs():
        try:
            if small(path.as_posix(), name).search:
                found.append((path.as_posix(), name))
        except SpecError as error:
            assert "is not filled" in str(error)
    return found


SPECS = searchable()


def test_the_specs_with_a_search_block_are_counted():
    assert len(SPECS) >= 25


@pytest.fixture(scope="module")
def one_ray(tmp_path_factory) -> Iterator[Path]:
    """A local Ray for all of them, and the folder they write to."""
    folder = tmp_path_factory.mktemp("smoke")
    with ray_ready(None, folder):
        yield folder


@pytest.mark.slow
@pytest.mark.search_smoke
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what Ray leaves when it shuts down
@pytest.mark.parametrize(("file", "name"), SPECS, ids=[name for _, name in SPECS])
def test_a_shipped_search_runs(one_ray, file, name):
    metrics = run(small(file, name), "search", RunOptions(log_level="ERROR", data_dir=str(one_ray)))
    assert {row.trial for row in metrics.trials} == {0, 1}
    assert [row.status for row in metrics.trials] == ["completed", "completed"]
