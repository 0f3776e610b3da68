"""Measure how fast a spec trains here, by training it for a few seconds."""

from __future__ import annotations

import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from loguru import logger

from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session
from slm_lab.training.threads import set_threads

SECONDS = 4.0


def measure_speed(spec: Spec, seconds: float = SECONDS) -> float:
    """Frames per second of one session in this process, not compiled; no files are kept."""
    spec = spec.with_values({"meta.compile": "off", "meta.random_seed": 0})
    options = RunOptions(mode="search")
    set_threads(spec, options)
    logger.disable("slm_lab")
    with TemporaryDirectory() as folder, ExitStack() as afterwards:
        afterwards.callback(logger.enable, "slm_lab")
        layout = RunLayout.create(spec.name, "speed", folder)
        end = time.monotonic() + seconds
        session = Session(spec, layout, 0, 0, options, should_stop=lambda: time.monotonic() > end)
        afterwards.callback(session.close)
        began = time.monotonic()
        end = began + seconds
        session.advance()
        return session.frame / (time.monotonic() - began)
