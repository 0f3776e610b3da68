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

_number = count()


class EventFile:
    """Events are on disk when `add` returns."""

    def __init__(self, folder: Path, suffix: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        writer = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        self._path = folder / f"events.out.tfevents.{writer}.{suffix}"
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, frame: int, values: list[Summary.Value]) -> None:
        self._write(Event(wall_time=time.time(), step=frame, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        with self._path.open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())
