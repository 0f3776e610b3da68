"""A client of the page that sends what no browser would; the server never answers with a 5xx."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.mutated_trees import ABSURD_VALUES, mutate_tree
from tests.torture.attack import Outcome, Result
from tests.torture.run_commands import DATA, HERE
from tests.torture.run_folders import KINDS, copy_run
from tests.torture.victim import run_isolated

REQUESTS = 40
PAGE_SECONDS = 120.0
UPDATE = "/_dash-update-component"
PATHS = (
    "/",
    "/_dash-layout",
    "/_dash-dependencies",
    "/_favicon.ico",
    UPDATE,
    "/video/x/../../secret.mp4",
    "/video/%2e%2e%2fcanary",
    "/video/tiny%00/best.mp4",
    "/assets/../server.py",
    "/_dash-component-suites/dash/%2e%2e/flask/app.py",
    "/" + "x" * 9000,
    "//evil.example/",
)
HOSTS = ("localhost:8050", "evil.example", "127.0.0.1.evil.example", "", "localhost:99999", "[::1")
METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE")


@dataclass(frozen=True, slots=True)
class Drawn:
    kind: str
    key: int


@dataclass(frozen=True, slots=True)
class Page:
    name: str = "page"
    seconds: float = 300.0
    share: float = 0.2

    def draw(self, random: Random) -> Drawn:
        return Drawn(random.choice(KINDS), random.getrandbits(32))

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        run = copy_run(drawn.kind, scratch, material)
        (scratch / "canary").write_text("precious")
        body = _visit(run.name, Random(drawn.key))
        found = run_isolated(body, scratch, PAGE_SECONDS).result()
        return Result(Outcome.OK) if found.outcome is Outcome.OK else found


def _visit(name: str, random: Random) -> Callable[[], None]:
    def body() -> None:
        from slm_lab.dashboard.server import make_app

        client = make_app(DATA).test_client()
        client.get("/_dash-layout", headers=HERE)
        entries = client.get("/_dash-dependencies", headers=HERE).get_json()
        for _ in range(REQUESTS):
            request = _update(entries, name, random) if random.random() < 0.7 else _other(random)
            with client.open(**request) as answer:
                if answer.status_code >= 500 or b"precious" in answer.data:
                    shown = repr(request)[:3000]
                    raise RuntimeError(f"the page answered {answer.status_code} to {shown}")

    return body


def _update(entries: list[dict[str, Any]], name: str, random: Random) -> dict[str, Any]:
    """A request of a callback with values of any kind, perhaps damaged as a whole."""
    entry = random.choice(entries)
    outputs = entry["output"].strip(".").split("...")
    body: Any = {
        "output": entry["output"],
        "outputs": [
            dict(zip(("id", "property"), output.rsplit(".", 1), strict=True)) for output in outputs
        ],
        "inputs": [{**item, "value": _value(name, random)} for item in entry["inputs"]],
        "state": [{**item, "value": _value(name, random)} for item in entry["state"]],
        "changedPropIds": [],
    }
    for _ in range(random.choice((0, 0, 1, 2))):
        body = mutate_tree(body, random)
    data = json.dumps(body)
    if random.random() < 0.1:
        data = data[: random.randrange(len(data))]
    return {
        "path": UPDATE,
        "method": "POST",
        "headers": {**HERE, "Content-Type": "application/json"},
        "data": data,
    }


def _value(name: str, random: Random) -> Any:
    """What the page would send, something like it, or anything else."""
    likely: list[Any] = [
        {"keys": [name], "places": {name: 0}},
        {"keys": [name, "../x"], "places": {name: 10**30}},
        {"keys": [[]], "places": []},
        [{"key": name}],
        "total_reward",
        "frame",
        "light",
        "log",
        "spec",
        "details",
        "benchmark",
        ["yes"],
        0,
    ]
    value = copy.deepcopy(random.choice((*likely, *likely, *ABSURD_VALUES)))
    return mutate_tree(value, random) if random.random() < 0.3 else value


def _other(random: Random) -> dict[str, Any]:
    headers = {"Host": random.choice(HOSTS)}
    if random.random() < 0.3:
        headers["Origin"] = random.choice(("http://evil.example", "null", "http://[", "x" * 500))
    if random.random() < 0.3:
        headers["Range"] = random.choice(
            ("bytes=0-", "bytes=5-2", "bytes=-1", "x", "bytes=" + "9" * 99)
        )
    return {
        "path": random.choice(PATHS),
        "method": random.choice(METHODS),
        "headers": headers,
        "data": random.choice(
            (b"", b"{}", b"null", b"[" * 100_000, b"\xff" * 10, b"x" * 5_000_000)
        ),
    }
