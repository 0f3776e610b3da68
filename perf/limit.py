"""The machine's limit for a workload: its env, and its matrix products and convolutions, alone.

Called by side_by_side.py: `python limit.py SPEC_FILE SPEC_NAME SET...`. Prints one line of JSON:
the milliseconds each part takes per frame on the threads of this process, and the frames per second
that no library computing the same products can pass. With `meta.precision=bfloat16` the products of
wide layers are those of bfloat16, and so is the limit.

The products are recorded, not listed by hand: one round of acting and learning runs eagerly under a
dispatch mode that notes every product torch computes. Each product is then timed by itself on data
in memory. Copies, activations, losses, optimisers and Python count as free. Small nets act in
NumPy, which the mode does not see, so their acting counts as free too.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slm_lab import load_spec, make_agent, make_env

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
}
ENV_STEPS = 300

Call = tuple[Any, str]  # operator, arguments with tensors as shapes


class ProductWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that notes every product and how to repeat it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[Call] = Counter()
        self.repeat: dict[Call, Callable[[], object]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in PRODUCTS:
            call = (func, str([_layout(arg) for arg in args]))
            self.calls[call] += 1
            if call not in self.repeat:
                ready = [_copy(arg) for arg in args]
                self.repeat[call] = lambda: func(*ready)
        return func(*args, **(kwargs or {}))

    def seconds(self) -> float:
        """Sum of the shortest time of every noted product."""
        return sum(count * best(self.repeat[call]) for call, count in self.calls.items())


def _layout(arg: Any) -> Any:
    return (arg.dtype, tuple(arg.shape), arg.stride()) if isinstance(arg, torch.Tensor) else arg


def _copy(arg: Any) -> Any:
    return arg.detach().clone() if isinstance(arg, torch.Tensor) else arg


def best(product: Callable[[], object], repeats: int = 20) -> float:
    product()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    spec_file, spec_name, *sets = sys.argv[1:]
    spec = load_spec(Path(spec_file), spec_name, sets=[*sets, "meta.compile=off"])
    torch.set_num_threads(spec.meta.threads or 1)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)

    obs, frame = env.reset(), 0
    acting, learning = ProductWatch(), ProductWatch()
    watched_from, updates = 0, 0
    while updates < 2:  # the first update marks where a whole round begins
        is_watched = updates == 1
        with acting if is_watched else torch.no_grad():
            action = agent.act(obs, frame=frame)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs
        frame += env.num_envs
        if agent.ready:
            with learning if is_watched else torch.no_grad():
                agent.update(frame)
            updates += 1
            watched_from = watched_from or frame

    frames = frame - watched_from
    parts = {
        "env_ms": 1e3 * env_seconds(env) / env.num_envs,
        "act_ms": 1e3 * acting.seconds() / frames,
        "learn_ms": 1e3 * learning.seconds() / frames,
    }
    print(json.dumps({"fps": 1e3 / sum(parts.values())} | parts))


def env_seconds(env: Any) -> float:
    """Seconds that one step of all envs takes with random actions."""
    env.reset()
    actions = [env.sample_action() for _ in range(ENV_STEPS)]
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    return (time.perf_counter() - start) / ENV_STEPS


if __name__ == "__main__":
    main()
