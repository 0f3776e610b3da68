"""A session's metrics in TensorBoard.

TensorBoard's own writer uses a thread. Waiting until that thread has flushed takes longer than
writing the events here.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from loguru import logger
from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
    RecordWriter,
)

from slm_lab.runs.files import open_for_append
from slm_lab.runs.layout import RunLayout

_number = count()


class TensorboardSink:
    """Owns an event file, which is complete when `scalars` returns.

    The sessions of a trial share one of TensorBoard's runs. A purge marker of a resumed session
    would cut the curves of the others too, so a repeated frame shows as two points.
    """

    def __init__(self, layout: RunLayout, trial: int, session: int) -> None:
        self._layout = layout
        self._unit = f"trial{trial}_session{session}"
        writer = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        name = f"events.out.tfevents.{writer}.{layout.session_name(trial, session)}"
        self._path = layout.log_dir() / name
        self._is_lost = False
        self._write(file_version="brain.Event:2")

    def scalars(self, frame: int, values: Mapping[str, float]) -> None:
        points = [
            Summary.Value(tag=f"{name}/{self._unit}", simple_value=value)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        self._write(step=frame, summary=Summary(value=points))

    def close(self) -> None:
        """The file is complete after every row."""

    def _write(self, **content: Any) -> None:
        if self._is_lost:
            return
        event = Event(wall_time=time.time(), **content).SerializeToString()
        try:
            with open_for_append(self._layout.predir, self._path) as file:
                RecordWriter(file).write(event)
        except OSError as error:  # the CSV has the same numbers
            self._is_lost = True
            reason = f"TensorBoard gets no more events ({error.strerror})"
            logger.warning(f"{self._path.parent}: {reason}")
