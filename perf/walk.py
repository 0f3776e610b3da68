"""Count the files, functions and lines that one frame passes from the env to the gradient.

    python -m perf.walk [--files]

The script trains a shipped spec eagerly until an update is due, then records every call of one step
of the loop: act, step the env, store, and the whole update. It prints how many files and functions
of slm_lab took part, how many lines these functions have, and the hops: distinct pairs of caller
and called function that lie in different files. `--files` lists the files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import slm_lab
from slm_lab import load_spec, make_agent, make_env
from slm_lab.training.loop import Loop

PACKAGE = str(Path(slm_lab.__file__).parent)
REPLAY = ["agent.memory.max_size=2000", "agent.algorithm.training_start_step=64"]
WALKS = {
    "PPO CartPole": ("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", []),
    "SAC HalfCheetah": ("benchmark/sac/sac_halfcheetah.json", "sac_halfcheetah", REPLAY),
    "DQN Atari": ("benchmark/dqn/dqn_atari.json", "dqn_atari", ["env=ALE/Pong-v5", *REPLAY]),
}


class Walk:
    """The functions of slm_lab that are called while the recorder is active, and who calls them."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.calls: set[tuple[CodeType, CodeType]] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        sys.setprofile(self._record)
        try:
            yield
        finally:
            sys.setprofile(None)

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.functions}

    @property
    def hops(self) -> int:
        return sum(a.co_filename != b.co_filename for a, b in self.calls)

    @property
    def lines(self) -> int:
        """Lines with code in these functions."""
        numbers = {
            (code.co_filename, line)
            for code in self.functions
            for _, _, line in code.co_lines()
            if line is not None
        }
        return len(numbers)

    def _record(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not _is_ours(frame.f_code):
            return
        self.functions.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and not _is_ours(caller.f_code):
            caller = caller.f_back
        if caller is not None:
            self.calls.add((caller.f_code, frame.f_code))


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE)


def walk(file: str, name: str, sets: list[str]) -> Walk:
    """Record one step of the loop in which an update is due."""
    spec = load_spec(file, name, sets=[*sets, "meta.compile=off"])
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    loop = Loop(agent, env, max_frame=10**9)
    while True:
        updates = loop.clock.updates
        walk = Walk()
        with walk.recording():
            loop.run(lambda: None, 10**9, lambda: False, until=loop.clock.frame + 1)
        # The first update also learns the names of its metrics.
        if loop.clock.updates > updates > 0:
            env.close()
            return walk


def main() -> None:
    print(f"{'':16} {'files':>6} {'hops':>6} {'functions':>10} {'lines':>6}")
    for title, (file, name, sets) in WALKS.items():
        way = walk(file, name, sets)
        counts = f"{len(way.files):6} {way.hops:6} {len(way.functions):10} {way.lines:6}"
        print(f"{title:16} {counts}", flush=True)
        if "--files" in sys.argv:
            for path in sorted(way.files):
                print("   ", Path(path).relative_to(PACKAGE))


if __name__ == "__main__":
    main()
