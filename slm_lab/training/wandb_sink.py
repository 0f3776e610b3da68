"""Send a session's curve to Weights & Biases (`--wandb`, extra `wandb`).

Each session is a W&B run with the metrics that TensorBoard gets; the runs of a trial form a group.
W&B's own settings apply: `WANDB_MODE=offline` needs no network and no account (`wandb sync` sends
the files later), `WANDB_PROJECT` and `WANDB_ENTITY` say where to. Files are in the run folder.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from loguru import logger

from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Problem, Spec, SpecError

PROJECT = "slm-lab"
OFFLINE = ("offline", "disabled", "dryrun")


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
    """Owns one W&B run. A failure ends the sending with a warning, and training continues."""

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
