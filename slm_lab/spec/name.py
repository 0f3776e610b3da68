"""Names of specs; the folder and every file of a run begin with one."""

from __future__ import annotations

import re

from slm_lab.spec.block import shown

MAX_LENGTH = 100  # the longest file name of a run is some 100 characters longer; 255 is the limit
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_TRIAL = re.compile(r".*_t\d+")


def name_complaint(name: str) -> str:
    """Complaint about a name that a run cannot have; empty if it can."""
    if len(name) > MAX_LENGTH or not _NAME.fullmatch(name):
        rule = f"1 to {MAX_LENGTH} letters, digits and _ - . +, a letter or digit first"
        return f"found {shown(name)}; expected {rule}. Rename the spec"
    if _TRIAL.fullmatch(name):
        rule = f"1 to {MAX_LENGTH} letters, digits and _ - . +, without _t and a number at the end"
        return f"found {shown(name)}; expected {rule}: files of a trial are called so"
    return ""


def name_of_env(env: str) -> str:
    """Shorten an env id for a spec's name: `ALE/Pong-v5` -> `pong`, `my.envs:Pole-v0` -> `pole`."""
    short = re.split(r"[/:]", env)[-1].partition("-")[0].lower()
    return re.sub(r"[^a-z0-9_.+]+", "_", short)
