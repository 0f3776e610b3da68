"""An error of a command is one line and an exit code; a traceback is kept in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.cli.main import guarded
from slm_lab.error import LabError
from slm_lab.training.console import setup_logging

SPEC = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"


def failed(error: Exception, *arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_, guarded(arguments):
        raise error
    return exit_.value.code


def saved_tracebacks() -> list[Path]:
    return sorted(Path(os.environ["XDG_STATE_HOME"], "slm-lab", "tracebacks").glob("*.log"))


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SLM_LAB_DEBUG", raising=False)
    logger.remove()


class Stale(LabError):
    exit_code = 7


def test_an_error_of_the_lab_is_one_line_and_its_own_exit_code(capsys):
    assert failed(Stale("result.json: is of another spec")) == 7
    assert capsys.readouterr().err == "Stale: result.json: is of another spec\n"
    assert failed(LabError("--env: no such env")) == 2
    assert saved_tracebacks() == []


def test_an_unexpected_error_is_one_line_and_its_traceback_a_file(capsys):
    assert failed(KeyError("a\nb"), "list", "-d", "data") == 1
    (file,) = saved_tracebacks()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"Unexpected KeyError: 'a\\nb' (traceback in {file})"
    text = file.read_text()
    assert text.startswith("slm-lab list -d data\nTraceback (most recent call last)")
    assert text.endswith("KeyError: 'a\\nb'\n")


def test_an_unexpected_error_of_a_run_is_kept_in_the_log_of_the_run(capsys, tmp_path):
    log = tmp_path / "run" / "log" / "run.log"
    setup_logging(log, "INFO")
    assert failed(ZeroDivisionError("no frames"), "run") == 1
    assert capsys.readouterr().err.endswith(f"no frames (traceback in {log})\n")
    assert "Traceback (most recent call last)" in log.read_text()
    assert saved_tracebacks() == []


@pytest.mark.parametrize("arguments", [("--log-level", "debug"), ("--log-level=DEBUG",)])
def test_the_log_level_debug_shows_the_traceback(capsys, arguments):
    failed(KeyError("x"), *arguments)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_variable_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("SLM_LAB_DEBUG", "1")
    failed(KeyError("x"))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_traceback_that_cannot_be_saved_is_shown(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert failed(KeyError("x")) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("Unexpected KeyError: 'x' (traceback above)\n")


def test_every_command_is_guarded(slm_lab, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no frames")

    monkeypatch.setattr("slm_lab.spec.load_spec", broken)
    code, out, err = slm_lab("spec", SPEC, "ppo_cartpole")
    assert (code, out) == (1, "")
    assert err.startswith("Unexpected ZeroDivisionError: no frames (traceback in ")
    assert len(err.splitlines()) == 1


def test_without_pytorch_a_run_leaves_no_folder_and_other_commands_work(slm_lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = slm_lab("run", "ppo_cartpole", "train")
    assert (code, err.splitlines()[-1][:40]) == (2, "MissingTorch: PyTorch is not installed h")
    assert not Path("data").exists()
    assert slm_lab("list")[0] == slm_lab("specs", "ppo_cartpole")[0] == 0
    assert failed(ModuleNotFoundError("No module named 'torch'", name="torch"), "enjoy") == 2
    assert saved_tracebacks() == []
