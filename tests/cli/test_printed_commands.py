"""Every command that a document prints parses as printed, and the spec that it names loads.

Words in capitals are filled in as a reader would. Nothing is run: `command.invoke` is replaced.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer.core
from typer.main import get_command

from slm_lab.cli.main import app
from slm_lab.cli.train import choose_spec
from slm_lab.spec import SpecError, find_spec_file, load_spec
from tests.shown_files import forget_modules, write_shown_files

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "perf/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# What stands before the command on a line that a reader copies.
BEFORE = re.compile(r"(\$ |source \.env && |uv run |\.venv/bin/)+")
CARTPOLE = "benchmark/ppo/ppo_cartpole.json"
FILLED_IN = {
    "SPEC_FILE": CARTPOLE,
    "SPEC_NAME": "ppo_cartpole",
    "FILE": CARTPOLE,
    "MODE": "train",
    "SPEC": "ppo_playground",
    "ENV": "CheetahRun",
    "FRAMES": "1e6",
    "MAX_FRAME": "1e6",
    "HOURS": "1",
    "KEY=VALUE": "env.max_frame=1e6",
    "NAME": "ppo_cartpole",
}

# Forms that the documents of the original SLM Lab print, one of each.
PUBLISHED = """
slm-lab run SPEC_FILE SPEC_NAME train
slm-lab run SPEC_FILE SPEC_NAME search    # local
slm-lab SPEC_FILE SPEC_NAME train
slm-lab --render slm_lab/spec/benchmark/ppo/ppo_cartpole.json ppo_cartpole dev
source .env && slm-lab run-remote --gpu SPEC_FILE SPEC_NAME search -n NAME    # remote
source .env && uv run slm-lab run-remote --gpu -s env=Hopper-v5 \
  slm_lab/spec/benchmark/sac/sac_mujoco.json sac_mujoco search -n NAME
source .env && uv run slm-lab run-remote --gpu \
  slm_lab/spec/benchmark/ppo/ppo_atari.json ppo_atari search \
  -n atari-search
source .env && slm-lab run-remote --gpu -s env=ALE/Pong-v5 \
  slm_lab/spec/benchmark/ppo/ppo_atari.json ppo_atari_nosticky train -n pong
source .env && slm-lab run-remote --gpu -s env=Humanoid-v5 -s max_frame=10e6 \
  slm_lab/spec/benchmark/ppo/ppo_mujoco.json ppo_mujoco train -n NAME
source .env && slm-lab run-remote --gpu -s max_frame=4e6 \
  slm_lab/spec/benchmark/ppo/ppo_hopper.json ppo_hopper train -n NAME
source .env && uv run slm-lab run-remote --gpu \
  slm_lab/spec/benchmark_arc/ppo/ppo_playground.yaml ppo_playground_fingerspin train \
  -s env=playground/FingerSpin -s max_frame=100000000 -n p5-ppo6-fingerspin3
slm-lab run SPEC_FILE SPEC_NAME enjoy@data/FOLDER/SPEC_NAME_t0_spec.yaml
slm-lab plot -t "CartPole-v1" -f ppo_cartpole_2026_01_13_094433,dqn_cartpole_2026_01_13_094433
uv run slm-lab plot -t "EnvName" -d hf_data/data/benchmark-dev/data -f FOLDER_NAME
source .env && slm-lab list
source .env && slm-lab pull ppo_hopper
source .env && slm-lab push data/my_experiment_2026_01_30_221924
"""


def printed_commands(text: str) -> list[str]:
    """The commands of slm-lab in a page: lines of their own, and `code` in a sentence."""
    text = re.sub(r"\\\n\s*", " ", text)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    pieces = [*text.splitlines(), *re.findall(r"`([^`]+)`", prose)]
    bare = [BEFORE.sub("", " ".join(piece.split()), count=1) for piece in pieces]
    return [piece for piece in bare if re.match(r"(slm-lab|slm-retro)\b(?!\[)", piece)]


# A command in a transcript, and the complaint that it ends with.
_REFUSED = re.compile(r"^\$ (slm-lab .*)\n(SpecError: .*\n(?:  .*\n)+)", re.MULTILINE)


def as_typed(command: str) -> list[str]:
    """The words of a printed command, without its comment and with its placeholders filled in."""
    command = command.partition(" #")[0].partition(" > ")[0].partition(" | ")[0]
    command = re.sub(r"(slm-lab run(-remote)?) (…|\.\.\.)", r"\1 SPEC_FILE SPEC_NAME", command)
    command = re.sub(r"…|\.\.\.|\[|\]", " ", command)
    if command.startswith("slm-retro"):
        command = command.replace("slm-retro", "slm-lab retro")
    names = "|".join(sorted(map(re.escape, FILLED_IN), key=len, reverse=True))
    words = shlex.split(command)
    return [re.sub(rf"(?<![\w.])({names})(?!\w)", lambda m: FILLED_IN[m[1]], w) for w in words]


@pytest.fixture
def parsed(slm_lab, monkeypatch):
    """Parse a command line: the name of its command, and the values it would be called with."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def record(self, context) -> None:
        calls.append((context.info_name, context.params))

    monkeypatch.setattr(typer.core.TyperCommand, "invoke", record)

    def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
        calls.clear()
        code, _, err = slm_lab(*words[1:])
        assert code == 0, f"{' '.join(words)}\n{err}"
        return calls[0] if calls else ("", {})

    return parse


