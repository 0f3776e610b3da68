"""A way to run the command line in this process, in an empty folder."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
from loguru import logger

from slm_lab.cli.main import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Commands run in an empty folder, where nothing but the package is found."""
    monkeypatch.chdir(tmp_path)
    for name in ("RENDER", "LOG_LEVEL", "PROFILE", "LOG_EXTRA", "OPTIMIZE_PERF", "CUDA_OFFSET"):
        monkeypatch.delenv(name, raising=False)
    yield
    logger.remove()


@pytest.fixture
def slm_lab(monkeypatch, capsys):
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def command(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["slm-lab", *map(str, arguments)])
        with warnings.catch_warnings():  # main() sets up how warnings are shown
            try:
                main()
                code: Any = 0
            except SystemExit as exit_:
                code = exit_.code or 0
        return code, *capsys.readouterr()

    return command
