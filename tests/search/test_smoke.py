"""Every shipped spec with a `search` block can be searched: two trials of a few hundred frames."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.api.run import run
from slm_lab.search.ray_setup import ray_ready
from slm_lab.spec import Spec, SpecWarning, example_sets, load_spec, packaged_specs
from slm_lab.training.options import RunOptions

SETS = [
    "env.max_frame=300",
    "meta.log_frequency=100",
    "meta.max_session=1",
    "meta.max_trial=2",
    "meta.compile=off",
    "meta.random_seed=1",
]


def small(path: Path, name: str) -> Spec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # 300 frames are too few to learn from
        spec = load_spec(path, name, [*example_sets(path, name), *SETS])
        if spec.meta.search_scheduler:  # a first rung that 300 frames reach
            spec = spec.with_values({"meta.search_scheduler.grace_period": 100})
        return spec


SPECS = [(path, name) for path, name in packaged_specs() if small(path, name).search]


def test_the_specs_with_a_search_block_are_counted():
    assert len(SPECS) >= 36


@pytest.fixture(scope="module")
def one_ray(tmp_path_factory) -> Iterator[Path]:
    """A local Ray for all of them, and the folder they write to."""
    folder = tmp_path_factory.mktemp("smoke")
    with ray_ready(None, folder):
        yield folder


@pytest.mark.slow
@pytest.mark.search_smoke
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what Ray leaves when it shuts down
@pytest.mark.parametrize(("path", "name"), SPECS, ids=[name for _, name in SPECS])
def test_a_shipped_search_runs(one_ray, path, name):
    spec = small(path, name)
    if spec.env.name.startswith("playground/"):
        pytest.importorskip("envpool", reason="the extra `envpool` is not installed")
    metrics = run(spec, "search", RunOptions(log_level="ERROR", data_dir=str(one_ray)))
    assert {row.trial for row in metrics.trials} == {0, 1}
    assert metrics.count("completed") + metrics.count("stopped") == 2
