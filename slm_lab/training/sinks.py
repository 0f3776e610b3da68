"""Send a session's curve to TensorBoard, and to Weights & Biases (`--wandb`, extra `wandb`)."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
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
from slm_lab.spec import Problem, Spec, SpecError

_number = count()

PROJECT = "slm-lab"
OFFLINE = ("offline", "disabled", "dryrun")


class TensorboardSink:
    """Owns an event file, which is complete when `scalars` returns.

    TensorBoard's own writer uses a thread; to wait until it has flushed takes longer than this.
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

    def close(self) -> None: ...

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


def check_wandb() -> None:
    """Refuse `--wandb` before training if W&B is not installed or knows no account."""
    if importlib.util.find_spec("wandb") is None:
        found = "wandb is not installed. Install the extra `wandb`: pip install 'slm-lab[wandb]'"
        raise SpecError([Problem("--wandb", found)], "the command")
    if os.environ.get("WANDB_MODE") in OFFLINE:
        return
    import wandb

    if not wandb.api.api_key:
        found = "no account is known here. Run `wandb login`, or set WANDB_MODE=offline"
        raise SpecError([Problem("--wandb", found)], "the command")


class WandbSink:
    """Owns one W&B run. A failure ends the sending with a warning, and training continues.

    The runs of a trial form a group, and have their files in the run folder. W&B's own settings
    apply: `WANDB_MODE=offline` needs no network and no account, and `wandb sync` sends the files
    later; `WANDB_PROJECT` and `WANDB_ENTITY` say where to.
    """

    def __init__(self, spec: Spec, layout: RunLayout, trial: int, session: int) -> None:
        self._run: Any = None
        self._is_lost = False
        self._call(lambda: self._start(spec, layout, trial, session))

    def scalars(self, frame: int, values: Mapping[str, float]) -> None:
        """Send a row; W&B draws against `frame`. Frames repeated by a resume appear twice."""
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        self._call(lambda: self._run.log({"frame": frame, **known}))

    def close(self) -> None:
        self._call(lambda: self._run.finish())

    def _start(self, spec: Spec, layout: RunLayout, trial: int, session: int) -> None:
        import wandb

        group = f"{layout.predir.name}_t{trial}"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            group=group,
            name=layout.session_name(trial, session),
            id=f"{group}_s{session}",
            resume="allow",
            dir=str(layout.predir.resolve()),
            config={"spec_name": spec.name, "trial": trial, "session": session, **spec.to_dict()},
            reinit="create_new",  # a search trains several sessions in one process
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="frame")

    def _call(self, function: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            function()
        except Exception as error:
            self._is_lost = True
            logger.warning(f"W&B gets no more of this session ({error!s:.300})")
