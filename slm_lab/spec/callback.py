"""`meta.callbacks`: what is called while a session trains, by a name of ours or `module:Class`.

The keys of a callback of ours are checked when a spec is read. A module of the user's own is not
imported then: its callbacks stay `OwnCallbackSpec`, with any keys, until `load_callbacks` checks
them, before a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator, model_validator

from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Findings,
    FreeMapping,
    Key,
    NonNegative,
    Number,
    Positive,
    SmallCount,
    build_block,
    expect,
    gather_kwargs,
    invalid,
    shown,
)
from slm_lab.spec.error import SpecError, did_you_mean
from slm_lab.spec.own_class import import_object
from slm_lab.spec.record import Record, Registry
from slm_lab.spec.trust import module_of

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec

KEY = "meta.callbacks"


class CallbackSpec(Block):
    """Base of all callbacks' spec classes."""

    name: str = Field(description="Callback name, or module:Class.")

    @property
    def starts(self) -> str:
        """What the callback starts or calls outside of this process; empty for most."""
        return ""


class PeriodicSpec(CallbackSpec):
    """Keys of what happens every so many frames."""

    every: Count = Field(description="Frames between two times.")


class StopAtScoreSpec(CallbackSpec):
    """Ends a session at the first row of its curve whose score is reached."""

    score: Number = Field(description="Score to reach.")
    column: str = Key("total_reward_ma", "Column of the curve that holds the score.")


class EarlyStoppingSpec(CallbackSpec):
    """Ends a session whose score has not improved for a number of frames."""

    patience: Count = Field(description="Frames without improvement before the end.")
    least: NonNegative = Key(0.0, "Improvement that counts: more than this.")
    column: str = Key("total_reward_ma", "Column of the curve that holds the score.")


class SaveEverySpec(PeriodicSpec):
    """Saves the agent as `frame{FRAME}`, for `enjoy`, `eval` and `export --checkpoint`."""


class EvaluateEverySpec(PeriodicSpec):
    """Plays fresh episodes greedily; the best agent by their mean is saved as `evaluated`."""

    episodes: SmallCount = Key(10, "Episodes of each evaluation.")


class VideoEverySpec(PeriodicSpec):
    """Films fresh episodes into the folder `video`: .mp4 with imageio-ffmpeg, else .gif."""

    episodes: SmallCount = Key(1, "Episodes of each video.")


class Stage(Block):
    """Options of the env from a frame on."""

    frame: CountOrZero = Field(description="First frame of the stage.")
    options: FreeMapping = Field(description="What the env gets as `reset(options=...)`.")


class CurriculumSpec(CallbackSpec):
    """Changes the options that every new episode of the training env begins with."""

    stages: tuple[Stage, ...] = Field(description="Stages, each with frame and options.")

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        frames = [stage.frame for stage in stages]
        rising = "stages whose frames rise, at least one"
        expect(bool(frames) and sorted(set(frames)) == frames, frames, rising)
        return stages


class CommandAtEndSpec(CallbackSpec):
    """Runs a command of the shell when a session ends; SLM_LAB_REASON says why it did."""

    command: str = Field(min_length=1, description="Command, for /bin/sh.")
    timeout: Positive = Key(60.0, "Seconds after which it is ended.")

    @property
    def starts(self) -> str:
        return f"command {self.command}"


class WebhookAtEndSpec(CallbackSpec):
    """Posts how a session ended to an address, as JSON."""

    url: str = Field(description="Address, https:// or http://.")
    timeout: Positive = Key(10.0, "Seconds after which it is given up.")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        expect(url.startswith(("https://", "http://")), url, "an address, https://...")
        return url

    @property
    def starts(self) -> str:
        return f"webhook {self.url}"


