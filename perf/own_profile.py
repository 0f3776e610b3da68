"""Measure where the time of our own loop goes in a workload, once everything is compiled.

Called by side_by_side.py: `python own_profile.py SPEC_FILE SPEC_NAME SET...`. Prints one line of
JSON: milliseconds per frame of the env, of acting and of learning, to compare with those of the
machine's limit (limit.py). It runs half the frames of the workload; the first 60 % are warm-up.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from slm_lab import load_spec, make_agent, make_env
from slm_lab.training.loop import Loop


def main() -> None:
    spec_file, spec_name, *sets = sys.argv[1:]
    spec = load_spec(Path(spec_file), spec_name, sets=sets)
    torch.set_num_threads(spec.meta.threads or 1)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    loop = Loop(agent, env, spec.env.max_frame)

    def run(until: int) -> None:
        loop.run(lambda: None, 10**12, lambda: False, until=until)

    def advance(until: int) -> tuple[int, dict[str, float]]:
        """Run to the first update after that frame, so that whole rounds are measured."""
        run(until)
        updates = loop.clock.updates
        while loop.clock.updates == updates:
            run(loop.clock.frame + env.num_envs)
        return loop.clock.frame, asdict(loop.profile)

    warm_frame, warm = advance(int(0.3 * spec.env.max_frame))
    frame, total = advance(int(0.5 * spec.env.max_frame))
    per_frame = 1e3 / (frame - warm_frame)
    print(
        json.dumps({f"{k}_ms": per_frame * (total[k] - warm[k]) for k in ("env", "act", "learn")})
    )


if __name__ == "__main__":
    main()
