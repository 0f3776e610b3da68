"""More frames: the spec of a run that goes on beyond its budget, and the schedules that had it.

A schedule is a pure function of the frame, and some end where the budget ended. They stay as they
were, unless they are told to follow the new budget: then every end is stretched in proportion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slm_lab.runs.resume import spec_sha256
from slm_lab.spec import Problem, Spec, SpecError

# Keys that hold frames, in blocks of schedules: those with a start, and those that run from 0.
ENDS = ("end_step", "start_step")
LINEAR = ("LinearToZero", "LinearToMin")


@dataclass(frozen=True, slots=True)
class Extension:
    """The spec of an extended run, and what its schedules do, in words."""

    spec: Spec
    note: str


def extend(saved: Spec, ran: Spec, max_frame: int, *, follow: bool) -> Extension:
    """Make the spec of a run with a larger budget.

    `ran` is the spec that each session had: of `meta.distributed` that of one worker.
    """
    old = saved.env.max_frame
    if max_frame <= old:
        found = f"found {max_frame:,}, but the run has {old:,}; a run is extended, never shortened"
        raise SpecError([Problem("env.max_frame", found)], saved.name)
    ends = dict(schedule_ends(saved))
    values: dict[str, Any] = {"env.max_frame": max_frame}
    if follow:
        values |= {key: max(1, round(end * max_frame / old)) for key, end in ends.items() if end}
    elif "agent.memory.anneal_frames" in ends:
        values["agent.memory.anneal_frames"] = ends["agent.memory.anneal_frames"]
    changed = {key: _value_at(saved, key) for key in values if key != "env.max_frame"}
    earlier = {"max_frame": old, "spec_sha256": spec_sha256(ran), "values": changed}
    before = [each.model_dump(mode="json") for each in saved.meta.extended]
    values["meta.extended"] = [*before, earlier]
    return Extension(saved.with_values(values), _note(saved, ends, max_frame, follow=follow))


def _value_at(spec: Spec, key: str) -> Any:
    """What a spec's author wrote at a dotted path; None if nothing."""
    node: Any = spec.to_dict()
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def schedule_ends(spec: Spec) -> Iterator[tuple[str, int]]:
    """Keys that hold the frame of a schedule, and that frame."""
    yield from _ends(spec.resolved()["agent"], "agent")
    if spec.agent.memory.prioritizes:
        given = getattr(spec.agent.memory, "anneal_frames", None)
        yield "agent.memory.anneal_frames", given or spec.env.max_frame


def _ends(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, int]]:
    if tree.get("name") in LINEAR and "frame" in tree:
        yield f"{path}.frame", int(tree["frame"])
    if path.endswith("entropy_anneal") and tree.get("end_ratio") is not None:
        yield f"{path}.frames", int(tree.get("frames") or 0)
    if tree.get("name") != "no_decay" and tree.get("end_step"):
        yield from ((f"{path}.{key}", int(tree.get(key) or 0)) for key in ENDS)
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _ends(value, f"{path}.{key}")


def _note(saved: Spec, ends: Mapping[str, int], max_frame: int, *, follow: bool) -> str:
    old = saved.env.max_frame
    lines = [f"{key} {end:,}" for key, end in ends.items() if end]
    text = f"From {old:,} to {max_frame:,} frames"
    if lines and follow:
        text += f"; schedules are stretched by {max_frame / old:g}: {', '.join(lines)}"
    elif lines:
        text += f"; schedules stay as they were: {', '.join(lines)}. --follow-budget stretches them"
    counted = list(_counted_in_updates(saved.resolved()["agent"], "agent"))
    if counted:
        text += f". {', '.join(counted)} counts updates and goes on as it was"
    return text


def _counted_in_updates(tree: Mapping[str, Any], path: str) -> Iterator[str]:
    """Schedulers of torch, which know neither frame nor budget."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if key.endswith("lr_scheduler_spec") and value.get("name") not in LINEAR:
                yield f"{path}.{key}"
            yield from _counted_in_updates(value, f"{path}.{key}")
