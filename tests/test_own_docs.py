"""The examples of docs/how-to/your-own-*.md: each file is written, and each spec is trained."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from loguru import logger

from slm_lab import extend, load_spec, run
from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.playback.export import export_policy
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.search.plan import plan_search
from slm_lab.spec import Spec, check_file, spec_from_dict
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session

PAGES = sorted((Path(__file__).parents[1] / "docs" / "how-to").glob("your-own-*.md"))
BLOCK = re.compile(r"```(?:python|yaml)\n# (my_\w+\.(?:py|yaml))\n(.*?)```", re.DOTALL)
FILES = {name: text for page in PAGES for name, text in BLOCK.findall(page.read_text())}
SPECS = [name for name in FILES if name.endswith(".yaml")]
SETS = [
    "env.max_frame=320",
    "env.max_t=30",
    "meta.log_frequency=40",
    "meta.compile=off",
    "meta.random_seed=1",
]
SMALL = {
    "my_ppo.yaml": ["agent.algorithm.time_horizon=20"],
    "my_net.yaml": ["agent.algorithm.time_horizon=20", "agent.net.width=8"],
    "my_memory.yaml": ["agent.algorithm.training_start_step=32", "agent.memory.max_size=100"],
    "my_parts.yaml": ["agent.algorithm.time_horizon=20"],
}
QUIET = RunOptions(mode="train", log_level="ERROR")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working directory holds the files of the pages, whose modules are forgotten after."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    logger.remove()
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def small(name: str, *sets: str) -> Spec:
    return load_spec(name, sets=[*SETS, *SMALL[name], *sets])


def test_every_page_has_an_example_and_none_is_long():
    assert len(PAGES) == 3
    assert sorted(SPECS) == sorted(SMALL)
    lengths = {name: len(text.splitlines()) for name, text in FILES.items()}
    assert max(lengths.values()) <= 60, lengths


@pytest.mark.parametrize("name", SPECS)
def test_the_spec_of_an_example_is_valid_as_printed(name):
    (check,) = check_file(name)
    assert check.ok, check.problems
    assert list(yaml.safe_load(FILES[name])) == [check.name]
    spec = load_spec(name)
    assert spec_from_dict(spec.resolved(), spec.name) == spec, "as `slm-lab spec` prints it"
    if spec.search:
        assert plan_search(spec).max_trial >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.filterwarnings("ignore::slm_lab.SpecWarning")
def test_an_example_trains_resumes_bit_for_bit_and_is_exported(name):
    whole = run(small(name), "train", QUIET)
    layout = RunLayout.open(whole.predir)
    assert whole.frame == 320

    # The same, stopped half-way: its second half is the same to the last digit.
    half = RunLayout.create("half", "2026_01_01_000000", "data")
    asked = itertools.count()
    assert not Session(small(name), half, 0, 0, QUIET, should_stop=lambda: next(asked) > 40).run()
    assert Session(small(name), half, 0, 0, replace(QUIET, resume=True)).run()
    curves = [
        drop_clock(read_session(each.session_csv(0, 0, "train"))).to_csv()
        for each in (layout, half)
    ]
    assert curves[0] == curves[1]
    assert export_policy(open_run(whole.predir), 0, format="torchscript").exists()


def test_every_public_name_exists_and_is_imported_when_first_used():
    assert len(extend.__all__) > 80
    for name in extend.__all__:
        assert getattr(extend, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Lerner'"):
        _ = extend.Lerner  # type: ignore[attr-defined]