class OwnCallbackSpec(CallbackSpec):
    """A callback of a module that has not been imported; `kwargs` are its keys, unchecked."""

    kwargs: FreeMapping = Key({}, "Its keys; written beside the name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        return gather_kwargs(cls, data) if isinstance(data, dict) else data

    @field_validator("name")
    @classmethod
    def _is_module_and_class(cls, name: str) -> str:
        module, _, attribute = name.rpartition(":")
        parts = [*module.split("."), attribute]
        if not all(part.isidentifier() for part in parts):
            raise invalid(f"found {shown(name)}; expected module:Class, as my_callbacks:MyCallback")
        return name


class CallbackInfo(Record[CallbackSpec]):
    """Record of a callback that ships with the package."""


def _record(spec_class: type[CallbackSpec], module: str) -> CallbackInfo:
    name = spec_class.__name__.removesuffix("Spec")
    return CallbackInfo(name, spec_class, f"slm_lab.{module}:{name}")


_SHIPPED = "training.shipped_callbacks"
CALLBACKS = Registry(
    [
        _record(StopAtScoreSpec, _SHIPPED),
        _record(EarlyStoppingSpec, _SHIPPED),
        _record(SaveEverySpec, _SHIPPED),
        _record(EvaluateEverySpec, _SHIPPED),
        # Playback stands above training, which finds this class by its name alone.
        _record(VideoEverySpec, "playback.video_callback"),
        _record(CurriculumSpec, _SHIPPED),
        _record(CommandAtEndSpec, _SHIPPED),
        _record(WebhookAtEndSpec, _SHIPPED),
    ],
    any_spelling=True,
)


def build_callbacks(given: Any, findings: Findings) -> tuple[CallbackSpec, ...]:
    """Build the entries of `meta.callbacks`, each a name or a mapping with one."""
    if given is None:
        return ()
    if not isinstance(given, list):
        findings.problem(KEY, f"found {shown(given)}; expected a list of names or mappings")
        return ()
    built = (_build(entry, f"{KEY}.{place}", findings) for place, entry in enumerate(given))
    return tuple(spec for spec in built if spec is not None)


def _build(entry: Any, path: str, findings: Findings) -> CallbackSpec | None:
    keys = {"name": entry} if isinstance(entry, str) else entry
    name = keys.get("name") if isinstance(keys, Mapping) else None
    if not isinstance(name, str):
        expected = "expected a name, or a mapping with `name` and the callback's keys"
        findings.problem(path, f"found {shown(entry)}; {expected}")
        return None
    if module_of(name):
        return build_block(OwnCallbackSpec, keys, path, findings, name)
    record = CALLBACKS.find(name)
    if record is None:
        near = did_you_mean(name, CALLBACKS)
        own = "One of your own is named module:Class."
        findings.problem(f"{path}.name", f"found {shown(name)}; unknown callback. {near} {own}")
        return None
    keys = {**keys, "name": record.name}
    return build_block(record.spec_class, keys, path, findings, record.name)


def load_callbacks(spec: Spec, *, only_own: bool = False) -> list[tuple[Any, CallbackSpec]]:
    """Import the class of every callback of a spec, and check the keys of the user's own.

    A module is imported only if `trust.py` admits it. With `only_own` ours, which need torch and
    are checked already, are left out. SpecError with every problem found.
    """
    findings = Findings()
    pairs = list(_load_each(spec, findings, only_own))
    if findings.problems:
        raise SpecError(findings.problems, spec.name)
    return pairs


def _load_each(
    spec: Spec, findings: Findings, only_own: bool
) -> Iterator[tuple[Any, CallbackSpec]]:
    for place, entry in enumerate(spec.meta.callbacks):
        if not isinstance(entry, OwnCallbackSpec):
            if not only_own:
                yield CALLBACKS[entry.name].load(), entry
            continue
        path, cls = f"{KEY}.{place}", None
        try:
            cls = import_object(entry.name, f"{path}.name", spec.origin)
        except SpecError as error:
            findings.problems += error.problems
        spec_class = getattr(cls, "spec_class", None)
        if isinstance(spec_class, type) and issubclass(spec_class, CallbackSpec):
            keys = {**entry.kwargs, "name": entry.name}
            built = build_block(spec_class, keys, path, findings, entry.name.rpartition(":")[2])
            if built is not None:
                yield cls, built
        elif cls is not None:
            expected = "expected a subclass of slm_lab.training.callback.Callback"
            findings.problem(f"{path}.name", f"found {shown(cls)}; {expected}")


def check_search_keys(search: Sequence[str], findings: Findings) -> None:
    """Refuse a search over which code or commands run: single keys of a callback are enough."""
    for path in search:
        *_, last = path.split(".")
        if path != KEY and not path.startswith(f"{KEY}."):
            continue
        if path.count(".") < 3 or last in ("name", "command", "url"):
            fix = f"a search changes single keys of a callback, such as {KEY}.0.every"
            findings.problem(f"search.{path}", f"{fix}, and never what runs")
