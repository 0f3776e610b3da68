"""The pages that teach: every block of code on them runs, from top to bottom.

python, bash    runs; a block that begins with the comment `# NAME.py` or `# NAME.yaml` is that file
json, yaml      is parsed: a fragment of a spec
text            what the blocks above it printed: its lines stand in the output in this order, where
                digits may be others, and … whatever there is
console         a transcript of what takes longer, or needs more, than a test has; an indented
                block is the same without its output, a form to fill in, or an equation. What they
                hold is listed below with the reason. tests/cli/test_printed_commands.py parses
                every command of both

A run of 10,000 frames or more is cut to 2,500, many episodes or sessions to two, and the sessions
of a trial run one after the other in this process. A search is left to the test marked
`search_smoke`: Ray takes ten seconds to start.
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from typer.testing import CliRunner

from slm_lab.cli.main import app
from slm_lab.training import trial
from slm_lab.training.executors import local
from slm_lab.training.executors.carried import NOTHING
from tests.shown_files import forget_modules

ROOT = Path(__file__).parents[2]
EVERY_PAGE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"\n\n    \S")
FILE = re.compile(r"# ([\w.]+\.(py|yaml))\n")
CODE = {"python", "bash", "yaml", "json", "sh"}
FRAMES = re.compile(r"((?:max_frame|frames)\b(?:=|: ?))(\d[\d_]*)")
NUMBER = re.compile(r"-?\d[\d.,_:]*")
SESSIONS = re.compile(r"(max_session(?:=|: ))\d+")
EPISODES = re.compile(r"(episodes[= ])\d\d+")

# Pages whose blocks another test runs; of the reference it compares the signatures with the code.
ELSEWHERE = {
    "docs/how-to/beside-stable-baselines3.md": "tests/how_to/test_beside_stable_baselines3.py",
    "docs/how-to/your-own-algorithm.md": "tests/test_own_docs.py, tests/cli/test_td3_example.py",
    "docs/how-to/your-own-net.md": "tests/test_own_docs.py",
    "docs/how-to/your-own-schedule.md": "tests/test_own_docs.py",
    "docs/reference/python.md": "tests/docs_site/test_reference.py",
}
# What no test runs, with the reason: of a page or of a folder's pages.
NOT_RUN = {
    "README.md": "installing, and a picture of the demo's end: `make demo` is run by hand",
    "docs/BENCHMARKS.md": "hours of training",
    "docs/DASHBOARD.md": "a server, and a benchmark: tests/dashboard",
    "docs/PERFORMANCE.md": "benchmarks, on a machine that does nothing else",
    "docs/PLAYGROUND.md": "hours of training",
    "docs/PLOTS.md": "forms, with names of folders to fill in: tests/cli/test_graphs.py",
    "docs/REMOTE.md": "a hub, rented machines, a cluster: tests/hub, tests/cloud, "
    "tests/training/executors; what one machine can do runs in the tutorials",
    "docs/RESULTS.md": "hours of training",
    "docs/SEARCH.md": "a search of minutes: tests/search",
    "docs/SPEC.md": "the shape of a file",
    "docs/algorithms": "equations, and the trainings behind the scores: minutes to days",
    "docs/concepts": "equations",
    "docs/design": "the layout of files",
    "docs/index.md": "a shipped spec whole: four seeds of 200,000 frames",
    "docs/how-to/atari.md": "hours of training",
    "docs/how-to/from-cleanrl.md": "three lines of a copied file",
    "docs/how-to/from-the-original.md": "files that a reader has",
    "docs/how-to/mujoco.md": "hours of training",
    "docs/reference": "usage lines, and installs: tests/test_wheel.py",
    "docs/how-to/wandb.md": "an account of W&B, and servers",
    "docs/how-to/your-own-algorithm.md": "a name and a key, whole in the example",
    "docs/tutorials": "wrong keys on purpose, machines that a test does not have, a search",
}


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


PAGES = {
    str(page.relative_to(ROOT)): page
    for page in EVERY_PAGE
    if CODE & {kind for kind, _ in blocks_of(page)}
}
RUN_HERE = sorted(PAGES.keys() - ELSEWHERE.keys())


def smaller(text: str) -> str:
    def cut(found: re.Match[str]) -> str:
        frames = int(found[2].replace("_", ""))
        return found[1] + ("2500" if frames >= 10_000 else found[2])

    text = EPISODES.sub(r"\g<1>2", FRAMES.sub(cut, text))
    return SESSIONS.sub(lambda found: found[1] + ("1" if found[0].endswith("1") else "2"), text)


def assert_printed(expected: str, output: str) -> None:
    """The lines of a text block stand in the output, in this order, digits aside."""
    lines = iter(output.splitlines())
    for line in filter(str.strip, expected.splitlines()):
        pattern = re.escape(NUMBER.sub("0", " ".join(line.split())))
        pattern = pattern.replace("0", rf"({NUMBER.pattern}|nan|inf)").replace("…", ".*")
        found = any(re.fullmatch(pattern, " ".join(each.split())) for each in lines)
        assert found, f"not printed, or not here: {line}\n{output}"


class Reader:
    """Does what a page says, in the working directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, searches: bool = False) -> None:
        self._patch, self._searches = monkeypatch, searches
        self._names: dict[str, Any] = {"__name__": "page"}  # of blocks, which build on each other
        self._printed = ""  # by the latest of them

    def read(self, page: Path) -> None:
        for kind, text in blocks_of(page):
            code = smaller(text)
            if match := FILE.match(text):
                Path(match[1]).write_text(code)
            elif kind == "text":
                assert_printed(text, self._printed)
            elif kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(code, page.name, "exec"), self._names)
                self._printed = printed.getvalue()
            elif kind == "bash":
                lines = code.replace("\\\n", " ").splitlines()
                self._printed = "".join(self._command(line) for line in lines)
            elif kind in ("json", "yaml"):
                text = f"{{{text}}}" if kind == "json" and not text.startswith("{") else text
                assert isinstance(yaml.safe_load(text), dict)
            else:
                assert kind == "console", f"{page}: what is a block of `{kind}`?"

    def _command(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if not words:
            return ""
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._patch.setenv(name, value.replace("$PWD", str(Path.cwd())))
            return ""
        if words[0] != "slm-lab":
            return subprocess.check_output(line, shell=True, text=True)
        words = [name for word in words for name in sorted(glob.glob(word)) or [word]]
        is_search = words[1] == "run" and any(word.partition("@")[0] == "search" for word in words)
        if is_search and not self._searches:
            return ""
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}{done.exception!r}"
        return done.output


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, whose modules and envs are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registered = dict(gym.registry)
    yield
    forget_modules(tmp_path)
    gym.registry.clear()
    gym.registry.update(registered)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE)