def command_named(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words after them."""
    command: Any = get_command(app)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def load_named_spec(name: str, given: dict[str, Any]) -> bool:
    """Load the spec that a parsed command names; False if it names none that ships."""
    file, spec_name = given.get("spec_file"), given.get("spec_name")
    if file is not None and "enjoy@" not in str(given["mode"]):
        chosen = choose_spec(file, spec_name, given["mode"])
        file, spec_name = (None, None) if chosen is None else (chosen.file, chosen.name)
    if name == "spec" and len(given["files"] or ()) == 2:
        file, spec_name = given["files"]
    if (
        file is None
        or file.startswith(("data/", "FOLDER/"))
        or "*" in file  # which the shell fills in
        or "enjoy@" in (given.get("mode") or "")
    ):
        return False
    load_spec(str(find_spec_file(file)), spec_name, sets=given["sets"] or [])
    return True


@pytest.mark.parametrize(
    "text",
    [*(page.read_text() for page in PAGES), PUBLISHED],
    ids=[*(str(page.relative_to(ROOT)) for page in PAGES), "the original's documents"],
)
def test_every_printed_command_parses_and_its_spec_loads(text, parsed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a how-to page shows the spec file of its commands
    write_shown_files(text, tmp_path)
    text = _REFUSED.sub("", text)
    for example in set(re.findall(r"\(\.\./\.\./(examples/[\w.]+)\)", text)):
        shutil.copy(ROOT / example, tmp_path)
    for printed in printed_commands(text):
        words = as_typed(printed)
        _, rest = command_named(words)
        if rest:
            load_named_spec(*parsed(words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_that_is_shown_to_be_refused_is_refused_with_these_words(
    page, parsed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for command, complaint in _REFUSED.findall(page.read_text()):
        write_shown_files(page.read_text(), tmp_path)
        with pytest.raises(SpecError) as refusal:
            load_named_spec(*parsed(as_typed(command)))
        assert str(refusal.value).splitlines() == complaint.removeprefix("SpecError: ").splitlines()
    forget_modules(tmp_path)


def test_the_commands_are_found(parsed):
    """So that a change of the pages' layout cannot empty the test above."""
    commands = [command for page in PAGES for command in printed_commands(page.read_text())]
    assert len(commands) > 100
    loaded = [load_named_spec(*parsed(as_typed(c))) for c in printed_commands(PUBLISHED)]
    assert (len(loaded), sum(loaded)) == (17, 11)


def test_the_flags_that_the_page_of_commands_lists_beside_one_are_its_own():
    flags = 0
    for row in (ROOT / "docs/how-to/commands.md").read_text().splitlines():
        commands = printed_commands(row)
        if not row.startswith("| `slm-lab") or not commands:
            continue
        command, _ = command_named(as_typed(commands[0]))
        options = {option for parameter in command.params for option in parameter.opts}
        for flag in re.findall(r"`(--[a-z-]+)", row):
            assert flag in {*options, "--help"}, row
            flags += 1
    assert flags > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_printed_target_of_make_and_every_script_is_there(page):
    text = page.read_text()
    code = "\n".join([*re.findall(r"`([^`]+)`", text), *re.findall(r"^    .*", text, re.MULTILINE)])
    targets = re.findall(r"^\s*make ((?:[a-z-]+ ?)+)", code, re.MULTILINE)
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for target in targets for word in target.split()} <= there
    modules = [f"{m.replace('.', '/')}.py" for m in re.findall(r"python\s-m\s(perf[\w.]+)", code)]
    scripts = re.findall(r"(?:python|pytest)\s((?:perf|docs|tests)/[\w./]+)", code)
    assert [name for name in [*modules, *scripts] if not (ROOT / name).exists()] == []
