"""`env`: the environment, its copies, and the wrappers of observations and rewards.

The one block that takes unknown keys: they go to the environment's constructor.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema, model_validator

from slm_lab.spec.block import (
    Block,
    Count,
    Flag,
    FreeMapping,
    Key,
    Number,
    Positive,
    SmallCount,
    expect,
    gather_kwargs,
    invalid,
    is_number,
)
from slm_lab.spec.trust import SpecOrigin, is_own
from slm_lab.types import Backend

_ATARI_GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider
Berzerk Bowling Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender
DemonAttack DoubleDunk ElevatorAction Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero
IceHockey Jamesbond JourneyEscape Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman
NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest
Skiing Solaris SpaceInvaders StarGunner Surround Tennis TimePilot Tutankham UpNDown Venture
VideoPinball WizardOfWor YarsRevenge Zaxxon
"""
_OLD_ATARI_ID = re.compile(r"(\w+?)(?:Deterministic|NoFrameskip)?-v[0-4]")

GIVEN = "python/"  # begins the name of an env that was given as an object, and no module has
# The clip that normalisation brings along when the spec names none.
_NORMALIZED_CLIP = 10.0
# Atari games score in units of 1 to 10,000: learning from signs lets them share one setting.
_ATARI_CLIP = 1.0


def _clip_range(value: object) -> object:
    """Read a clip range; a number c stands for [-c, c]."""
    pair = value if isinstance(value, list | tuple) else (value, value)
    is_range = len(pair) == 2 and all(map(is_number, pair))
    expect(is_range, value, "a number c or a pair [low, high]")
    low, high = pair if isinstance(value, list | tuple) else (-pair[0], pair[0])
    expect(low < high, value, "low below high (a number c is [-c, c])")
    return (low, high)


_PAIR = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
ClipRange = Annotated[
    tuple[float, float],
    BeforeValidator(_clip_range),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, _PAIR]}),
]


def _reward_scale(value: object) -> object:
    if value == "sign":
        raise invalid('found "sign" of SLM Lab v4; use clip_reward: 1')
    return value


class WrapperSpec(Block):
    """A Gymnasium wrapper; its arguments stand beside the name."""

    name: str = Field(description="module:Class of the wrapper.")
    kwargs: FreeMapping = Key({}, "Arguments; written beside the name.")

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"name": data}
        if not isinstance(data, dict):
            return data
        name = data.get("name")
        expect(is_own(name), name, "module:Class, as gymnasium.wrappers:TimeAwareObservation")
        return gather_kwargs(cls, data)


_OWN_NAME = {"type": "string", "pattern": r"^[\w.]+:\w+$"}
_NAMED = {"type": "object", "properties": {"name": _OWN_NAME}, "required": ["name"]}
Wrapper = Annotated[WrapperSpec, WithJsonSchema({"anyOf": [_OWN_NAME, _NAMED]})]


class EnvSpec(Block):
    """The environment of a run."""

    name: str = Field(
        min_length=1, description="Gymnasium id, ALE/..., playground/..., or module:EnvId."
    )
    num_envs: SmallCount = Key(1, "Copies stepped together.")
    max_frame: Count = Field(description="Training budget in env steps, summed over copies.")
    max_t: Count | None = Key(None, "Time limit of an episode; null is the env's.")
    normalize_obs: Flag = Key(False, "Normalise observations by running statistics.")
    normalize_reward: Flag = Key(False, "Scale rewards by the std of the return.")
    clip_obs: Positive | None = Key(
        None, "Clip observations to +-this; 10 with normalize_obs unless given."
    )
    clip_reward: ClipRange | None = Key(
        None, "Clip rewards to +-number or [low, high]; 10 if normalized, 1 for ALE/."
    )
    reward_scale: Annotated[Number, BeforeValidator(_reward_scale)] = Key(
        1.0, "Multiply rewards by this before anything else."
    )
    device: str | None = Key(None, "Device of playground envs; null is automatic.")
    privileged: Flag = Key(
        False, "Let a critic net of its own read `privileged_state`, if the env has one."
    )
    action_mask: Flag = Key(
        True, "Keep to the actions that an env's mask allows, if it offers one."
    )
    backend: Backend = Key(
        "auto", "Engine that runs the env; `subprocess` is Gymnasium in worker processes."
    )
    frame_stack: Annotated[SmallCount, Field(le=64)] = Key(
        1, "Last observations seen together; frame_op_len is an old name."
    )
    frame_op: Literal["stack", "concat"] = Key(
        "stack", "Stack on a new first axis, or concatenate on the first."
    )
    num_threads: SmallCount | None = Key(
        None, "Threads (subprocess: workers) that step the envs; pays where steps are slow."
    )
    wrappers: tuple[Wrapper, ...] = Key(
        (), "Gymnasium wrappers around each env, the innermost first: module:Class or {name, ...}."
    )
    kwargs: FreeMapping = Key({}, "Every other key, for the env's constructor.")

    # Set by `Spec.with_origin`, never by what a file says.
    _origin: SpecOrigin | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Compare the keys; the file that a spec was read from does not count."""
        return isinstance(other, EnvSpec) and dict(self) == dict(other)

    @property
    def origin(self) -> SpecOrigin | None:
        """Where the spec was read, if that is below a run folder: see `trust.py`."""
        return self._origin

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = gather_kwargs(cls, data)
        kwargs = dict(data["kwargs"])
        if "frame_op_len" in kwargs:
            data.setdefault("frame_stack", kwargs.pop("frame_op_len"))
        if data.get("normalize_obs"):
            data.setdefault("clip_obs", _NORMALIZED_CLIP)
        if str(data.get("name")).startswith("ALE/"):
            data.setdefault("clip_reward", _ATARI_CLIP)
        if data.get("normalize_reward"):
            data.setdefault("clip_reward", _NORMALIZED_CLIP)
        return {**data, "kwargs": kwargs}


def current_env_id(name: str) -> str:
    """Rename an Atari id older than ALE's own, such as `VideoPinball-v0`, to today's id."""
    old = _OLD_ATARI_ID.fullmatch(name)
    return f"ALE/{old[1]}-v5" if old and old[1] in _ATARI_GAMES.split() else name


def key_complaint(key: str) -> str | None:
    """Complaint about a misspelt key of ours or one of a former version; None for others."""
    if key in EnvSpec.model_fields or key == "frame_op_len":
        return None
    if key in ("image_downsize", "image_grayscale"):
        return "belongs to SLM Lab v4 and has no meaning now; remove it"
    # Short keys are too easily near a constructor's own, as `name` is to `game`.
    known = [name for name in EnvSpec.model_fields if len(name) >= 6]
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.82)
    return f"unknown key for env. Did you mean `{near[0]}`?" if near else None