def test_every_block_of_the_page_runs(page, here, monkeypatch):
    monkeypatch.setattr(trial, "_in_processes", lambda _: (local.run_here, NOTHING))
    Reader(monkeypatch).read(PAGES[page])


@pytest.mark.search_smoke
@pytest.mark.parametrize("page", ["docs/tutorials/search.md"])
def test_the_searches_of_the_page_run(page, here, monkeypatch):
    Reader(monkeypatch, searches=True).read(PAGES[page])


def test_every_page_with_code_runs_somewhere():
    assert len(RUN_HERE) > 20
    assert ELSEWHERE.keys() <= PAGES.keys()
    for tests in ELSEWHERE.values():
        assert all((ROOT / test).is_file() for test in tests.split(", "))


def test_what_is_not_run_has_a_reason_and_each_reason_a_block():
    shown = set()
    for page in EVERY_PAGE:
        rest = BLOCK.sub("", page.read_text())
        if INDENTED.search(rest) or "console" in {kind for kind, _ in blocks_of(page)}:
            places = (str(page.relative_to(ROOT)), str(page.parent.relative_to(ROOT)))
            shown.add(next((place for place in places if NOT_RUN.get(place)), places[0]))
    assert shown - NOT_RUN.keys() == set()
    assert {place for place in NOT_RUN if place.endswith(".md")} - shown == set()


def test_what_a_page_shows_is_compared_with_what_was_printed():
    assert_printed("Score 12.5 of …\nend", "log\nScore  -9 of many\nmore\nend\n")
    for wrong in ("end\nScore 9 of …", "Score 9"):
        with pytest.raises(AssertionError, match="not printed"):
            assert_printed(wrong, "Score 9 of many\nend\n")


def test_a_budget_is_cut_and_a_small_one_left():
    assert smaller("frames=50_000, max_frame: 3000") == "frames=2500, max_frame: 3000"
    assert smaller("-s env.max_frame=1000000 --episodes 100") == (
        "-s env.max_frame=2500 --episodes 2"
    )
    assert smaller("{max_session: 5}, -s meta.max_session=1") == (
        "{max_session: 2}, -s meta.max_session=1"
    )
