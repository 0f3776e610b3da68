"""One file of TensorBoard's events.

TensorBoard's own writer hands events to a thread, and whoever wants them on disk has to wait for
it. Here they are written at once, which takes less time than the waiting.
"""

from __future__ import annotations

import os
import socket
import time
from itertools import count
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
    RecordWriter,
)

from slm_lab.runs.files import open_for_append

_number = count()


class EventFile:
    """Events are on disk when `add` returns; `begin` comes first. `folder` is in `run_dir`."""

    def __init__(self, folder: Path, suffix: str, run_dir: Path) -> None:
        self._run_dir = run_dir
        writer = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        self._path = folder / f"events.out.tfevents.{writer}.{suffix}"

    def begin(self) -> None:
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, frame: int, values: list[Summary.Value]) -> None:
        self._write(Event(wall_time=time.time(), step=frame, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        with open_for_append(self._run_dir, self._path) as file:
            RecordWriter(file).write(event.SerializeToString())
