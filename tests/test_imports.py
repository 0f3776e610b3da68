"""Imports point down the list of rooms, so a room can be read without those above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "slm_lab"

# From top to bottom. Rooms on one line do not see each other. `slm_lab` is the public surface,
# `dashboard` looks at what runs have left on disk; `lab`, `search`, `live_graphs` are files, where
# training and analysis meet, `hub` shares folders, `agent` is agent.py with what it is made of, and
# the other files directly in agent/ are tools they share.
LINES = [
    {"slm_lab"},
    {"cli"},
    {"benchmark", "doctor"},
    {"lab", "cloud", "dashboard"},
    {"search", "live_graphs"},
    {"hub"},
    {"experiment", "analysis"},
    {"agent", "env"},
    {"agent.algorithm"},
    {"agent.net", "agent.memory"},
    {"agent tools"},
    {"runs"},
    {"spec"},
    {"types"},
]
LEVEL = {room: len(LINES) - i for i, line in enumerate(LINES) for room in line}
ROOM_NAMES = {room.split(".")[0] for room in LEVEL}


def room_of(module: str) -> str:
    match module.split(".")[1:]:
        case []:
            return "slm_lab"
        case ["agent"] | [
            "agent",
            "agent" | "experience" | "make" | "normalizer" | "recurrence",
            *_,
        ]:
            return "agent"
        case ["agent", ("algorithm" | "net" | "memory") as room, *_]:
            return f"agent.{room}"
        case ["agent", _, *_]:
            return "agent tools"
        case [room, *_]:
            return room
    raise AssertionError(module)


def may_import(room: str, other: str) -> bool:
    if room == "analysis":  # it meets training only on disk
        return other in ("analysis", "runs", "spec", "types")
    return room == other or LEVEL[other] < LEVEL[room]


def imported_modules(source: str) -> set[str]:
    """Every slm_lab module a file names, also inside functions and under TYPE_CHECKING."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from slm_lab import spec` names a room; `from slm_lab import run` the surface.
            names |= {
                f"slm_lab.{alias.name}"
                if node.module == "slm_lab" and alias.name in ROOM_NAMES
                else node.module
                for alias in node.names
            }
    return {name for name in names if name.split(".")[0] == "slm_lab"}


def upward_imports(module: str, source: str) -> list[str]:
    room = room_of(module)
    return [
        f"{module} ({room}) imports {name} ({room_of(name)})"
        for name in sorted(imported_modules(source))
        if not may_import(room, room_of(name))
    ]


def test_every_import_in_the_package_points_down():
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    offences: list[str] = []
    for file in files:
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        assert room_of(module) in LEVEL, f"{module} is in no room: add it to LINES"
        offences += upward_imports(module, file.read_text())
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("slm_lab.spec.load", "from slm_lab.experiment.loop import run"),
        ("slm_lab.spec.load", "def f():\n    import slm_lab.cli.main"),
        ("slm_lab.env.make", "from slm_lab.agent.agent import Agent"),
        ("slm_lab.agent.agent", "from slm_lab import env"),
        ("slm_lab.agent.net.mlp", "from slm_lab.agent.algorithm.ppo import PPO"),
        ("slm_lab.agent.memory.rollout", "from slm_lab.agent.net.mlp import MLPNet"),
        ("slm_lab.agent.learner", "from slm_lab.agent import Agent"),
        ("slm_lab.analysis.plot", "from slm_lab.experiment.recorder import Recorder"),
        ("slm_lab.experiment.trial", "from slm_lab.analysis.plot import plot_trial"),
        ("slm_lab.cli.main", "from slm_lab import run"),
        ("slm_lab.experiment.run_catalog", "from slm_lab.dashboard.curves import join"),
        ("slm_lab.runs.files", "from slm_lab.experiment.layout import RunLayout"),
        ("slm_lab.spec.load", "from slm_lab.runs.files import read_text"),
    ],
)
def test_an_upward_or_sideways_import_is_caught(module: str, line: str):
    assert len(upward_imports(module, line)) == 1


@pytest.mark.parametrize(
    ("room", "heavy"),
    [
        ("slm_lab.spec", {"torch", "gymnasium", "numpy"}),
        ("slm_lab.runs.files", {"torch", "gymnasium", "numpy"}),
        ("slm_lab.analysis", {"torch", "gymnasium"}),
        ("slm_lab.hub.sync", {"torch", "gymnasium", "huggingface_hub"}),
    ],
)
def test_a_light_room_loads_no_heavy_library(room: str, heavy: set[str]):
    code = f"import sys, {room}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, check=True, capture_output=True, text=True
    ).stdout.split()
    assert heavy.isdisjoint(loaded)
