"""Starting the local Ray of a search, where it fails or is interrupted; no Ray is started here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.search.ray_setup import RayNotStarted, ray, ray_ready


def test_a_ray_that_does_not_start_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", fail)
    with (
        pytest.raises(RayNotStarted, match=r"timed out during startup.*search@latest") as caught,
        ray_ready(None, tmp_path / "ray_tune"),
    ):
        pass
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_sigterm_while_ray_starts_ends_the_search_with_the_code_of_that_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def init(**_: Any) -> None:  # as Ray's does, until it returns
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(SystemExit) as caught, ray_ready(None, tmp_path / "ray_tune"):
        pass
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
