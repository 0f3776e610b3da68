"""`.env`: what a shell would make of it, as far as settings go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

from slm_lab.cli.main import SETTINGS, DotenvError, app, load_dotenv, main, parse_dotenv


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=plain", "plain"),
        ("export A=plain", "plain"),
        ("  A = spaced  ", "spaced"),
        ("A=", ""),
        ("A=with # a comment", "with"),
        ("A=no#comment", "no#comment"),
        ("A='two\nlines'", "two\nlines"),
        ("A='single # quoted $HOME'", "single # quoted $HOME"),
        ('A="double # quoted" # comment', "double # quoted"),
        (r'A="a \"word\" and\nline"', 'a "word" and\nline'),
        ("A=file:/mnt/a=b", "file:/mnt/a=b"),
        ("A=$(rm -rf /)", "$(rm -rf /)"),
    ],
)
def test_a_line_sets_a_value(line: str, value: str) -> None:
    assert parse_dotenv(f"# head\n\n{line}\nB=2\n") == {"A": value, "B": "2"}


@pytest.mark.parametrize("line", ["A='hf_secret", 'A="hf_secret" x', "A=hf_secret\0"])
def test_a_bad_line_is_named_by_its_number_and_never_repeated(line: str) -> None:
    with pytest.raises(DotenvError, match=r"\.env, line 3") as caught:
        parse_dotenv(f"B=1\n\n{line}\n")
    assert "hf_secret" not in str(caught.value)


def test_what_is_set_already_stays(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HF_REPO=from/file\nHF_TOKEN=hf_file\n")
    environment = {"HF_REPO": "from/shell"}
    load_dotenv(tmp_path / ".env", environment)
    assert environment == {"HF_REPO": "from/shell", "HF_TOKEN": "hf_file"}
    load_dotenv(tmp_path / "absent", environment)


def test_only_settings_of_ours_are_taken(tmp_path: Path) -> None:
    hostile = ("GIT_SSH_COMMAND", "IMAGEIO_FFMPEG_EXE", "LD_PRELOAD", "PYTHONPATH", "CXX", "PATH")
    lines = [f"{name}=touch executed" for name in (*hostile, "SLM_LAB_TRUST", "XDG_STATE_HOME")]
    (tmp_path / ".env").write_text("\n".join([*lines, "LOG_LEVEL=DEBUG"]))
    environment: dict[str, str] = {}
    assert load_dotenv(tmp_path / ".env", environment) == ""
    assert environment == {"LOG_LEVEL": "DEBUG"}


def test_every_variable_that_is_a_flag_of_a_command_is_a_setting() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    named = {p.envvar for c in group.commands.values() for p in c.params if p.envvar}
    assert "RAY_ADDRESS" in named
    assert {str(name) for name in named} <= SETTINGS


@pytest.mark.parametrize("place", ["{run}", "{run}/info", "data/loose", "link"])
def test_none_is_read_below_folders_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    run = tmp_path / "data" / "ppo_2026_01_31_235959"
    (run / "info").mkdir(parents=True)
    (run / "ppo_t0_spec.json").touch()
    (tmp_path / "link").symlink_to(run)
    here = tmp_path / place.format(run=run)
    here.mkdir(exist_ok=True)
    (here / ".env").write_text("HF_ENDPOINT=https://hub.example.org\n")
    monkeypatch.chdir(here)
    environment: dict[str, str] = {}
    assert "not read, because it belongs to runs" in load_dotenv(Path(".env"), environment)
    assert environment == {}


def test_a_command_reads_it_from_where_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    share = tmp_path / "share" / "data" / "ppo_2026"
    share.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_REPO", "")  # so that what the file sets is undone
    monkeypatch.delenv("HF_REPO")
    (tmp_path / ".env").write_text(f"HF_REPO=file:{tmp_path / 'share'}\n")
    monkeypatch.setattr(sys, "argv", ["slm-lab", "list"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    assert capsys.readouterr().out == "ppo_2026\n"


def test_the_example_is_a_good_one(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / ".env.example"
    assert parse_dotenv(example.read_text()) == {"HF_REPO": "SLM-Lab/benchmark-dev"}
